"""Whose a served store is, read from a store; who is refused, and who learns of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from launcher.agent.startup.served_store import Occupant, find_occupant
from launcher.extensions.hints import refusals
from launcher.model.errors import TemporaryError, UsageError
from rendezvous import __version__, records
from rendezvous.errors import MeshrunError, VersionError
from rendezvous.records import Command, Seal, StoreOwner, Verdict
from rendezvous.stores.memory.store import MemoryStore
from tests.support.reasons import because

THEIRS = StoreOwner(prefix="meshrun", run_id="a", node_name="h1", presence_address="10.0.0.1:7000")
OURS = StoreOwner(prefix="meshrun", run_id="b", node_name="h2", presence_address="10.0.0.2:7000")
JOB = records.make_job_keys("meshrun", "a", "job")
SEAL = Seal(round=1, plan_token="t", world_size=2, coordinator="c:1", reason=because("enough"))
SUCCESS = Verdict(kind="success", exit_code=0, round=1, reason=because("all workers succeeded"))


@pytest.fixture
def store() -> MemoryStore:
    """The served store of run a."""
    made = MemoryStore(clock=lambda: 0.0)
    made.put(records.STORE_OWNER_KEY, records.encode(THEIRS))
    return made


def begin(store: MemoryStore, **more: records.Record) -> None:
    store.put(records.make_current_key("meshrun", "a"), b"job")
    for key, record in more.items():
        store.put(getattr(JOB, key), records.encode(record))


@pytest.mark.parametrize(
    "value", [b"", b"[]", b'{"version":1}', f'{{"version":"{__version__}","run_id":"a"}}'.encode()]
)
def test_a_record_of_others_names_no_occupant(store: MemoryStore, value: bytes) -> None:
    store.put(records.STORE_OWNER_KEY, value)
    assert find_occupant(store) is None


def test_a_store_of_no_agent_or_of_another_version_is_known_as_such(store: MemoryStore) -> None:
    store.put(records.STORE_OWNER_KEY, b'{"version":"9.1","run_id":7}')
    with pytest.raises(VersionError) as refused:
        find_occupant(store)
    assert refused.value.version == "9.1"
    assert find_occupant(MemoryStore(clock=lambda: 0.0)) is None


@pytest.mark.parametrize(
    ("written", "has_begun", "is_over"),
    [
        (None, False, False),
        ({}, False, False),
        ({"round": SEAL}, True, False),
        ({"round": SEAL, "verdict": SUCCESS}, True, True),
        ({"verdict": SUCCESS}, False, True),
    ],
    ids=["before its job", "waiting", "running", "ended", "given up"],
)
def test_how_far_the_run_of_the_store_has_come_is_read(
    store: MemoryStore, written: dict[str, records.Record] | None, has_begun: bool, is_over: bool
) -> None:
    if written is not None:
        begin(store, **written)
    found = find_occupant(store)
    assert found is not None
    assert (found.owner, found.has_begun, found.is_over) == (THEIRS, has_begun, is_over)
    assert (found.job is None) == (written is None)


@pytest.mark.parametrize(
    ("run_id", "attempt", "is_earlier"), [("a", 3, True), ("a", 2, False), ("a", 1, False), ("b", 3, False)]
)
def test_an_earlier_attempt_of_the_own_run_is_asked_to_end_once(
    store: MemoryStore, run_id: str, attempt: int, is_earlier: bool
) -> None:
    store.put(records.STORE_OWNER_KEY, records.encode(replace(THEIRS, attempt=2)))
    begin(store, round=SEAL)
    own = replace(OURS, run_id=run_id, attempt=attempt)
    for _ in range(2):
        occupant = find_occupant(store)
        assert occupant is not None
        assert occupant.make_way(store, own, b"") == is_earlier
    asked = store.get(JOB.commands, prefix=True).items
    assert [records.decode(Command, item.value, item.key) for item in asked] == (
        [Command(kind="replace", target="3", by="h2")] if is_earlier else []
    )
    assert [item.version for item in asked] == [1] * is_earlier


def test_an_earlier_attempt_that_has_ended_or_not_begun_is_only_waited_for(store: MemoryStore) -> None:
    own = replace(OURS, run_id="a", attempt=1)
    for written in (None, {"round": SEAL, "verdict": SUCCESS}):
        if written is not None:
            begin(store, **written)
        occupant = find_occupant(store)
        assert occupant is not None
        assert occupant.make_way(store, own, b"")
        assert store.get(JOB.commands, prefix=True).items == ()


def refuse(theirs: StoreOwner, ours: StoreOwner, *, has_begun: bool) -> MeshrunError:
    """Return the error; its kind says whether the same command may work later."""
    with pytest.raises(TemporaryError if has_begun else UsageError) as refused:
        raise refusals.refuse_run(Occupant(theirs, has_begun), ours, "h1:29400", "--rdzv-endpoint")
    return refused.value


def owner(run_id: str, prefix: str = "meshrun", node: str = "h1") -> StoreOwner:
    return StoreOwner(prefix=prefix, run_id=run_id, node_name=node, presence_address="")


@pytest.mark.parametrize(
    ("theirs", "ours", "has_begun", "sentence"),
    [
        (owner("none"), owner("777"), False,
         "another agent, on node h1, waits at h1:29400 for the run without an id; this agent belongs to run 777, and "
         "all nodes of a run need the same --rdzv-id"),
        (owner("777"), owner("none"), True,
         "the store at h1:29400 belongs to run 777, which is running; this agent belongs to the run without an id"),
        (owner("none", prefix="mine"), owner("none"), True,
         "the store at h1:29400 belongs to the run without an id with prefix mine, which is running; this agent "
         "belongs to the run without an id with prefix meshrun"),
    ],
)  # fmt: skip
def test_a_run_without_an_id_is_not_called_by_torchrun_s_word_for_that(
    theirs: StoreOwner, ours: StoreOwner, has_begun: bool, sentence: str
) -> None:
    error = refuse(theirs, ours, has_begun=has_begun)
    assert str(error) == sentence
    assert "none" not in (error.hint or "")


@pytest.mark.parametrize(
    ("theirs", "has_begun", "sentence", "hint"),
    [
        (owner("9021"), False,
         "another agent, on node h1, waits at h1:29400 for run 9021; this agent belongs to run 777, and all nodes of a "
         "run need the same --rdzv-id",
         "give all nodes the same --rdzv-id; if these are two runs, give this run another port with --rdzv-endpoint"),
        (owner("9021"), True,
         "the store at h1:29400 belongs to run 9021, which is running; this agent belongs to run 777",
         "give this run another port with --rdzv-endpoint, or start it when run 9021 has ended"),
        (owner("777", prefix="mine"), False,
         "another agent, on node h1, waits at h1:29400 for run 777 with prefix mine; this agent belongs to "
         "run 777 with prefix meshrun, and all nodes of a run need the same LAUNCHER_RDZV_PREFIX",
         "give all nodes the same LAUNCHER_RDZV_PREFIX; if these are two runs, give this run another port with "
         "--rdzv-endpoint"),
    ],
)  # fmt: skip
def test_an_agent_learns_whose_store_it_met(theirs: StoreOwner, has_begun: bool, sentence: str, hint: str) -> None:
    error = refuse(theirs, owner("777", node="h2"), has_begun=has_begun)
    assert (str(error), error.hint) == (sentence, hint)
