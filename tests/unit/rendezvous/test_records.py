"""Records: what comes back is what was stored, and what cannot be read is refused by name."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendezvous import records
from rendezvous.errors import RecordError
from rendezvous.records import (
    ALLOWED_VALUES,
    RANGES,
    Assignment,
    Command,
    Drain,
    LeaderRecord,
    Member,
    RoundHistory,
    Seal,
    Spares,
    Spec,
    Status,
    Stop,
    Verdict,
)

KEY = "/p/r/job/some/key"
KINDS: tuple[Any, ...] = (
    *(Spec, Member, LeaderRecord, Spares, Drain, Command),
    *(RoundHistory, Seal, Stop, Assignment, Status, Verdict),
)
NUMBERS = st.floats(-1e9, 1e9)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(),
    "int": st.integers(-(2**63) + 1, 2**63 - 1),
    "bool": st.booleans(),
    "float": NUMBERS,
    "tuple[str, ...]": st.lists(st.text()).map(tuple),
    "tuple[int, ...]": st.lists(st.integers(0, 99)).map(tuple),
    "tuple[float, ...]": st.lists(NUMBERS).map(tuple),
    "tuple[tuple[str, float], ...]": st.lists(st.tuples(st.text(), NUMBERS)).map(tuple),
    "tuple[tuple[str, int, float], ...]": st.lists(st.tuples(st.text(), st.integers(0, 99), NUMBERS)).map(tuple),
}
# For each type values that JSON can hold and that are not of it.
WRONG: dict[str, tuple[Any, ...]] = {
    "str": (None, 1, ["x"]),
    "int": (None, "1", 1.5, True, 10**400),
    "bool": (None, 0, "false"),
    "float": (None, "1", True, math.inf, math.nan, 10**400),
    "tuple[str, ...]": (None, "x", [1]),
    "tuple[int, ...]": (None, 1, ["1"], [True], [1.5]),
    "tuple[float, ...]": (None, 1.0, ["1"], [True], [math.inf]),
    "tuple[tuple[str, float], ...]": (None, [["x"]], [["x", "1"]], [["x", 1.0, 2.0]], ["x1"], [["x", 1.0]] * 4097),
    "tuple[tuple[str, int, float], ...]": (None, [["x", 1]], [["x", 1.5, 1.0]], [[1, 1, 1.0]], [["x", 1, math.inf]]),
}


def smallest(kind: Any) -> Any:
    """A record with nothing in it."""
    empty = {"str": "", "int": 0, "tuple[str, ...]": ()}
    required = [item for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING]
    words = {
        name.partition(".")[2]: allowed[0] for name, allowed in ALLOWED_VALUES.items() if name.startswith(kind.__name__)
    }
    return kind(**{item.name: words.get(item.name, empty[str(item.type)]) for item in required})


def drawn(kind: Any, item: Any) -> st.SearchStrategy[Any]:
    """What this field can hold."""
    if f"{kind.__name__}.{item.name}" in ALLOWED_VALUES:
        return st.sampled_from(ALLOWED_VALUES[f"{kind.__name__}.{item.name}"])
    allowed = RANGES.get(item.name)
    return VALUES[str(item.type)] if allowed is None else st.integers(allowed.start, allowed.stop - 1)


def known(kind: Any) -> list[Any]:
    return [item for item in fields(kind) if item.name != "unknown"]


@settings(max_examples=60)
@given(st.data())
def test_what_is_stored_comes_back_with_what_a_later_version_added(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    content = {item.name: data.draw(drawn(kind, item)) for item in known(kind)}
    added = data.draw(
        st.dictionaries(st.text().filter(lambda name: name not in {*content, "version", "hmac"}), st.integers())
    )
    record = kind(**content, unknown=added)
    assert records.decode(kind, records.encode(record), KEY) == record


def test_a_field_that_this_version_does_not_know_survives_a_rewrite() -> None:
    stored = b'{"version":1,"round":3,"plan_token":"t","content":"","added":{"by":"a later version"}}'
    rewritten = records.encode(replace(records.decode(Assignment, stored, KEY), content="new"))
    assert json.loads(rewritten) == {**json.loads(stored), "content": "new", "node": ""}


@pytest.mark.parametrize(("version", "shown"), [(2, "2"), ("1", "'1'"), (None, "None")])
def test_another_version_is_refused_with_its_key_both_versions_and_a_hint(version: object, shown: str) -> None:
    value = json.dumps({"version": version, "a": "field of another version"}).encode()
    with pytest.raises(RecordError) as caught:
        records.decode(Seal, value, KEY)
    assert str(caught.value) == f"{KEY} has record version {shown}, this agent reads version 1"
    assert caught.value.hint is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_the_wrong_type_is_named_whichever_field_it_is_in(kind: Any) -> None:
    for item in known(kind):
        for wrong in WRONG[str(item.type)]:
            content = {**json.loads(records.encode(smallest(kind))), item.name: wrong}
            with pytest.raises(RecordError, match=rf"^{KEY}: {item.name} is .*, which is no "):
                records.decode(kind, json.dumps(content).encode(), KEY)


def test_what_is_missing_is_named_and_what_has_a_default_is_not() -> None:
    with pytest.raises(RecordError, match=rf"^{KEY} lacks plan_token, coordinator$"):
        records.decode(Seal, b'{"version":1,"round":3,"world_size":8}', KEY)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a record"),
        (b'"text"', "not a record"),
        (b"null", "not a record"),
    ],
)
def test_what_somebody_else_wrote_is_refused_with_the_key(value: bytes, sentence: str) -> None:
    with pytest.raises(RecordError, match=f"the value of {KEY} is {sentence}"):
        records.decode(Status, value, KEY)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Seal, "round", -1),
        (Seal, "world_size", -8),
        (Member, "worker_port", 65_536),
        (Status, "outcome", "perhaps"),
        (Status, "rank", -2),
        (Status, "exit_code", 256),
        (Stop, "mode", "fence"),
        (Verdict, "kind", "draw"),
    ],
)
def test_a_value_that_cannot_be_is_refused_though_its_type_is_right(kind: Any, field: str, value: Any) -> None:
    content = {**json.loads(records.encode(smallest(kind))), field: value}
    with pytest.raises(RecordError, match=rf"^{KEY}: {field} is .*, which cannot be$"):
        records.decode(kind, json.dumps(content).encode(), KEY)
