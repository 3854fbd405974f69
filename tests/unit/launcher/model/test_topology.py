"""The tree of domains: who shares one with whom, what domains are called, and what it costs to leave them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from launcher.model.node import Node
from launcher.model.topology import Tree, build_tree, make_natural_key, resolve_level_costs, sort_nodes

Path = tuple[str | None, ...]


def nodes(*paths: Path) -> list[Node]:
    return [Node(id=f"h{number}", slot_count=8, path=path) for number, path in enumerate(paths)]


def domains(found: Tree) -> list[str]:
    """Each node and the names of its domains, outermost first."""
    rows = [map(names.__getitem__, row) for names, row in zip(found.names, found.domains, strict=True)]
    return [" ".join((node.id, *place)) for node, *place in zip(found.nodes, *rows, strict=True)]


def test_nodes_share_a_domain_down_to_where_they_agree_and_one_of_unknown_level_is_alone() -> None:
    found = build_tree(nodes(("p0", "l0"), ("p1", "l0"), ("p0", "l1"), ("p0", "l0")), ["pod", "leaf"])
    assert found.levels == ("pod", "leaf")
    assert [node.id for node in found.nodes] == ["h0", "h3", "h2", "h1"]
    assert found.domains == ((0, 0, 0, 1), (0, 0, 1, 2))
    assert found.names == (("p0", "p1"), ("p0/l0", "p0/l1", "p1/l0"))
    members = nodes(("p0", None, "n1"), ("p0", None, "n1"), ("p0", None, "n2"), ("p0", None), ("p0",), (), (None,))
    assert sorted(domains(build_tree(members))) == [
        "h0 p0 p0/n1 p0/n1", "h1 p0 p0/n1 p0/n1", "h2 p0 p0/n2 p0/n2", "h3 p0 p0/h3 p0/h3", "h4 p0 p0/h4 p0/h4",
        "h5 h5 h5 h5", "h6 h6 h6 h6",
    ]  # fmt: skip


def test_names_stay_apart_and_levels_have_names_and_costs() -> None:
    members = [Node(id="a", slot_count=1), Node(id="b", slot_count=1, path=("a",))]
    assert build_tree(members).domains == ((0, 1),)
    members = nodes(("leaf1",), ("leaf01",), ("leaf1",), ("leaf01",))
    assert [node.id for node in sort_nodes(members)] == ["h1", "h3", "h0", "h2"]
    assert make_natural_key("h9") < make_natural_key("h10") < make_natural_key("h10a") < make_natural_key("i0")
    assert make_natural_key("9" * 5000) < make_natural_key("9" * 5000 + "a")
    assert build_tree(nodes(("a", "b")), ["pod"]).levels == ("pod", "level 2")
    assert build_tree(nodes(("a",), ("a",)), ["pod", "leaf"]).domains == ((0, 0), (0, 1))
    assert build_tree([], ["pod"]) == Tree((), ("pod",), ((),), ((),))
    assert build_tree(nodes(())) == Tree(tuple(nodes(())), (), (), ())
    assert resolve_level_costs([], {}) == (1,)
    assert resolve_level_costs(["zone", "pod", "leaf"], {}) == (8, 4, 2, 1)
    assert resolve_level_costs(["pod", "leaf"], {"host": 0, "leaf": 2.5, "rack": 9}) == (4, 2.5, 0)


ENTRIES = st.sampled_from(["a", "b1", "b01", "b10", None])
PATHS = st.lists(ENTRIES, max_size=3).map(tuple)


@given(st.lists(PATHS, max_size=8).flatmap(lambda paths: st.permutations(nodes(*paths))))
def test_the_tree_is_the_same_in_whatever_order_the_nodes_come(shuffled: list[Node]) -> None:
    assert build_tree(shuffled) == build_tree(sorted(shuffled, key=lambda node: node.id))


@given(st.lists(PATHS, max_size=8))
def test_domains_are_runs_of_nodes_and_lie_inside_each_other(paths: list[Path]) -> None:
    found = build_tree(nodes(*paths), ["one", "two", "three"])
    for names, row in zip(found.names, found.domains, strict=True):
        runs = [number for number, _ in itertools.groupby(row)]
        assert runs == list(range(len(names)))
    for outer, inner in itertools.pairwise(found.domains):
        assert len(set(zip(inner, outer, strict=True))) == len(set(inner))


@given(st.lists(PATHS, min_size=2, max_size=2))
def test_two_nodes_share_a_domain_down_to_the_last_level_they_agree_on(paths: list[Path]) -> None:
    found = build_tree(nodes(*paths), ["one", "two", "three"])
    shared = sum(row[0] == row[1] for row in found.domains)
    one, other = paths
    alike = [
        level + 1
        for level in range(min(map(len, paths)))
        if one[level] is not None and one[: level + 1] == other[: level + 1]
    ]
    assert shared == max(alike, default=0)
