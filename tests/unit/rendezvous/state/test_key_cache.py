"""The mirror: in whatever order answers, reads and events arrive, only what is newer counts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from rendezvous.state.key_cache import KeyCache
from rendezvous.stores.contract import Batch, GetResult, KeyEvent, KeyValue


def item(key: str, revision: int) -> KeyValue:
    return KeyValue(key, b"", revision, revision, 1, 0)


def put(key: str, revision: int) -> Batch:
    return Batch(revision, (KeyEvent("put", item(key, revision)),))


def gone(key: str, revision: int) -> Batch:
    return Batch(revision, (KeyEvent("delete", KeyValue(key, b"", 0, revision, 0, 0)),))


def read(revision: int, *items: KeyValue) -> GetResult:
    return GetResult(revision, items)


def show(*arrivals: Batch | GetResult) -> KeyCache:
    """What a mirror makes of these."""
    mirror = KeyCache()
    for arrival in arrivals:
        if isinstance(arrival, Batch):
            mirror.apply(arrival, 0.0)
        else:
            mirror.load(arrival, "d/", 0.0)
    return mirror


@pytest.mark.parametrize(
    ("first", "then", "revision"),
    [
        (put("d/a", 5), put("d/a", 4), 5),
        (put("d/a", 5), put("d/a", 5), 5),
        (put("d/a", 5), put("d/a", 6), 6),
        (put("d/a", 5), gone("d/a", 6), 0),
        (put("d/a", 5), gone("d/a", 4), 5),
        (gone("d/a", 5), put("d/a", 4), 0),
        (gone("d/a", 5), put("d/a", 6), 6),
        (put("d/a", 5), read(6), 0),
        (put("d/a", 5), read(4), 5),
        (put("d/a", 5), read(6, item("d/a", 5)), 5),
        (put("d/a", 7), read(6, item("d/a", 5)), 7),
        (read(6), put("d/a", 5), 0),
        (read(6), put("d/a", 7), 7),
        (read(6), read(5, item("d/a", 5)), 0),
        (read(6, item("d/a", 6)), read(5, item("d/a", 5)), 6),
    ],
)
def test_only_what_is_newer_counts(first: Batch | GetResult, then: Batch | GetResult, revision: int) -> None:
    mirror = show(first, then)
    assert mirror.get_revision("d/a") == revision
    assert (mirror.get("d/a") is None) is (revision == 0)


@settings(max_examples=80)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=12), st.integers(0, 2**32))
def test_a_history_in_any_order_ends_the_same(writes: list[tuple[str, bool]], seed: int) -> None:
    """Each write is seen as an event, each state in between as a read, all of them shuffled."""
    state: dict[str, KeyValue] = {}
    arrivals: list[Batch | GetResult] = []
    for revision, (name, is_put) in enumerate(writes, start=1):
        key = f"d/{name}"
        if is_put:
            state[key] = item(key, revision)
            arrivals.append(put(key, revision))
        elif state.pop(key, None) is not None:
            arrivals.append(gone(key, revision))
        arrivals.append(read(revision, *state.values()))
    random.Random(seed).shuffle(arrivals)
    mirror = show(*arrivals)
    assert not mirror.regress
    assert {found.key: found for found in mirror.list_under("d/")} == state


def test_a_read_of_one_prefix_or_key_says_nothing_of_others() -> None:
    mirror = KeyCache()
    mirror.apply(put("e/a", 3), 0.0)
    mirror.load(read(9), "d/", 0.0)
    mirror.apply(put("e/b", 4), 0.0)
    assert [found.key for found in mirror.list_under("e/")] == ["e/a", "e/b"]
    mirror = KeyCache()
    mirror.load(read(9), "d/a", 0.0)
    mirror.load(read(9, item("d/ab", 5)), "d/ab", 0.0)
    assert mirror.get_revision("d/ab") == 5
    assert not mirror.regress


def test_a_key_counts_as_seen_when_it_became_what_it_is() -> None:
    mirror = KeyCache()
    mirror.apply(put("d/a", 3), 1.0)
    mirror.load(read(4, item("d/a", 3)), "d/", 2.0)
    assert mirror.get_first_seen_at("d/a") == 1.0
    mirror.apply(put("d/a", 5), 3.0)
    assert mirror.get_first_seen_at("d/a") == 3.0


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (put("d/a", 5), read(6, item("d/a", 4))),
        (put("d/a", 5), read(5, item("d/a", 4))),
        (put("d/a", 5), read(4, structs.replace(item("d/a", 5), value=b"another"))),
        (put("d/a", 5), Batch(5, (KeyEvent("put", structs.replace(item("d/a", 5), value=b"another")),))),
        (gone("d/a", 5), read(6, item("d/a", 4))),
        (read(5), read(6, item("d/a", 4))),
    ],
)
def test_what_no_single_history_can_show_is_noted(first: Batch | GetResult, then: Batch | GetResult) -> None:
    mirror = show(first)
    assert not mirror.regress
    regress = show(first, then).regress
    assert regress is not None
    assert (regress.kind, regress.values["key"]) == ("key-went-back", "d/a")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (put("d/a", 5), read(4, item("d/a", 4))),
        (put("d/a", 5), put("d/a", 4)),
        (put("d/a", 5), put("d/a", 5)),
        (put("d/a", 5), read(6, item("d/a", 5))),
        (put("d/a", 5), read(6)),
        (gone("d/a", 5), read(4, item("d/a", 4))),
        (read(6), read(5, item("d/a", 5))),
        (read(6), read(7, item("d/a", 7))),
    ],
)
def test_what_comes_late_or_twice_is_no_other_history(first: Batch | GetResult, then: Batch | GetResult) -> None:
    assert not show(first, then).regress
