"""The two texts that agreement carries, read like any input from outside."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.placement.adapter.description import (
    Description,
    NodeAssignment,
    decode_assignment,
    decode_description,
    encode_assignment,
    encode_description,
)
from rendezvous.errors import RecordError
from rendezvous.reasons import Reason

NODE = Description(
    slot_count=8, address="10.0.0.1", role="default", name="h1", machine="m", locality=(("zone", "a"), ("leaf", "l 3")),
    index=3, slice_hosts=4,
)  # fmt: skip
SHARE = NodeAssignment(
    ranks=(2, 3), world_size=4, shape=(2, 2), group_rank=1, group_world_size=2, role_ranks=(2, 3), role_world_size=4,
    master_addr="10.0.0.1", master_port=29500,
    summary=Reason.of("placement/summary", nodes=2, present=2, ranks=4, sizes=()),
)  # fmt: skip


def changed(text: str, **fields: object) -> str:
    return json.dumps({**json.loads(text), **fields})


def placed(*locality: object) -> str:
    return changed(encode_description(NODE), locality=locality)


def test_what_was_written_is_read_again_and_later_fields_are_ignored() -> None:
    assert decode_description(encode_description(NODE)) == NODE
    assert decode_assignment(encode_assignment(SHARE)) == SHARE
    assert decode_description(changed(encode_description(NODE), colour="red")) == NODE


def described(**fields: object) -> str:
    return changed(encode_description(NODE), **fields)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "its description is not JSON, so it was not written by meshrun"),
        ("[1]", "its description cannot be read: expected object, got array"),
        ("[" * 100_000, "its description cannot be read: expected object, got array"),
        ("{}", "its description cannot be read: object missing required field slot_count"),
        (described(slot_count=True), "its description cannot be read: expected int, got bool in slot_count"),
        (described(slot_count=0), "its description cannot be read: expected int >= 1 in slot_count"),
        (described(slot_count=10**9), "its description cannot be read: expected int <= 10000 in slot_count"),
        (described(address=5), "its description cannot be read: expected str, got int in address"),
        (described(address=""), "it has no address, which meshrun does not write"),
        (described(name="\x1b[2J"), "it has the text '\\x1b[2J', which meshrun does not write"),
        (described(role="r" * 300), "its description cannot be read: expected str of length <= 255 in role"),
        (placed(*([f"l{at}", "a"] for at in range(1000))),
         "it has a place of 1000 levels, which meshrun does not write"),
        (placed(["leaf", "\x1b[2J"]), "it has the text '\\x1b[2J' in its place, which meshrun does not write"),
        (placed(["leaf", "x" * 10_000_000]),
         f"it has the text '{'x' * 40}' in its place, which meshrun does not write"),
        (placed(["leaf", ""]), "it has the text '' in its place, which meshrun does not write"),
        (placed(["leaf", "a"], ["leaf", "b"]), "it has a level twice in its place, which meshrun does not write"),
        (placed(["leaf"]), "its description cannot be read: expected array of length 2 in locality[0]"),
        (described(slice_hosts=-1), "its description cannot be read: expected int >= 0 in slice_hosts"),
        (described(master_port=70000), "its description cannot be read: expected int <= 65535 in master_port"),
    ],
    ids=range(19),
)  # fmt: skip
def test_a_description_that_nobody_wrote_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(RecordError) as caught:
        decode_description(text)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "fields",
    [
        {"ranks": []},
        {"ranks": [4, 5]},
        {"ranks": [-1, 0]},
        {"role_ranks": [1]},
        {"shape": [3, 2]},
        {"shape": []},
        {"shape": [-2, -2]},
        {"shape": [1] * 65 + [4]},
        {"world_size": 10**9, "shape": [10**9]},
        {"group_rank": 2},
        {"master_port": -1},
        {"master_addr": "a\nb"},
        {"master_addr": ""},
        {"master_addr": "h" * 256},
        {"ranks": [2, 2]},
        {"role_ranks": [2, 2]},
        {"role_ranks": [-1, 0]},
        {"role_ranks": [3, 4]},
        {"role_world_size": 5},
        {"group_world_size": 5},
        {"summary": "2 of 2 nodes"},
    ],
)
def test_a_share_that_cannot_be_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        decode_assignment(changed(encode_assignment(SHARE), **fields))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from([*NODE.__struct_fields__, *SHARE.__struct_fields__]), JSON))
def test_whatever_the_store_holds_is_read_or_refused(fields: dict[str, object]) -> None:
    for read, text in ((decode_description, encode_description(NODE)), (decode_assignment, encode_assignment(SHARE))):
        with suppress(RecordError):
            read(changed(text, **fields))
