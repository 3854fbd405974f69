"""A finding in sentences and as a cluster file."""

from __future__ import annotations

from msgspec.structs import replace

from launcher.locality.measure.procedure import TreeFinding
from launcher.locality.measure.session import Answer, Participant
from launcher.locality.measure.wording import describe, find_paths, list_contradictions, make_cluster
from launcher.meshctl.plan.cluster import parse_cluster

MBIT = 10**6
LEVELS = ("spine", "leaf")
TREE = TreeFinding(
    kind="tree",
    levels=(((0, 2), (1, 3, 4)),),
    rates_bps=((40 * MBIT, 20 * MBIT),),
    host_rates_bps=(40 * MBIT, 40 * MBIT, 40 * MBIT, 40 * MBIT, 10 * MBIT),
)


def make_answer(finding: TreeFinding = TREE, leaves: str = "-----") -> Answer:
    """Nodes h10, h1, h2, ..., of which each says the leaf of its letter, - for none."""
    participants = tuple(
        Participant(
            name=name, address=f"10.0.0.{number}", echo_port=1, bulk_port=2, devices=8,
            path=() if leaf == "-" else (("leaf", leaf),),
        )
        for number, (name, leaf) in enumerate(zip(("h10", "h1", "h2", "h3", "h4"), leaves, strict=True))
    )  # fmt: skip
    stated = tuple(tuple(i for i, one in enumerate(leaves) if one == leaf) for leaf in sorted({*leaves} - {"-"}))
    return Answer(participants=participants, finding=finding, stated=stated)


def test_a_tree_is_told_with_the_rates_that_differ() -> None:
    assert describe(make_answer(), LEVELS) == [
        "tree: 5 nodes in 2 domains of level leaf",
        "leaf l0: h1, h3, h4; its uplink carries 20Mbit, 4.5 to 1",
        "leaf l1: h10, h2; its uplink carries 40Mbit, 2.0 to 1",
        "a host's link carries 40Mbit; h4: 10Mbit",
    ]


def test_the_cluster_file_can_be_planned_with() -> None:
    cluster = make_cluster(make_answer(), LEVELS)
    assert cluster["rates"] == {"leaf": "40Mbit", "leaf:l0": "20Mbit", "host": "40Mbit", "host:h4": "10Mbit"}
    spec = parse_cluster(cluster, "cluster.json")
    assert spec.levels == ("leaf",)
    assert [(node.id, node.path, node.slot_count) for node in spec.nodes][:2] == [
        ("h10", ("l1",), 8),
        ("h1", ("l0",), 8),
    ]


def test_stated_names_stay_and_a_node_that_stands_elsewhere_is_named() -> None:
    answer = make_answer(leaves="xyxyx")
    assert find_paths(answer, LEVELS) == [(("leaf", leaf),) for leaf in "xyxyy"]
    assert list_contradictions(answer, LEVELS) == ["node h4 says leaf x and answers like leaf y"]
    right = make_answer(leaves="xyxyy")
    assert list_contradictions(right, LEVELS) == []
    assert describe(right, LEVELS)[0] == "tree: 5 nodes in 2 domains of level leaf, as stated"


def test_a_stated_leaf_that_is_two_gives_neither_its_name() -> None:
    assert find_paths(make_answer(leaves="xxxxx"), LEVELS) == [(("leaf", f"l{n}"),) for n in (1, 0, 1, 0, 0)]


def test_two_levels_have_both_names_and_one_has_the_innermost() -> None:
    two = replace(TREE, levels=(((0, 1, 2, 3, 4),), *TREE.levels), rates_bps=((0,), *TREE.rates_bps))
    assert find_paths(make_answer(two), LEVELS)[0] == (("spine", "s0"), ("leaf", "l1"))
    assert find_paths(make_answer(), LEVELS)[0] == (("leaf", "l1"),)


def test_what_is_flat_or_cannot_be_told_says_what_a_flow_reached() -> None:
    flat = TreeFinding(kind="flat", host_rates_bps=(40 * MBIT,) * 5, flow_bps=40 * MBIT)
    assert describe(make_answer(flat), LEVELS) == [
        "flat: no link between 5 nodes is full before those of the hosts; one flow reached 40Mbit",
        "a host's link carries 40Mbit",
    ]
    unknown = TreeFinding(kind="unknown", reason="the nodes have filled no link", flow_bps=5 * MBIT)
    sentence = "cannot tell: the nodes have filled no link; one flow reached 5Mbit"
    assert describe(make_answer(unknown), LEVELS) == [sentence]


def test_who_is_left_out_and_pairs_without_echoes_are_named() -> None:
    finding = replace(TREE, left_out=((4, "it has not answered in time"),), blocked=((0, 1), (2, 3)))
    said = describe(make_answer(finding), LEVELS)
    assert "node h4 is left out: it has not answered in time" in said
    assert said[-1] == "no UDP echo passes between h10 and h1, h2 and h3"
