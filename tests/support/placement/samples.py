"""Clusters and plans to draw: what a picture is made of, without a search for the best plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from launcher.extensions.pictures.picture import render_html, render_svg
from launcher.meshctl.plan.changes import Change, apply_changes, describe_change
from launcher.meshctl.plan.explanation import explain
from launcher.meshctl.plan.generate import generate
from launcher.model.mesh import Mesh, parse
from launcher.model.node import Node
from launcher.model.topology import sort_nodes
from launcher.placement import planner
from launcher.placement.limits import Costs, Limits, Plan
from rendezvous.reasons import Reason

WHY = (Reason.of("placement/no-node"),)


class Case(NamedTuple):
    """All that a picture is drawn from."""

    plan: Plan
    nodes: Sequence[Node]
    mesh: Mesh
    limits: Limits
    costs: Costs = Costs()
    change: Change = Change(nodes=())
    """With all nodes that are drawn."""

    def svg(self) -> str:
        return render_svg(self.plan, self.mesh, self.limits.levels, self.change)

    def html(self) -> str:
        explanation = explain(self.plan, self.nodes, self.mesh, self.limits, self.costs)
        return render_html(self.plan, self.mesh, self.limits.levels, self.change, explanation)


def hosts(pods: int, leaves: int, count: int, *, slot_count: int = 8, lost: Sequence[str] = ()) -> list[Node]:
    """`pods` of `leaves` of `count` nodes h0, h1, ...; one pod is no level of its own."""
    found = []
    for index in range(pods * leaves * count):
        leaf, pod = f"l{index // count % leaves}", f"p{index // count // leaves}"
        path = (pod, leaf) if pods > 1 else (leaf,)
        found.append(Node(id=f"h{index}", slot_count=slot_count, path=path))
    return [node for node in found if node.id not in lost]


def filled(nodes: Sequence[Node], mesh: str, shape: Sequence[int], levels: Sequence[str] = ("leaf",)) -> Case:
    """Node after node in the order of the tree, as many as the shape needs; the others are spares."""
    grid = parse(mesh)
    world_size = 1
    for size in shape:
        world_size *= size
    ranks, start = {}, 0
    for node in sort_nodes(nodes):
        end = min(start + node.slot_count, world_size)
        if start < end:
            ranks[node.id] = tuple(range(start, end))
        start = end
    spares = tuple(node.id for node in sort_nodes(nodes) if node.id not in ranks)
    plan = Plan(shape=tuple(shape), ranks=ranks, spares=spares, moved=8, reasons=WHY, cost=1552, lower_bound=1008.5)
    return Case(plan, nodes, grid, Limits(levels=tuple(levels)), change=Change(nodes=tuple(nodes)))


def small() -> Case:
    return filled(hosts(1, 1, 8), "pp=2,dp=*,tp=8", (2, 4, 8))


def lost_one() -> Case:
    """The reference story: one of 32 is lost, 28 of 31 are used."""
    return filled(hosts(1, 4, 8, lost=["h0"]), "pp=4,dp=*,tp=8", (4, 7, 8))


def two_groups_a_node() -> Case:
    return filled(hosts(1, 2, 4), "pp=2,dp=*,tp=4", (2, 8, 4))


def racks() -> Case:
    nodes = [
        Node(id=f"rack{rack}-n{host}", slot_count=4, path=(f"rack{rack}",)) for rack in range(8) for host in range(18)
    ]
    return filled(nodes, "pp=8,dp=*,tp=4", (8, 18, 4), ("nvl",))


def many() -> Case:
    return filled(hosts(8, 4, 16), "pp=8,dp=*,tp=8", (8, 64, 8), ("pod", "leaf"))


def too_many() -> Case:
    return filled(hosts(16, 16, 16), "pp=8,dp=*,tp=8", (8, 512, 8), ("pod", "leaf"))


def lone() -> Case:
    return filled([Node(id="only", slot_count=1)], "dp=*", (1,), ())


HOSTILE = "<script>document.documentElement.dataset.error = 1</script>&\"'"


def hostile() -> Case:
    """Names that are markup, that turn the direction of text, that are long, wide or nothing one can see."""
    names = [
        HOSTILE,
        "]]>",
        "\x00\x1b[31m",
        "\u202egnissap",
        "ip-10-0-13-241.eu-central-1.compute.internal",
        "節点" * 9,
    ]
    nodes = [
        Node(id=name, slot_count=4, path=(f"{HOSTILE} {index % 2}", None if index > 3 else "W" * 40))
        for index, name in enumerate(names)
    ]
    return filled(nodes, "pp=2,dp=*,tp=4", (2, 3, 4), ('"><b>', "level 'two'"))


def changed() -> Case:
    """Two of 32 nodes are lost and one joins, which becomes a spare."""
    cluster = generate("dgx:4x8x8")
    after = apply_changes(cluster, ["h3", "h9"], ["h40=l3"])
    mesh, limits, costs = parse("pp=4,dp=*,tp=8"), Limits(levels=cluster.levels), Costs()
    before = planner.plan(cluster.nodes, mesh, limits, costs, None)
    plan = planner.plan(after.nodes, mesh, limits, costs, before)
    return Case(plan, after.nodes, mesh, limits, costs, describe_change(cluster, after, before, plan, mesh))


ALL = (small, lost_one, two_groups_a_node, racks, many, too_many, lone, hostile, changed)
