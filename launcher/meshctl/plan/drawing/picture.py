"""A plan as a picture: the world in the network, and the groups that cross domains.

From top to bottom: the world and its cost in a line, the legend, the map of domains and nodes, then one row of
arcs for every axis whose groups leave their domain. The same plan gives the same bytes, whatever the order of the
nodes. Geometry and colours are values of other modules; here they become one SVG.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.meshctl.plan.drawing import markup
from launcher.meshctl.plan.drawing.arcs import draw_rows, list_crossing_flows
from launcher.meshctl.plan.drawing.lettering import FONTS, format_number, wrap
from launcher.meshctl.plan.drawing.markup import BACKGROUND_COLOUR, MUTED_COLOUR, TEXT_COLOUR
from launcher.meshctl.plan.drawing.scene import Scene, build_scene
from launcher.meshctl.plan.drawing.tiles import SvgBlock, draw_legend, draw_tiles
from launcher.meshctl.plan.flows import TrafficSummary, summarize_traffic
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.text import format_count
from launcher.placement.limits import Costs, Limits, Plan

WIDTH = 1120
MARGIN = 20
BLOCK_GAP = 14
MAP_HEIGHT = 940
ROWS_MAX = 4
TITLE_FONT, FACTS_FONT, SECTION_FONT = 18, 13, 15


def render_svg(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs) -> str:
    """Return the picture as the text of a self-contained SVG file."""
    room = WIDTH - 2 * MARGIN
    shown = build_scene(plan, nodes, mesh, limits.levels)
    book = summarize_traffic(plan, nodes, mesh, limits, costs)
    blocks = [draw_heading(plan, mesh, len(nodes), room), *draw_map(shown, plan, room, MAP_HEIGHT)]
    blocks += draw_flows(book, plan, room)
    return render_sheet(blocks, WIDTH, format_title(plan, mesh, len(nodes)))


def format_title(plan: Plan, mesh: Mesh, node_count: int) -> str:
    """Format the world in one line."""
    sizes = ", ".join(f"{axis.name}={size}" for axis, size in zip(mesh.axes, plan.shape, strict=True))
    ranks = format_count(plan.world_size, "rank")
    return f"mesh {sizes}: {ranks} on {len(plan.ranks):,} of {format_count(node_count, 'node')}"


def format_facts(plan: Plan) -> str:
    """Format the cost of the world, and the spares."""
    said = [f"J {format_number(plan.cost)}"]
    if plan.lower_bound:
        is_reached = plan.cost <= plan.lower_bound
        bound = f"lower bound {format_number(plan.lower_bound)}"
        said.append(f"{bound}: no plan of this world is cheaper" if is_reached else bound)
    said.append(format_count(len(plan.spares), "spare") if plan.spares else "no spares")
    if plan.moved:
        said.append(f"{format_count(plan.moved, 'rank')} moved")
    return " · ".join(said)


def draw_heading(plan: Plan, mesh: Mesh, node_count: int, room: int) -> SvgBlock:
    found: list[str] = []
    y = 0.0
    for line in wrap(format_title(plan, mesh, node_count), room, TITLE_FONT, is_bold=True):
        y += 24
        found.append(markup.render_text(0, y - 6, line, TITLE_FONT, fill=TEXT_COLOUR, weight="700", class_="key"))
    for line in wrap(format_facts(plan), room, FACTS_FONT):
        y += 19
        found.append(markup.render_text(0, y - 4, line, FACTS_FONT, fill=MUTED_COLOUR, class_="key"))
    return SvgBlock(found, y)


def draw_map(scene: Scene, plan: Plan, room: int, height: int) -> list[SvgBlock]:
    """Draw the legend, and the map below it."""
    return [draw_legend(scene, room, bool(plan.spares)), draw_tiles(scene, room, height)]


def draw_flows(traffic: TrafficSummary, plan: Plan, room: int) -> list[SvgBlock]:
    """Draw a row of arcs for the most expensive flows, below a line that describes them."""
    return [
        draw_section_heading(traffic, room),
        *draw_rows(traffic, list_crossing_flows(traffic)[:ROWS_MAX], room, plan.cost),
    ]


def draw_section_heading(traffic: TrafficSummary, room: int) -> SvgBlock:
    """Draw the heading of the arcs: what crosses which domains, and what does not."""
    if traffic.level is None:
        said, rest = "No groups to draw", "all ranks are in one domain, or there are more domains than could be drawn"
    else:
        level = traffic.levels[traffic.level]
        said = f"Groups that leave their {level}"
        inside = [flow.communicator.name for flow in traffic.flows if not flow.arcs]
        rest = f"staying inside one {level}: {', '.join(inside)}" if inside else ""
        more = list_crossing_flows(traffic)[ROWS_MAX:]
        if more:
            names = ", ".join(flow.communicator.name for flow in more)
            rest = "; ".join(part for part in (rest, f"not drawn, as they cost less: {names}") if part)
    found = [markup.render_text(0, 18, said, SECTION_FONT, fill=TEXT_COLOUR, weight="600", class_="key")]
    y = 24.0
    for line in wrap(rest, room, FACTS_FONT):
        y += 18
        found.append(markup.render_text(0, y - 5, line, FACTS_FONT, fill=MUTED_COLOUR, class_="key"))
    return SvgBlock(found, y)


def render_sheet(blocks: Sequence[SvgBlock], width: int, tooltip: str, margin: int = MARGIN) -> str:
    """Render the blocks below each other as an SVG of their own."""
    y = float(margin)
    parts = []
    for block in blocks:
        parts.append(
            markup.render_element("g", block.markup, transform=f"translate({margin} {markup.format_length(y)})")
        )
        y += block.height + BLOCK_GAP
    height = y - BLOCK_GAP + margin
    inner = [
        markup.render_tooltip(tooltip),
        markup.render_rect(0, 0, width, height, fill=BACKGROUND_COLOUR),
        *("\n" + part for part in parts),
        "\n",
    ]
    return (
        markup.render_element(
            "svg",
            inner,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width} {markup.format_length(height)}",
            width=width,
            height=height,
            role="img",
            font_family=FONTS,
        )
        + "\n"
    )
