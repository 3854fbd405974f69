"""What `meshctl clean` removes, and what it leaves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from launcher.meshctl.requests import find_leftovers, remove
from rendezvous import records
from rendezvous.stores.memory.store import MemoryStore
from tests.support.stores.stored_job import PREFIX, StoredJob


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore(clock=lambda: 0.0)
    yield store
    store.close()


def finished(store: MemoryStore, run_id: str, job_key: str = "k1") -> StoredJob:
    job = StoredJob(store, run_id, job_key)
    job.join(0)
    job.seal(1, 0)
    job.end("success")
    job.lose(0)
    return job


def there(store: MemoryStore) -> set[str]:
    return {item.key for item in store.get("/", prefix=True).items}


def test_a_finished_job_goes_with_all_its_keys_and_nothing_else(store: MemoryStore) -> None:
    finished(store, "exp-4")
    before = there(store)
    finished(store, "exp-41")
    store.put("/other/key", b"")
    (found,) = find_leftovers(store, PREFIX, "exp-41")
    assert found.keep_reason == ""
    assert remove(store, found)
    assert there(store) == {*before, "/other/key"}


def test_a_job_with_a_member_stays_even_with_a_verdict(store: MemoryStore) -> None:
    job = finished(store, "exp-41")
    job.join(1)
    (found,) = find_leftovers(store, PREFIX, "exp-41", insist=True)
    assert found.keep_reason == "it has 1 live member"


def test_a_job_without_verdict_and_members_goes_only_when_a_person_insists(store: MemoryStore) -> None:
    job = StoredJob(store)
    job.join(0)
    job.seal(1, 0)
    job.lose(0)
    (found,) = find_leftovers(store, PREFIX, "exp-41")
    assert found.keep_reason.startswith("it has no verdict and no members")
    (found,) = find_leftovers(store, PREFIX, "exp-41", insist=True)
    assert found.keep_reason == ""
    assert remove(store, found)
    assert there(store) == set()


def test_an_older_job_of_a_run_goes_while_the_current_one_lives(store: MemoryStore) -> None:
    old = finished(store, "exp-41", "k0")
    store.delete(old.keys.verdict)
    live = StoredJob(store, "exp-41", "k1")
    live.join(0)
    found = find_leftovers(store, PREFIX, "exp-41")
    assert [(one.job.root[-2:], bool(one.keep_reason)) for one in found] == [("k0", False), ("k1", True)]
    assert remove(store, found[0])
    assert not store.get(old.keys.root + "/", prefix=True).items
    assert store.get(live.keys.spec).first is not None


def test_all_jobs_of_all_runs_go_where_none_is_named(store: MemoryStore) -> None:
    for run_id, job_key in (("exp-41", "k9"), ("exp-41", "k0"), ("b", "k1")):
        finished(store, run_id, job_key)
    assert [remove(store, one) for one in find_leftovers(store, PREFIX, None)] == [True] * 3
    assert there(store) == set()


def test_an_older_job_with_a_member_stays(store: MemoryStore) -> None:
    StoredJob(store, "exp-41", "k0").join(0, 1)
    finished(store, "exp-41", "k1")
    assert find_leftovers(store, PREFIX, "exp-41")[0].keep_reason == "it has 2 live members"


def test_a_job_that_was_begun_anew_meanwhile_stays(store: MemoryStore) -> None:
    finished(store, "exp-41")
    (found,) = find_leftovers(store, PREFIX, "exp-41")
    store.put(records.make_current_key(PREFIX, "exp-41"), b"k2")
    before = there(store)
    assert not remove(store, found)
    assert there(store) == before


def test_a_job_whose_verdict_has_gone_meanwhile_stays(store: MemoryStore) -> None:
    job = finished(store, "exp-41")
    (found,) = find_leftovers(store, PREFIX, "exp-41")
    store.delete(job.keys.verdict)
    assert not remove(store, found)


def test_foreign_keys_under_the_prefix_do_no_harm(store: MemoryStore) -> None:
    store.put(f"/{PREFIX}/lonely", b"")
    store.put(f"/{PREFIX}/exp-41/current", b"\xff\xfe")
    store.put(f"/{PREFIX}/x//", b"")
    for found in find_leftovers(store, PREFIX, None):
        remove(store, found)
    assert f"/{PREFIX}/lonely" in there(store)
