"""A finding in sentences, as a file of places, and as a cluster file."""

from __future__ import annotations

import random
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.extensions.measure.procedure import TreeFinding
from launcher.extensions.measure.session import Answer, Participant
from launcher.extensions.measure.wording import (
    describe,
    find_paths,
    list_contradictions,
    make_cluster,
    make_places,
    name_domains,
)
from launcher.locality.explicit import find_in_file
from launcher.meshctl.plan.cluster import parse_cluster
from launcher.model.node import Node
from launcher.model.rates import format_rate, parse_rates, resolve_rates
from launcher.model.topology import build_tree

MBIT = 10**6
LEVELS = ("spine", "leaf")
TREE = TreeFinding(
    kind="tree",
    levels=(((0, 2), (1, 3, 4)),),
    rates_bps=((40 * MBIT, 20 * MBIT),),
    host_rates_bps=(40 * MBIT, 40 * MBIT, 40 * MBIT, 40 * MBIT, 10 * MBIT),
)


def make_answer(finding: TreeFinding = TREE, leaves: Sequence[str] = "-----", spines: str = "-----") -> Answer:
    """Nodes h10, h1, h2, ..., of which each says the leaf, and the spine, of its letter; - for none."""
    participants = tuple(
        Participant(
            name=name, address=f"10.0.0.{number}", echo_port=1, bulk_port=2, devices=8,
            path=tuple(one for one in (("spine", spine), ("leaf", leaf)) if one[1] != "-"),
        )
        for number, (name, spine, leaf) in enumerate(
            zip(("h10", "h1", "h2", "h3", "h4"), spines, leaves, strict=True)
        )
    )  # fmt: skip
    return Answer(participants=participants, finding=finding)


def test_a_tree_is_told_with_the_rates_that_differ_and_a_line_for_each_host() -> None:
    assert describe(make_answer(), LEVELS) == [
        "tree: 5 nodes in 2 domains of level leaf",
        "leaf l0: h1, h3, h4; its uplink carries 20Mbit, 4.5 to 1",
        "leaf l1: h10, h2; its uplink carries 40Mbit, 2.0 to 1",
        "a host's link carries 40Mbit; h4: 10Mbit",
    ]
    finding = replace(TREE, levels=(((0, 2), (1, 3)),), left_out=((4, "it has not answered in time"),))
    assert make_places(make_answer(finding), LEVELS) == (
        "# measured: --rates leaf=40Mbit,leaf:l0=20Mbit,host=40Mbit,host:h4=10Mbit\n"
        "h10 leaf=l1\nh1 leaf=l0\nh2 leaf=l1\nh3 leaf=l0\nh4\n"
    )


def test_a_file_of_any_names_reads_back_with_all_its_places_and_rates(tmp_path: Path) -> None:
    draw = random.Random(1)
    tree = replace(TREE, levels=(((0, 1, 2), (3,)),), rates_bps=((40 * MBIT, 20 * MBIT),), host_rates_bps=(MBIT,) * 4)
    for number in range(100):
        names = ["".join(draw.choices("ab*#,= é", k=4)).strip() or "*" for _ in range(4)]
        names = [name if names.count(name) == 1 else f"{index}" for index, name in enumerate(names)]
        leaves = ["".join(draw.choices("lm,#=;@ *", k=3)).strip() or "l" for _ in range(2)]
        participants = tuple(
            Participant(
                name=name, address=f"10.0.0.{index}", echo_port=1, bulk_port=2, path=(("leaf", leaves[index == 3]),)
            )
            for index, name in enumerate(names)
        )
        text = make_places(Answer(participants=participants, finding=tree), LEVELS)
        file = tmp_path / f"{number}"
        file.write_text(text)
        found = [find_in_file(str(file), "--locality", (one.name, one.address))[0] for one in participants]
        assert len({*found}) == 2, (text, found)
        assert found[0] == found[1] == found[2] != found[3]
        rates = shlex.split(text.splitlines()[0])[-1]
        nodes = [Node(id=name, slot_count=1, path=(path[0][1],)) for name, path in zip(names, found, strict=True)]
        assert resolve_rates(parse_rates(rates), build_tree(nodes, ("leaf",))).remarks == ()


def test_a_cluster_file_of_any_names_reads_back_with_all_its_rates() -> None:
    draw = random.Random(1)

    def draw_name(letters: str) -> str:
        return draw.choice("ab0") + "".join(draw.choices(letters, k=draw.randint(0, 4))) + draw.choice(letters[:5])

    two = replace(
        TREE, levels=(((0, 1, 2), (3, 4)), ((0,), (1, 2), (3, 4))), rates_bps=((MBIT, 2 * MBIT), (MBIT, 2 * MBIT, MBIT))
    )
    for _ in range(300):
        names = [f"{number}{draw_name(',0:={é a')}" for number in range(5)]
        spines, leaves = ([draw_name("/b0:=, é-") for _ in range(count)] for count in (2, 3))
        given = zip(names, (0, 0, 0, 1, 1), (0, 1, 1, 2, 2), strict=True)
        participants = tuple(
            Participant(
                name=name, address="::1", echo_port=1, bulk_port=2,
                path=(("spine", spines[spine]), ("leaf", f"{leaf}{leaves[leaf]}")),
            )
            for name, spine, leaf in given
        )  # fmt: skip
        cluster = make_cluster(Answer(participants=participants, finding=two), LEVELS)
        spec = parse_cluster(cluster, "cluster.json")
        found = parse_rates(spec.options["rates"])
        assert parse_rates(str(found)) == found
        assert {str(link): format_rate(rate) for link, rate in found.links.items()} == cluster["rates"]
        assert resolve_rates(found, build_tree(spec.nodes, spec.levels)).remarks == ()
        assert [node.id for node in spec.nodes] == names


@pytest.mark.parametrize("name", ["²", "h1²", "①", "9" * 5000])
def test_a_name_may_have_digits_that_are_no_number(name: str) -> None:
    answer = make_answer()
    first, *others = answer.participants
    named = replace(answer, participants=(replace(first, name=name), *others))
    assert describe(named, LEVELS)[0] == "tree: 5 nodes in 2 domains of level leaf"


def test_stated_names_stay_a_number_makes_none_and_one_level_has_the_innermost() -> None:
    answer = make_answer(leaves="xyxyx")
    assert find_paths(answer, LEVELS) == [(("leaf", leaf),) for leaf in "xyxyy"]
    assert list_contradictions(answer, LEVELS) == ["node h4 has leaf x but answers like leaf y"]
    right = make_answer(leaves="xyxyy")
    assert list_contradictions(right, LEVELS) == []
    assert describe(right, LEVELS)[0] == "tree: 5 nodes in 2 domains of level leaf as stated"
    assert name_domains(make_answer(leaves=["l0"] * 5), LEVELS) == (("leaf",), (("l2", "l1"),))
    assert name_domains(make_answer(THREE, leaves=["l0"] * 4 + ["y"]), LEVELS)[1] == (("l2", "l1", "y"),)
    two = replace(TREE, levels=(((0, 1, 2, 3, 4),), *TREE.levels), rates_bps=((0,), *TREE.rates_bps))
    assert find_paths(make_answer(two), LEVELS)[0] == (("spine", "s0"), ("leaf", "l1"))
    assert find_paths(make_answer(), LEVELS)[0] == (("leaf", "l1"),)


THREE = replace(TREE, levels=(((0, 2), (1, 3), (4,)),), rates_bps=((0, 0, 0),))
SPINES = replace(TREE, levels=(((0, 2, 4), (1, 3)), *THREE.levels), rates_bps=((0, 0), (0, 0, 0)))


@pytest.mark.parametrize(
    ("answer", "verdict", "contradictions"),
    [
        (make_answer(THREE, "xxxxy"), "3 domains of level leaf", ["nodes of leaf x answer like those of 2 domains"]),
        (
            make_answer(replace(TREE, levels=(((0, 2), (1, 3)),), left_out=((4, "it is late"),)), "xxyyy"),
            "2 domains of level leaf",
            [
                "nodes of leaf x, y answer like those of one domain: h10, h2",
                "nodes of leaf x, y answer like those of one domain: h1, h3",
            ],
        ),
        (make_answer(leaves="x-xyy"), "2 domains of level leaf", []),
        (make_answer(leaves="-yxxy"), "2 domains of level leaf", ["node h3 has leaf x but answers like leaf y"]),
        (make_answer(THREE, "xyxyz", "aaaab"), "3 domains of level leaf as stated", []),
        (make_answer(leaves="xxxxx", spines="abbba"), "2 domains of level leaf", [
            "nodes of leaf a/x, b/x answer like those of one domain: h10, h2",
            "node h4 has leaf a/x but answers like leaf b/x",
        ]),
        (make_answer(SPINES, "xyxyz"), "2 domains of level spine, 3 domains of level leaf as stated", []),
        (make_answer(SPINES, "xyxyx"), "2 domains of level spine, 3 domains of level leaf",
         ["nodes of leaf x answer like those of 2 domains"]),
        (make_answer(SPINES, "xyxyz", "ababb"), "2 domains of level spine, 3 domains of level leaf as stated",
         ["node h4 has spine b but answers like spine a"]),
    ],
    ids=[
        "one is two", "mixed", "one says nothing", "one says nothing and one is elsewhere", "a level less",
        "one name on two spines", "a level more", "two leaves are a spine", "another spine",
    ],
)  # fmt: skip
def test_only_what_is_as_stated_is_said_to_be(answer: Answer, verdict: str, contradictions: list[str]) -> None:
    count = 5 - len(answer.finding.left_out)
    assert describe(answer, LEVELS)[: 1 + len(contradictions)] == [f"tree: {count} nodes in {verdict}", *contradictions]
    assert list_contradictions(answer, LEVELS) == contradictions


def test_what_is_flat_or_left_out_is_told_with_its_figures() -> None:
    flat = TreeFinding(kind="flat", host_rates_bps=(40 * MBIT,) * 5, flow_bps=40 * MBIT)
    assert describe(make_answer(flat), LEVELS) == [
        "flat: no link between 5 nodes is full before those of the hosts; one flow reached 40Mbit",
        "a host's link carries 40Mbit",
    ]
    unknown = TreeFinding(kind="unknown", reason="the nodes have filled no link", flow_bps=5 * MBIT)
    sentence = "cannot tell: the nodes have filled no link; one flow reached 5Mbit"
    assert describe(make_answer(unknown), LEVELS) == [sentence]
    finding = replace(TREE, left_out=((4, "it has not answered in time"),), blocked=((0, 1), (2, 3)))
    said = describe(make_answer(finding), LEVELS)
    assert "node h4 is left out: it has not answered in time" in said
    assert said[-1] == "no UDP echo passes between h10 and h1, h2 and h3"
