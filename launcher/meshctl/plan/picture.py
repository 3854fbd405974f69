"""A plan as a picture: the world in the network, and the groups that cross domains.

From top to bottom: the world and its cost in a line, the legend, the map with a frame for each domain and a tile for
each node, then one row of arcs for every communicator whose groups leave their domain. After a change of the cluster
there are two maps, with the same nodes at the same places: before and after. The same plan gives the same bytes,
whatever the order of the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby, pairwise

from msgspec.structs import replace

from launcher.meshctl.plan.changes import Change
from launcher.meshctl.plan.flows import Flow, TrafficSummary, summarize_traffic
from launcher.meshctl.plan.node_map import Map, build_map, draw_legend, draw_map
from launcher.meshctl.plan.render import compare_costs, describe_world, format_number
from launcher.meshctl.plan.svg import (
    SvgBlock,
    draw_lines,
    format_length,
    measure_width,
    render_element,
    render_group,
    render_rect,
    render_sheet,
    render_text,
    shorten,
    stack_blocks,
)
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.text import format_count
from launcher.placement.explain import ComparedOrder, describe_cost
from launcher.placement.limits import Costs, Limits, Plan

WIDTH, MARGIN, MAP_HEIGHT, FLOWS_MAX, HALVES_GAP = 1120, 20, 940, 4, 24
ARCS_MAX, ARCS_LABELLED, STROKE_MAX, PITCH_MAX, BOX_HEIGHT, OUTER_GAP = 96, 12, 12, 120, 24, 10


def render_svg(
    plan: Plan,
    nodes: Sequence[Node],
    mesh: Mesh,
    limits: Limits,
    costs: Costs,
    change: Change | None = None,
    orders: Sequence[ComparedOrder] = (),
) -> str:
    """Return the picture as the text of a self-contained SVG file. `orders`: to be drawn beside the plan."""
    room = WIDTH - 2 * MARGIN
    traffic = summarize_traffic(plan, nodes, mesh, limits, costs)
    title = format_title(plan, mesh, len(nodes))
    said = [format_facts(plan, change), describe_cost(traffic.explanation), change.sentence if change else ""]
    lines = [(title, 18, 24, "bold"), *((line, 13, 19, "muted") for line in said if line)]
    blocks = [SvgBlock(*draw_lines(lines, room))]
    maps = build_maps(plan, nodes, mesh, limits, change)
    blocks.append(draw_legend(maps[-1][1], room))
    for name, shown in maps:
        if change:
            blocks.append(_draw_map_heading(name, change.before if name == "before" else plan, mesh, room))
        blocks.append(draw_map(shown, room, MAP_HEIGHT // len(maps)))
    blocks += [_draw_section_heading(traffic, room)]
    blocks += [draw_arcs(flow, traffic, room, plan.cost) for flow in traffic.crossing_flows[:FLOWS_MAX]]
    if orders:
        blocks.append(SvgBlock(*draw_lines([("Other orders of the nodes", 15, 24, "bold")], room)))
        half = (room - HALVES_GAP) // 2
        drawn = [
            stack_blocks([draw_order_heading(plan, order, half), draw_map(shown, half, MAP_HEIGHT // 2)])
            for order, shown in zip(orders, build_order_maps(plan, nodes, mesh, limits, orders), strict=True)
        ]
        blocks += [_put_beside(drawn[index : index + 2], half + HALVES_GAP) for index in range(0, len(drawn), 2)]
    return render_sheet(blocks, WIDTH, title, MARGIN) + "\n"


def build_maps(
    plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, change: Change | None
) -> list[tuple[str, Map]]:
    """Build the map of the plan, and before it that of the plan before; each with its name."""
    if change is None:
        return [("the plan", build_map(plan, nodes, mesh, limits.levels))]
    before = change.before
    return [
        ("before", build_map(before, change.nodes, mesh, limits.levels, change.marks_before, like=plan)),
        ("after", build_map(plan, change.nodes, mesh, limits.levels, change.marks_after, like=before)),
    ]


def _draw_map_heading(name: str, plan: Plan, mesh: Mesh, room: int) -> SvgBlock:
    said = f"{describe_world(plan, mesh)}{f', J {format_number(plan.cost)}' if plan.cost else ''}"
    return SvgBlock(*draw_lines([(f"{name.capitalize()}: {said}", 15, 20, "bold")], room))


def build_order_maps(
    plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, orders: Sequence[ComparedOrder]
) -> list[Map]:
    """Build a map for every other order, in the colours of the plan's."""
    plans = (replace(plan, ranks=order.ranks) for order in orders)
    return [build_map(other, nodes, mesh, limits.levels, like=plan) for other in plans]


def draw_order_heading(plan: Plan, order: ComparedOrder, room: int) -> SvgBlock:
    """Draw the name of another order, and its cost beside the plan's."""
    said = [f"J {format_number(order.cost)}", compare_costs(order.cost, Fraction(plan.cost))]
    said += [f"not valid: {', '.join(order.faults)}"] if order.faults else []
    return SvgBlock(*draw_lines([(order.name, 13, 18, "bold"), (" · ".join(said), 12, 16, "muted")], room))


def _put_beside(blocks: Sequence[SvgBlock], step: int) -> SvgBlock:
    parts = [
        render_element("g", *block.markup, transform=f"translate({index * step} 0)")
        for index, block in enumerate(blocks)
    ]
    return SvgBlock(parts, max(block.height for block in blocks))


def format_title(plan: Plan, mesh: Mesh, node_count: int) -> str:
    """Format the world in one line."""
    sizes = ", ".join(f"{axis.name}={size}" for axis, size in zip(mesh.axes, plan.shape, strict=True))
    ranks = format_count(plan.world_size, "rank")
    return f"mesh {sizes}: {ranks} on {len(plan.ranks):,} of {format_count(node_count, 'node')}"


def format_facts(plan: Plan, change: Change | None = None) -> str:
    """Format the cost of the world, that of the world before, and the spares."""
    said = [f"J {format_number(plan.cost)}"]
    if change and change.before.cost:
        said.append(f"{format_number(change.before.cost)} before")
    if plan.lower_bound:
        best = ": no plan of this world is cheaper" if plan.cost <= plan.lower_bound else ""
        said.append(f"lower bound {format_number(plan.lower_bound)}{best}")
    said.append(format_count(len(plan.spares), "spare") if plan.spares else "no spares")
    if plan.moved and not change:  # which says so itself
        said.append(f"{format_count(plan.moved, 'rank')} moved")
    return " · ".join(said)


def _draw_section_heading(traffic: TrafficSummary, room: int) -> SvgBlock:
    """Draw the heading of the arcs: what crosses which domains, and what does not."""
    if traffic.level is None:
        said, rest = "No groups to draw", "all ranks are in one domain, or there are more domains than could be drawn"
    else:
        level = traffic.levels[traffic.level]
        said = f"Groups that leave their {level}"
        names = (
            (f"staying inside one {level}", [flow for flow in traffic.flows if not flow.arcs]),
            ("not drawn, as they cost less", traffic.crossing_flows[FLOWS_MAX:]),
        )
        rest = "; ".join(
            f"{what}: {', '.join(flow.communicator.name for flow in some)}" for what, some in names if some
        )
    return SvgBlock(*draw_lines([(said, 15, 24, "bold"), (rest, 13, 18, "muted")], room))


# The arcs between domains.


def draw_arcs(flow: Flow, traffic: TrafficSummary, room: int, cost: int | float) -> SvgBlock:
    """Draw one flow: a heading, its heaviest arcs, and the row of domains. All arcs of a picture share one scale."""
    one, drawn = flow.communicator, flow.arcs[:ARCS_MAX]
    title = f"{one.name}: {one.kind} of weight {format_number(one.weight)}"
    found, y = draw_lines([(title, 13, 17, "bold"), (_describe_flow(flow, traffic, cost), 11, 15, "muted")], room)
    middles, pitch = _place_domains(traffic, room)
    heaviest = max(each.arcs[0].amount for each in traffic.crossing_flows)
    farthest = max(middles[arc.high] - middles[arc.low] for arc in drawn)
    high = min(120.0, 34 + farthest / 4)
    base = y + 20 + high
    arcs, amounts = [], []
    taken: list[tuple[float, float, float]] = []
    for arc in drawn:
        left, right = middles[arc.low], middles[arc.high]
        height = high * (0.3 + 0.7 * (right - left) / farthest)  # the farther apart its ends, the higher
        peak = base - height * 4 / 3  # of the handles; the curve reaches three quarters
        points = [format_length(each) for each in (left, base, left, peak, right, peak, right, base)]
        width = max(1, round(min(STROKE_MAX, max(2, pitch * 0.4)) * float(arc.amount / heaviest), 1))
        path = f"M{' '.join(points[:2])}C{' '.join(points[2:])}"
        amount = format_number(arc.amount)
        tip = f"{_format_domain(traffic, arc.low)} to {_format_domain(traffic, arc.high)}: {amount}"
        arcs.append(render_group(tip, render_element("path", class_="arc", d=path, stroke_width=width)))
        half = measure_width(amount, 11) / 2 + 2
        x, line = min(max((left + right) / 2, half), room - half), max(base - height + 4, y + 20)
        # The amount stands at the peak, unless a heavier one's is there.
        if len(drawn) <= ARCS_LABELLED and all(
            abs(x - other) >= half + other_half or abs(line - other_line) >= 14
            for other, other_half, other_line in taken
        ):
            taken.append((x, half, line))
            amounts.append(render_text("amount middle", x, line, amount, 11))
    return SvgBlock([*found, *reversed(arcs), *amounts, *_draw_domains(traffic, middles, pitch, base)], base + 44)


def _describe_flow(flow: Flow, traffic: TrafficSummary, cost: int | float) -> str:
    """Describe how many groups cross, and the cost of that."""
    assert traffic.level is not None
    verb = "leaves its" if flow.crossing_count == 1 else "leave their"
    said = f"{flow.crossing_count:,} of {format_count(flow.group_count, 'group')} {verb}"
    said += f" {traffic.levels[traffic.level]}, traffic {format_number(flow.leaving[traffic.level])}"
    if cost:
        share = format_number(round(100 * flow.cost / Fraction(cost), 1))
        said += f"; all levels together cost {format_number(flow.cost)}, {share}% of J"
    if len(flow.arcs) > ARCS_MAX:
        rest = sum(arc.amount for arc in flow.arcs[ARCS_MAX:]) / sum(arc.amount for arc in flow.arcs)
        missing = format_number(round(100 * rest, 1))
        said += f"; the {ARCS_MAX} heaviest of {len(flow.arcs)} pairs are drawn, {missing}% is not"
    return said


def _place_domains(traffic: TrafficSummary, room: int) -> tuple[list[float], float]:
    """Return the middle of every domain, and its width with the gap."""
    outer = traffic.outer_names
    gap_count = sum(one != other for one, other in pairwise(outer))
    gap = min(OUTER_GAP, room / 4 / max(gap_count, 1))
    pitch = min(PITCH_MAX, (room - gap_count * gap) / len(outer))
    middles = [pitch / 2]
    for one, other in pairwise(outer):
        middles.append(middles[-1] + pitch + (gap if one != other else 0))
    return middles, pitch


def _format_domain(traffic: TrafficSummary, index: int) -> str:
    return "/".join(filter(None, (traffic.outer_names[index], traffic.names[index])))


def _draw_domains(traffic: TrafficSummary, middles: Sequence[float], pitch: float, top: float) -> list[str]:
    """Draw the row of domains, with the domain around them below; without room for all names, some of them below."""
    side = max(pitch - min(4, pitch / 4), 1)
    found = []
    for index, middle in enumerate(middles):
        box = render_rect("domain", middle - side / 2, top, side, BOX_HEIGHT, rx=min(3, side / 4))
        found.append(render_group(_format_domain(traffic, index), box))
    names = [shorten(name, side - 6, 11) for name in traffic.names]
    below: list[tuple[float, str]] = []
    if all(names):
        found += [render_text("label middle", x, top + 16, name, 11) for x, name in zip(middles, names, strict=True)]
    if len(set(traffic.outer_names)) > 1:
        for outer, run in groupby(range(len(middles)), traffic.outer_names.__getitem__):
            inner = [middles[index] for index in run]
            first, last = inner[0], inner[-1]
            below.append(((first + last) / 2, shorten(outer, last - first + side, 11)))
    elif not all(names):
        shown = [shorten(name, 12 * 11, 11) for name in traffic.names]
        step = int(max(measure_width(name, 11) for name in shown) / pitch) + 2
        for x, name in list(zip(middles, shown, strict=True))[::step]:
            if measure_width(name, 11) / 2 <= min(x, middles[-1] + pitch / 2 - x):
                below.append((x, name))
    return found + [render_text("key muted middle", x, top + BOX_HEIGHT + 15, name, 11) for x, name in below if name]
