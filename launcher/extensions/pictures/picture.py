"""A plan as a picture, and as a page of that picture and tables.

Each node is a box in the frames of its domains, filled with the colours of the replicas that its ranks belong to. The
more nodes there are, the smaller are the boxes; those of thousands carry no words, which the tooltip has in any case.
Words are in a font of one width, so that it can be computed, without the font, how many of them fit.

The same plan gives the same bytes, whatever the order of the nodes. Names are data: `_escape` makes them harmless.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

import numpy as np

from launcher.meshctl.plan import render
from launcher.meshctl.plan.changes import LOST, Change
from launcher.meshctl.table import measure_width
from launcher.model.errors import describe
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.ranges import format_ranges
from launcher.model.text import format_amount, format_count
from launcher.model.topology import sort_nodes
from launcher.model.traffic import DEFAULTS
from launcher.placement.explain import Explanation
from launcher.placement.limits import Plan

WIDTH, MARGIN, PAD, GAP, HEADER, FRAME_MIN = 1120, 16, 6, 4, 20, 60
LETTER_WIDTH = 0.61
"""Of a letter, as a part of the font's size: the widest of the usual fonts of one width."""
LEVELS_MAX = 6
"""Levels with frames, the outermost ones."""
REPLICA_AXES = frozenset(name for name, usual in DEFAULTS.items() if usual == DEFAULTS["dp"])
MARKS = {"spare": "spare", LOST: "lost", "changed": "new, or has ranks of another node"}
"""Kind of a node's box -> its meaning."""
BANDS_MAX = 16
"""Colours on one node; of more, as many are taken at equal distances."""

# After Okabe and Ito, made lighter so that dark words are readable on each; six of them are distinguishable with any
# colour blindness. Later replicas repeat them.
HUES = ("#62b1e6", "#eba23c", "#35ab84", "#f2e26b", "#d48fbb", "#e5734d", "#b7d989", "#c2c8ce")
INK = "#1c2733"
"""Of words on a colour, on a dark page, too."""


def _make_rules(*, text: str, paper: str, card: str, line: str, lost: str) -> str:
    """Make the rules that differ between a light and a dark page.

    Colours stand in them as they are: some viewers of SVG do not know variables.
    """
    return f"""
body {{ background: {paper}; color: {text}; }}
text {{ fill: {text}; }}
.sheet, rect.spare, rect.lost {{ fill: {paper}; }}
.frame {{ fill: {card}; stroke: {line}; }}
rect.spare {{ stroke: {line}; }}
rect.lost, .cross {{ stroke: {lost}; }}
text.lost {{ fill: {lost}; }}
.changed {{ stroke: {text}; }}
"""


LIGHT = _make_rules(text=INK, paper="#ffffff", card="#f4f6f8", line="#8b97a3", lost="#b3261e")
DARK = _make_rules(text="#e6edf3", paper="#11161c", card="#1b232c", line="#7d8b99", lost="#ff8a80")
STYLE = f"""
text {{ stroke: none; font-family: ui-monospace, Menlo, DejaVu Sans Mono, monospace; }}
.bold {{ font-weight: 600; }}
.node {{ fill: none; stroke: {INK}; stroke-width: 0.6; }}
.spare, .unknown {{ stroke-width: 1; stroke-dasharray: 4 3; }}
.lost, .changed {{ stroke-width: 2; }}
.cross {{ fill: none; stroke-opacity: 0.5; }}
{LIGHT}
@media (prefers-color-scheme: dark) {{{DARK}}}
text.on {{ fill: {INK}; }}
"""

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 16px; max-width: {width}px; }}
h2 {{ font-size: 17px; margin: 24px 0 4px; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 3px 16px 3px 0; text-align: left; white-space: pre; border-bottom: 1px solid #8b97a366; }}
.numbers td + td, .numbers th + th {{ text-align: right; }}
</style></head><body>
<div>{picture}</div>
{parts}
</body></html>
"""


class BoxSize(NamedTuple):
    """Of a node's box."""

    nodes_max: float
    """Of the pictures with such boxes."""
    width: int
    height: int
    fonts: tuple[float, ...]
    """Of its lines."""


SIZES = (BoxSize(64, 124, 56, (12, 11, 11)), BoxSize(640, 58, 22, (10,)), BoxSize(math.inf, 12, 12, ()))


class Block(NamedTuple):
    """Markup from 0, 0 to the right and downwards, and its size."""

    markup: str
    width: float
    height: float


def render_svg(plan: Plan, mesh: Mesh, levels: Sequence[str], change: Change) -> str:
    """Return the picture as the text of an SVG file."""
    painter = _Painter(plan, mesh, change)
    room = WIDTH - 2 * MARGIN
    tree = _draw_domains(sort_nodes(change.nodes), levels[:LEVELS_MAX], painter.draw_node, room)
    bound = f", lower bound {format_amount(plan.lower_bound)}" if plan.lower_bound else ""
    cost = f"J {format_amount(plan.cost)}{bound}; {format_count(len(plan.spares), 'spare')}"
    title = _format_title(plan, mesh)
    texts = [_draw_text(title, 16, "bold", room), *(_draw_text(text, 12, "", room) for text in (cost, change.sentence))]
    whole = _flow([_flow(texts), painter.draw_legend(room), tree], gap=3 * GAP)
    width, height = max(WIDTH, whole.width + 2 * MARGIN), whole.height + 2 * MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img"><title>{_escape(title)}</title><style>{STYLE}</style>'
        f"{_draw_rect('sheet', width, height)}\n{_move(whole.markup, MARGIN, MARGIN)}</svg>\n"
    )


def render_html(plan: Plan, mesh: Mesh, levels: Sequence[str], change: Change, explanation: Explanation) -> str:
    """Return the page as the text of an HTML file."""
    told = (*map(describe, plan.reasons), render.describe_cost(explanation))
    reasons = "".join(f"<li>{_escape(reason)}" for reason in told if reason)
    parts = [f"<h2>Why this plan</h2><ul>{reasons}</ul>"]

    def add_table(heading: str, rows: Sequence[Sequence[str]], kind: str = "") -> None:
        lines = ["".join(f"<td>{_escape(cell)}" for cell in row) for row in rows]
        lines[0] = lines[0].replace("<td>", "<th>")
        parts.append(f'<h2>{_escape(heading)}</h2><div><table class="{kind}"><tr>')
        parts.append("\n<tr>".join(lines) + "</table></div>")

    add_table("Traffic and cost", render.list_traffic_rows(explanation), "numbers")
    heads = ("order", "J", "beside the plan")
    add_table("Other orders of the nodes", [heads, *render.list_baseline_rows(explanation)])
    if time := plan.step_time:
        heads = ("axis", "time" if time.is_absolute else "share", "waits for")
        add_table(f"Time: {render.describe_time(time)}", [heads, *render.list_time_rows(time)])
    add_table("Ranks of every node", render.list_node_rows(plan, change.nodes, levels, change.remarks))
    picture = render_svg(plan, mesh, levels, change)
    title = _escape(_format_title(plan, mesh))
    return _PAGE.format(title=title, width=WIDTH, picture=picture, parts="\n".join(parts))


def _format_title(plan: Plan, mesh: Mesh) -> str:
    world = render.describe_world(plan, mesh)
    return f"mesh {world}" if mesh.given_name else world


class _Painter:
    """Draws nodes, and the legend of their colours.

    Those are the coordinates of one axis: the elastic one, else that of data parallelism, else the first of several.
    """

    def __init__(self, plan: Plan, mesh: Mesh, change: Change) -> None:
        self.plan, self.mesh, self.remarks = plan, mesh, change.remarks
        self.size = next(size for size in SIZES if len(change.nodes) <= size.nodes_max)
        self.kinds: set[str] = set()  # of the boxes that have been drawn
        elastic = [index for index, axis in enumerate(mesh.axes) if axis.size is None]
        data = [index for index, axis in enumerate(mesh.axes) if axis.name.lower() in REPLICA_AXES]
        wide = [index for index, size in enumerate(plan.shape) if size > 1]
        self.axis = (*elastic, *data, *wide, 0)[0]
        self.places = np.unravel_index(np.arange(plan.world_size), plan.shape)
        self.replica_of: list[int] = self.places[self.axis].tolist()

    def draw_node(self, node: Node) -> Block:
        """Draw a node's box with its colours and as many words as fit."""
        width, height = self.size.width, self.size.height
        ranks, remark = self.plan.ranks.get(node.id, ()), self.remarks.get(node.id, "")
        kind = ("changed" if remark else "") if ranks else LOST if remark == LOST else "spare"
        self.kinds.add(kind)
        if ranks:
            said = [self._format_coordinates(ranks), f"{format_ranges(ranks)} {remark}".strip()]
        else:
            said = [LOST if kind == LOST else f"spare {remark}".strip()]
        runs = [(replica, len(list(run))) for replica, run in groupby(self.replica_of[rank] for rank in ranks)]
        runs = runs[:: max(1, -(-len(runs) // BANDS_MAX))]
        total, x, parts = sum(count for _, count in runs), 0.0, []
        for replica, count in runs:
            band = width * count / total
            parts.append(_move(_draw_colour(replica, band, height), x, 0))
            x += band
        parts.append(_draw_box(kind, width, height))
        lines = [line for line in (node.id, *said) if line][: len(self.size.fonts)]
        y = (height - sum(self.size.fonts[: len(lines)]) * 1.3) / 2
        ink = "on" if ranks else kind
        for line, font, weight in zip(lines, self.size.fonts, ("bold ", "", ""), strict=False):
            y += font * 1.3
            shown = _shorten(line, width - 4, font)
            parts.append(_draw_words(shown, font, weight + ink, width / 2, y - font * 0.35, ' text-anchor="middle"'))
        tip = "; ".join(filter(None, (node.id, "/".join(each or "?" for each in node.path), *said)))
        return Block(f"\n<g><title>{_escape(tip)}</title>{''.join(parts)}</g>", width, height)

    def _format_coordinates(self, ranks: Sequence[int]) -> str:
        """Format the coordinates on the axes of which the node has only a part."""
        found = []
        for axis, size, places in zip(self.mesh.axes, self.plan.shape, self.places, strict=True):
            here = np.unique(places[list(ranks)]).tolist()
            if len(here) < size:
                found.append(f"{axis.name} {format_ranges(here)}")
        return " · ".join(found)

    def draw_legend(self, room: float) -> Block:
        """Draw the meaning of the colours, and of the boxes that have been drawn."""
        name, size = self.mesh.axes[self.axis].name, self.plan.shape[self.axis]
        items = [
            (_draw_colour(index, 14, 14) + _draw_box("", 14, 14), f"{index}" if index else f"{name} 0")
            for index in range(min(size, len(HUES)))
        ]
        if size > len(HUES):
            items.append(("", f"... {size - 1:,}, the colours repeat"))
        items += [(_draw_box(kind, 14, 14), text) for kind, text in MARKS.items() if kind in self.kinds]
        blocks = []
        for swatch, text in items:
            x = 20 if swatch else 0
            width = x + measure_width(text) * 12 * LETTER_WIDTH
            blocks.append(Block(swatch + _draw_words(text, 12, "", x, 11), width, 14))
        return _flow(blocks, room, 3 * GAP)


def _draw_domains(
    nodes: Sequence[Node], levels: Sequence[str], draw: Callable[[Node], Block], room: float, depth: int = 0
) -> Block:
    """Draw nodes in the order of the tree, in frames of the levels from `depth` on."""
    if depth == len(levels):
        boxes = [draw(node) for node in nodes]
        step = boxes[0].width + GAP
        return _flow(boxes, min(room, step * _choose_columns(len(boxes))))
    frames = []
    for domain, run in groupby(nodes, lambda node: node.path[depth]):
        members = list(run)
        inner = _draw_domains(members, levels, draw, room - 2 * PAD, depth + 1)
        width, height = max(inner.width, FRAME_MIN) + 2 * PAD, inner.height + HEADER + PAD
        label = f"{levels[depth]} {domain or 'unknown'}"
        frame = _draw_rect("frame" if domain else "frame unknown", width, height)
        tip = f"<title>{_escape(f'{label}, ' + format_count(len(members), 'node'))}</title>"
        words = _draw_words(_shorten(label, width - 2 * PAD, 11), 11, "", PAD, 14)
        frames.append(Block(f"\n<g>{tip}{frame}{words}</g>{_move(inner.markup, PAD, HEADER)}", width, height))
    step = max(frame.width for frame in frames) + 2 * GAP
    row_count = -(-len(frames) // max(1, int((room + 2 * GAP) // step)))
    return _flow(frames, step * -(-len(frames) // row_count), 2 * GAP)


def _choose_columns(count: int) -> int:
    """Choose how many boxes stand in a row: few holes in the last row, and about as many rows."""
    root = math.isqrt(count)
    return min(range(max(1, root // 2), 2 * root + 1), key=lambda columns: (-count % columns, abs(columns**2 - count)))


def _flow(blocks: Sequence[Block], room: float = -1, gap: float = GAP) -> Block:
    """Put the blocks beside each other, in as many rows as `room` demands; without it, below each other."""
    parts, x, y, width, row_height = [], 0.0, 0.0, 0.0, 0.0
    for block in blocks:
        if row_height and x + block.width > room:
            x, y, row_height = 0.0, y + row_height + gap, 0.0
        parts.append(_move(block.markup, x, y))
        x += block.width + gap
        width, row_height = max(width, x - gap), max(row_height, block.height)
    return Block("".join(parts), width, y + row_height)


def _draw_text(text: str, font: float, kind: str, room: float) -> Block:
    lines = textwrap.wrap(text, int(room / font / LETTER_WIDTH), break_on_hyphens=False)
    return _flow([Block(_draw_words(line, font, kind, 0, font), 0, font * 1.3) for line in lines], gap=0)


def _draw_words(text: str, font: float, kind: str, x: float, y: float, more: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{font:g}"{more}>{_escape(text)}</text>'


def _draw_box(kind: str, width: float, height: float) -> str:
    """Draw the border of a node. What is lost is crossed out."""
    cross = f'<path class="cross" d="M0 0L{width} {height}M{width} 0L0 {height}"/>' if kind == LOST else ""
    return _draw_rect(f"node {kind}".rstrip(), width, height) + cross


def _draw_colour(replica: int, width: float, height: float) -> str:
    return f'<rect fill="{HUES[replica % len(HUES)]}" width="{width:g}" height="{height:g}"/>'


def _draw_rect(kind: str, width: float, height: float) -> str:
    return f'<rect class="{kind}" width="{width:g}" height="{height:g}"/>'


def _move(markup: str, x: float, y: float) -> str:
    return f'<g transform="translate({x:g} {y:g})">{markup}</g>' if x or y else markup


def _shorten(text: str, room: float, font: float) -> str:
    """Return the text, or its end behind an ellipsis, such that it fits: names mostly differ at the end."""
    most = int(room / font / LETTER_WIDTH)
    if measure_width(text) <= most:
        return text
    kept = text[-most:]
    while kept and measure_width(kept) >= most:
        kept = kept[1:]
    return f"…{kept}"


def _escape(text: str) -> str:
    """Escape text as markup; letters that cannot be seen are replaced: control characters, changes of direction."""
    return escape("".join(letter if letter.isprintable() else "\ufffd" for letter in text))
