"""Nodes that are lost or join, and how many ranks move."""

from __future__ import annotations

import pytest

from launcher.meshctl.plan.changes import LOST, Change, Move, apply_changes, describe_change, list_moves, parse_list
from launcher.meshctl.plan.cluster import ClusterSpec
from launcher.meshctl.plan.generate import generate
from launcher.model.errors import UsageError
from launcher.model.mesh import parse
from launcher.placement.limits import Plan


def ids(cluster: ClusterSpec) -> set[str]:
    return {node.id for node in cluster.nodes}


def test_lost_nodes_are_gone_and_a_newcomer_takes_the_place_of_the_first() -> None:
    before = generate("dgx:2x2x8")
    after = apply_changes(before, ["h3", "h0"], ["h9", "h8=l0", "h7"])
    assert ids(after) == {"h1", "h2", "h9", "h8", "h7"}
    newcomers = {node.id: node for node in after.nodes[-3:]}
    assert newcomers["h9"].path == ("l1",)  # h3's
    assert apply_changes(before, [], ["h9"]).nodes[-1].path == (None,)  # it is in no lost node's place
    assert newcomers["h8"].path == ("l0",)  # as said
    assert newcomers["h7"].path == ("l0",)  # h0's
    assert newcomers["h9"].slot_count == 8
    assert newcomers["h7"].address == "10.0.0.7"
    assert [node.order for node in after.nodes[-3:]] == [4, 5, 6]


@pytest.mark.parametrize(
    ("lost", "joined", "sentence"),
    [
        ("h71", "", "--lose: dgx:2x2x8 has no node 'h71'"),
        ("h1,,h2", "", "--lose 'h1,,h2' has an empty entry"),
        ("h1,h1", "", "--lose contains h1 twice"),
        ("", "h1", "--join: 'h1' already exists"),
        ("h1", "h1", "--join: 'h1' already exists"),
        ("", "h9,h9=l0", "--join: 'h9' already exists"),
        ("", "=l0", "--join: '' is not a name"),
        ("", "h9=p0/l0", "--join: 'p0/l0' is not a path in dgx:2x2x8"),
    ],
)
def test_a_change_that_makes_no_sense_is_told_so(lost: str, joined: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        apply_changes(generate("dgx:2x2x8"), parse_list([lost], "lose"), parse_list([joined], "join"))
    assert str(caught.value) == sentence


def test_a_flag_may_be_repeated_and_the_hint_names_the_nodes_in_their_order() -> None:
    assert parse_list(["h0, h1", "", "h3"], "lose") == ["h0", "h1", "h3"]
    with pytest.raises(UsageError) as caught:
        apply_changes(generate("dgx:4x8x8"), ["x"], [])
    assert caught.value.hint == "use one of h0-h31"


def test_what_a_change_does_to_each_node_is_told_and_moves_counted_by_place() -> None:
    mesh = parse("dp=*")
    cluster = generate("dgx:3x2")
    after = apply_changes(cluster, ["h1"], ["h5"])
    before = Plan(shape=(6,), ranks={"h0": (0, 1), "h1": (2, 3), "gone": (4, 5)}, spares=(), moved=0, reasons=())
    plan = Plan(shape=(6,), ranks={"h0": (0, 4), "h2": (2, 3), "h5": (1, 5)}, spares=(), moved=5, reasons=())
    change = describe_change(cluster, after, before, plan, mesh)
    assert {node.id for node in change.nodes} == {"h0", "h1", "h2", "h5", "gone"}
    assert change.remarks == {"h1": LOST, "gone": LOST, "h0": "from gone", "h2": "from h1", "h5": "(new)"}
    assert change.sentence == (
        "gone, h1 are lost; h5 joins; 5 of 6 ranks move: 2 from h1 to h2, 1 from h0 to h5, 1 from gone to h0, "
        "1 from gone to h5"
    )
    assert describe_change(cluster, cluster, plan, plan, mesh).remarks == {"h5": LOST}
    same = Plan(shape=(6,), ranks={"h0": (0, 1), "h1": (2, 3), "h2": (4, 5)}, spares=(), moved=0, reasons=())
    for previous in (same, None):
        assert describe_change(cluster, cluster, previous, same, mesh) == Change(nodes=cluster.nodes)
    before = Plan(shape=(2, 3), ranks={"a": (0, 1), "b": (2, 3), "c": (4, 5)}, spares=(), moved=0, reasons=())
    # dp shrinks to 2: (0,0) (0,1) (1,0) (1,1) were ranks 0, 1, 3, 4 on a, a, b, c.
    after = Plan(shape=(2, 2), ranks={"a": (0, 1), "c": (2, 3)}, spares=(), moved=1, reasons=())
    mesh = parse("pp=2,dp=*")
    assert list_moves(before, after, mesh) == [Move("b", "c", 1)]
    assert list_moves(before, before, mesh) == []
