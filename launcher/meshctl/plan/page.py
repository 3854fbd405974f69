"""A plan as a page: page.html with the pictures, one view at a time, and the figures behind them.

The page is self-contained: no network, no library; it also carries the plan as JSON, for programs. Without JavaScript,
and on paper, all views are below each other; a few lines of script hide all but the chosen one. Every view is drawn
twice, for a wide window and for a phone, because a picture that is only scaled down is unreadable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from importlib.resources import files
from string import Template

from msgspec.structs import replace

from launcher.meshctl.plan import picture, svg
from launcher.meshctl.plan.changes import Change
from launcher.meshctl.plan.flows import TrafficSummary, summarize_traffic
from launcher.meshctl.plan.node_map import Map, draw_legend, draw_map
from launcher.meshctl.plan.picture import draw_arcs
from launcher.meshctl.plan.render import (
    compare_costs,
    describe_time,
    format_json,
    format_number,
    list_time_rows,
)
from launcher.meshctl.plan.svg import SvgBlock, escape_text
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.placement.explain import ComparedOrder, Explanation, describe_cost
from launcher.placement.limits import Costs, Limits, Plan, StepTime

WIDTHS = (("wide", picture.WIDTH, picture.MAP_HEIGHT), ("narrow", 380, 1400))
MARGIN = 2
SIZES = [(width - 2 * MARGIN, height) for _, width, height in WIDTHS]
"""What is left of each for a map: its room, and about how high it may be."""


def render_html(
    plan: Plan,
    nodes: Sequence[Node],
    mesh: Mesh,
    limits: Limits,
    costs: Costs,
    change: Change | None = None,
    orders: Sequence[ComparedOrder] = (),
) -> str:
    """Return the page as the text of an HTML file. `orders`: each gets a view."""
    traffic = summarize_traffic(plan, nodes, mesh, limits, costs)
    figures = []
    *maps, (name, shown) = picture.build_maps(plan, nodes, mesh, limits, change)
    for axes in (shown.axes, shown.axes[::-1])[: max(1, len(shown.axes))]:
        said = f"by {axes[0].name}" if axes else "nodes"
        turned = replace(shown, axes=axes)
        figures.append((f"{name}, {said}" if change else said, [_draw_map(turned, *size) for size in SIZES]))
    figures += [(name, [_draw_map(other, *size) for size in SIZES]) for name, other in maps]
    for flow in traffic.crossing_flows:
        arcs = [[draw_arcs(flow, traffic, room, plan.cost)] for room, _ in SIZES]
        figures.append((f"traffic of {flow.communicator.name}", arcs))
    for order, other in zip(orders, picture.build_order_maps(plan, nodes, mesh, limits, orders), strict=True):
        drawn = [[picture.draw_order_heading(plan, order, size[0]), *_draw_map(other, *size)] for size in SIZES]
        figures.append((order.name, drawn))
    facts = [picture.format_facts(plan, change), describe_cost(traffic.explanation), change.sentence if change else ""]
    return Template(files(__package__).joinpath("page.html").read_text("utf-8")).substitute(
        style=svg.STYLE,
        width=picture.WIDTH,
        colour=svg.TEXT_COLOUR,
        dark_colour=svg.DARK.text,
        dark_paper=svg.DARK.paper,
        title=escape_text(picture.format_title(plan, mesh, len(nodes))),
        facts="<br>".join(escape_text(fact) for fact in facts if fact),
        figures="\n".join(_render_figure(index, name, drawn) for index, (name, drawn) in enumerate(figures)),
        table="\n".join(_list_rows(traffic)),
        orders="\n".join(_list_orders(plan, traffic.explanation)),
        time="\n".join(_render_time(plan.step_time)) if plan.step_time else "",
        reasons="".join(f"<li>{escape_text(reason)}</li>" for reason in plan.reasons),
        plan=format_json(plan).replace("<", "\\u003c"),
    )


def _draw_map(shown: Map, room: int, height: int) -> list[SvgBlock]:
    return [draw_legend(shown, room), draw_map(shown, room, height)]


def _render_figure(index: int, name: str, drawn: Iterable[Sequence[SvgBlock]]) -> str:
    sheets = (
        svg.render_sheet(blocks, width, name, MARGIN, kind)
        for (kind, width, _), blocks in zip(WIDTHS, drawn, strict=True)
    )
    return f'<figure id="view-{index}" aria-label="{escape_text(name)}">{"".join(sheets)}</figure>'


def _render_time(time: StepTime) -> Iterator[str]:
    """Render the time of a step's communication, by axis, with the links that it waits for."""
    kind = "time" if time.is_absolute else "share"
    yield "<h2>Time by axis</h2>"
    yield f"<p>From the rates of the links: {describe_time(time)}.</p>"
    yield f'<div class="scroll"><table><tr><th scope=col>axis<th scope=col>{kind}<th scope=col>waits for'
    for row in list_time_rows(time):
        yield "<tr>" + "".join(f"<td>{escape_text(cell)}</td>" for cell in row)
    yield "</table></div>"


def _list_rows(traffic: TrafficSummary) -> Iterator[str]:
    """List the rows of the table: the traffic that leaves the domains of every level, for every axis, and its cost."""
    rows = [[flow.communicator.name, *map(format_number, (*flow.leaving, flow.cost))] for flow in traffic.flows]
    heads = ["axis", *(f"leaves {level}" for level in traffic.levels), "cost"]
    yield "<tr>" + "".join(f"<th scope=col>{escape_text(head)}</th>" for head in heads)
    for row in (*rows, ["level cost", *map(format_number, traffic.level_costs), ""]):
        yield "<tr>" + "".join(f"<td>{escape_text(cell)}</td>" for cell in row)


def _list_orders(plan: Plan, explanation: Explanation) -> Iterator[str]:
    """List the rows of the table of other orders: their cost beside the plan's."""
    yield "<tr><th scope=col>order of the nodes<th scope=col>J<th scope=col>beside the plan"
    rows: list[tuple[str, Fraction, str]] = [("this plan", Fraction(plan.cost), "")]
    for baseline in explanation.baselines:
        compared = compare_costs(baseline.cost, Fraction(plan.cost))
        rows.append((baseline.name, baseline.cost, f"{compared}{', not valid' if baseline.faults else ''}"))
    for name, cost, compared in rows:
        cells = (name, format_number(cost), compared)
        yield "<tr>" + "".join(f"<td>{escape_text(cell)}</td>" for cell in cells)
