"""Records: what comes back is what was stored, and what cannot be read is refused by name."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from rendezvous import __version__, records
from rendezvous.errors import RecordError, VersionError
from rendezvous.reasons import TEXT_MAX, Reason
from rendezvous.records import Assignment, Member, Record, Seal, Status, Stop, Verdict

KEY = "/p/r/job/some/key"
KINDS: tuple[Any, ...] = tuple(kind for kind in Record.__subclasses__() if kind.__module__ == Record.__module__)


VALUES = st.one_of(st.booleans(), st.integers(-(2**53), 2**53), st.floats(-1e9, 1e9), st.text(), st.tuples(st.text()))
REASONS = st.recursive(
    st.builds(Reason, st.text(max_size=64), st.dictionaries(st.text(), VALUES, max_size=3)),
    lambda inner: st.builds(
        Reason,
        st.text(max_size=64),
        st.dictionaries(st.text(), inner, max_size=2),
        st.lists(inner, max_size=2).map(tuple),
    ),
    max_leaves=5,
)


def drawn(kind: Any) -> st.SearchStrategy[Any]:
    """What a field of this type can hold."""
    if isinstance(kind, inspect.VarTupleType):
        return st.lists(drawn(kind.item_type), max_size=5).map(tuple)
    if isinstance(kind, inspect.TupleType):
        return st.tuples(*map(drawn, kind.item_types))
    if isinstance(kind, inspect.LiteralType):
        return st.sampled_from(kind.values)
    if isinstance(kind, inspect.IntType):
        least = kind.ge
        return st.integers(least, kind.le if kind.lt is None else kind.lt - 1)
    if isinstance(kind, inspect.FloatType):
        return st.floats(-1e9, 1e9)
    if isinstance(kind, inspect.DictType):
        return st.dictionaries(st.text(), drawn(kind.value_type), max_size=3)
    if isinstance(kind, inspect.StructType):  # the only one inside a record
        return REASONS
    if isinstance(kind, inspect.UnionType):
        return st.one_of(*map(drawn, kind.types))
    if isinstance(kind, inspect.NoneType):
        return st.none()
    return st.booleans() if isinstance(kind, inspect.BoolType) else st.text()


def wrong(kind: Any) -> tuple[Any, ...]:
    """Values that JSON can hold and a field of this type cannot."""
    if isinstance(kind, (inspect.VarTupleType, inspect.TupleType)):
        items = kind.item_types if isinstance(kind, inspect.TupleType) else (kind.item_type,)
        longer = [] if kind is not inspect.TupleType else [[""] * (len(items) + 1)]
        return (None, "x", 1, {}, *longer, *([one] for one in wrong(items[-1])))
    if isinstance(kind, inspect.IntType):
        return (
            None,
            "1",
            1.5,
            True,
            10**400,
            *(value for value in (kind.ge - 1, kind.lt, kind.le and kind.le + 1) if value),
        )
    if isinstance(kind, inspect.FloatType):
        return (None, "1", True, math.inf, math.nan, 10**400, 2.0**53)
    if isinstance(kind, inspect.LiteralType):
        return (None, 1, "perhaps")
    if isinstance(kind, inspect.DictType):
        return (None, 1, ["x"], {"name": 1})
    if isinstance(kind, inspect.StructType):
        return (None, 1, "text", {}, {"kind": 1}, {"kind": "x" * 65}, {"kind": "x", "values": {"a": None}},
                {"kind": "x", "values": {"a": "x" * (TEXT_MAX + 1)}}, {"kind": "x", "also": ["text"]})  # fmt: skip
    if isinstance(kind, inspect.UnionType):  # of None and another
        return tuple(value for one in kind.types for value in wrong(one) if value is not None)
    if isinstance(kind, inspect.NoneType):
        return ()
    return (None, 0, "false") if isinstance(kind, inspect.BoolType) else (None, 1, ["x"])


def known(kind: Any) -> dict[str, inspect.Field]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return {item.name: item for item in found.fields}


def smallest(kind: Any) -> Any:
    """A record with nothing in it."""
    empty: dict[type, Any] = {inspect.StrType: "", inspect.IntType: 0, inspect.VarTupleType: (), inspect.DictType: {},
                              inspect.StructType: Reason("x")}  # fmt: skip
    required = {name: item.type for name, item in known(kind).items() if item.required}
    return kind(**{name: empty[type(one)] if type(one) in empty else one.values[0] for name, one in required.items()})  # type: ignore[attr-defined]


@settings(max_examples=60)
@given(st.data())
def test_what_is_stored_comes_back_without_what_somebody_else_added(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    content = {name: data.draw(drawn(item.type)) for name, item in known(kind).items()}
    names = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda name: name not in {*content, "version"})
    added = data.draw(st.dictionaries(names, st.integers(-(2**53), 2**53)))
    record = kind(**content)
    stored = json.loads(records.encode(record))
    assert next(iter(stored)) == "version"
    assert records.decode(kind, json.dumps({**stored, **added}).encode(), KEY) == record


def test_what_utf8_or_a_version_does_not_have_is_shown_and_what_is_missing_is_named() -> None:
    stored = records.encode(Assignment(round=3, plan_token="t", content="/logs/\udcff"))
    assert records.decode(Assignment, stored, KEY).content == "/logs/?"
    with pytest.raises(VersionError, match=r"was written by meshrun '\\x1b\[2J', this is") as caught:
        records.decode(Seal, rb'{"version":"\u001b[2J"}', KEY)
    assert str(caught.value).isprintable()
    with pytest.raises(RecordError, match=rf"^the value of {KEY} .*: object missing required field plan_token$"):
        records.decode(Seal, f'{{"version":"{__version__}","round":3,"world_size":8}}'.encode(), KEY)
    assert records.name_run("exp-41") == "run exp-41"
    assert records.name_run("none") == "the run without an id", "torchrun's id for it"
    assert (records.name_own_run("exp"), records.name_own_run("none")) == ("run exp", "this run")


@pytest.mark.parametrize("secret", [b"", b"quiet"])
@pytest.mark.parametrize("version", ["0.0.9", "10.0", "0.1.0.dev3+g1234567"])
def test_another_version_is_refused_with_its_key_both_versions_and_a_hint(version: str, secret: bytes) -> None:
    value = json.dumps({"a": "field of another version", "version": version}).encode()
    with pytest.raises(VersionError) as caught:
        records.decode(Seal, value, KEY, secret)
    assert caught.value.version == version
    assert str(caught.value) == f"the value of {KEY} was written by meshrun {version}, this is meshrun {__version__}"
    assert caught.value.hint == f"install meshrun {version} on every node, or use another --rdzv-id"


@pytest.mark.parametrize("version", [None, 1, "", "v" * 41, [__version__]])
def test_a_version_that_cannot_be_is_none(version: object) -> None:
    with pytest.raises(RecordError, match=rf"^the value of {KEY} cannot be read: expected str.* in version$") as caught:
        records.decode(Seal, json.dumps({"version": version}).encode(), KEY)
    assert not isinstance(caught.value, VersionError)


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_cannot_be_is_refused_whichever_field_it_is_in(kind: Any) -> None:
    for name, item in known(kind).items():
        for value in wrong(item.type):
            content = {**json.loads(records.encode(smallest(kind))), name: value}
            with pytest.raises(RecordError, match=rf"^the value of {KEY} (cannot be read: .*|is not JSON)"):
                records.decode(kind, json.dumps(content).encode(), KEY)


@pytest.mark.parametrize(
    ("kind", "field", "value", "sentence"),
    [
        (Seal, "round", "1", "expected int, got str in round"),
        (Seal, "world_size", -8, "expected int >= 0 in world_size"),
        (Seal, "losses", [["x", 1.0]] * 4097, "expected array of length <= 4096 in losses"),
        (Member, "worker_port", 65_536, "expected int <= 65535 in worker_port"),
        (Status, "outcome", "perhaps", "invalid enum value 'perhaps' in outcome"),
        (Status, "rank", -2, "expected int >= -1 in rank"),
        (Stop, "mode", "fence", "invalid enum value 'fence' in mode"),
        (Verdict, "kind", "draw", "invalid enum value 'draw' in kind"),
    ],
)
def test_the_field_that_cannot_be_read_is_named(kind: Any, field: str, value: Any, sentence: str) -> None:
    content = {**json.loads(records.encode(smallest(kind))), field: value}
    with pytest.raises(RecordError) as caught:
        records.decode(kind, json.dumps(content).encode(), KEY)
    assert str(caught.value) == f"the value of {KEY} cannot be read: {sentence}"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "cannot be read: expected object, got array"),
        (b"[]", "cannot be read: expected object, got array"),
        (b'"text"', "cannot be read: expected object, got str"),
        (b"null", "cannot be read: expected object, got null"),
    ],
)
def test_what_somebody_else_wrote_is_refused_with_the_key(value: bytes, sentence: str) -> None:
    with pytest.raises(RecordError, match=f"the value of {KEY} {sentence}"):
        records.decode(Status, value, KEY)
