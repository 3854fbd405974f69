"""A plan as a picture: what the world looks like in the network, and which groups cross it.

From above to below: the world and its cost in a line, the legend, the map of domains and nodes, then one row of
arcs for every axis whose groups leave their domain. The same plan makes the same bytes, whatever the order of the
nodes. Geometry and colours are values of other modules; here they become one SVG.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Costs, Limits, Plan
from launcher.preview import markup
from launcher.preview.arcs import crossing, rows
from launcher.preview.flows import Ledger, ledger
from launcher.preview.lettering import FONTS, amount, counted, wrap
from launcher.preview.markup import INK, PAPER, SOFT
from launcher.preview.scene import Scene, scene
from launcher.preview.tiles import Block, legend, tiles

WIDTH = 1120
MARGIN = 20
BLOCK_GAP = 14
MAP_HEIGHT = 940
ROWS_MAX = 4
TITLE_FONT, FACTS_FONT, SECTION_FONT = 18, 13, 15


def svg(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs) -> str:
    """The picture as the text of an SVG file, which needs nothing besides itself."""
    room = WIDTH - 2 * MARGIN
    shown = scene(plan, nodes, mesh, limits.levels)
    book = ledger(plan, nodes, mesh, limits, costs)
    blocks = [heading(plan, mesh, len(nodes), room), *map_blocks(shown, plan, room, MAP_HEIGHT)]
    blocks += arc_blocks(book, plan, room)
    return sheet(blocks, WIDTH, title(plan, mesh, len(nodes)))


def title(plan: Plan, mesh: Mesh, node_count: int) -> str:
    """The world in one line."""
    sizes = ", ".join(f"{axis.name}={size}" for axis, size in zip(mesh.axes, plan.shape, strict=True))
    ranks = counted(plan.world_size, "rank")
    return f"mesh {sizes}: {ranks} on {len(plan.ranks):,} of {counted(node_count, 'node')}"


def facts(plan: Plan) -> str:
    """What the world costs, and what is left over."""
    said = [f"J {amount(plan.cost)}"]
    if plan.lower_bound:
        is_reached = plan.cost <= plan.lower_bound
        bound = f"lower bound {amount(plan.lower_bound)}"
        said.append(f"{bound}: no plan of this world is cheaper" if is_reached else bound)
    said.append(counted(len(plan.spares), "spare") if plan.spares else "no spares")
    if plan.moved:
        said.append(f"{counted(plan.moved, 'rank')} moved")
    return " · ".join(said)


def heading(plan: Plan, mesh: Mesh, node_count: int, room: int) -> Block:
    found: list[str] = []
    y = 0.0
    for line in wrap(title(plan, mesh, node_count), room, TITLE_FONT, is_bold=True):
        y += 24
        found.append(markup.text(0, y - 6, line, TITLE_FONT, fill=INK, weight="700", class_="key"))
    for line in wrap(facts(plan), room, FACTS_FONT):
        y += 19
        found.append(markup.text(0, y - 4, line, FACTS_FONT, fill=SOFT, class_="key"))
    return Block(found, y)


def map_blocks(shown: Scene, plan: Plan, room: int, height: int) -> list[Block]:
    """The legend, and the map below it."""
    return [legend(shown, room, bool(plan.spares)), tiles(shown, room, height)]


def arc_blocks(book: Ledger, plan: Plan, room: int) -> list[Block]:
    """A row of arcs for the most expensive flows, below a line that says what they are."""
    return [section(book, room), *rows(book, crossing(book)[:ROWS_MAX], room, plan.cost)]


def section(book: Ledger, room: int) -> Block:
    """The heading of the arcs: what crosses which domains, and what does not."""
    if book.level is None:
        said, rest = "No groups to draw", "all ranks are in one domain, or there are more domains than could be drawn"
    else:
        level = book.levels[book.level]
        said = f"Groups that leave their {level}"
        inside = [flow.communicator.name for flow in book.flows if not flow.arcs]
        rest = f"staying inside one {level}: {', '.join(inside)}" if inside else ""
        more = crossing(book)[ROWS_MAX:]
        if more:
            names = ", ".join(flow.communicator.name for flow in more)
            rest = "; ".join(part for part in (rest, f"not drawn, as they cost less: {names}") if part)
    found = [markup.text(0, 18, said, SECTION_FONT, fill=INK, weight="600", class_="key")]
    y = 24.0
    for line in wrap(rest, room, FACTS_FONT):
        y += 18
        found.append(markup.text(0, y - 5, line, FACTS_FONT, fill=SOFT, class_="key"))
    return Block(found, y)


def sheet(blocks: Sequence[Block], width: int, told: str, margin: int = MARGIN) -> str:
    """The blocks below each other on a page of their own."""
    y = float(margin)
    parts = []
    for block in blocks:
        parts.append(markup.element("g", block.markup, transform=f"translate({margin} {markup.shortly(y)})"))
        y += block.height + BLOCK_GAP
    height = y - BLOCK_GAP + margin
    inner = [markup.tip(told), markup.box(0, 0, width, height, fill=PAPER), *("\n" + part for part in parts), "\n"]
    return (
        markup.element(
            "svg",
            inner,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width} {markup.shortly(height)}",
            width=width,
            height=height,
            role="img",
            font_family=FONTS,
        )
        + "\n"
    )
