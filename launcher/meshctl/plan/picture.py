"""A plan as a picture: the world in the network, and the groups that cross domains.

From top to bottom: the world and its cost in a line, the legend, the map with a frame for each domain and a tile for
each node, then one row of arcs for every communicator whose groups leave their domain. Two axes of the mesh become
colours, the pipeline's stages the hue and the data-parallel groups the shade; colour is never the only sign, as the
coordinates stand on the tile where there is room, and always in the tooltip of a browser. The same plan gives the same
bytes, whatever the order of the nodes.

All tiles of a map have one size, and all frames of a level one width; the layout is the number of children in a row
at every level. A picture is drawn without a browser, so the width of a word is estimated from the widest of the usual
fonts: a word that fits here fits everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from html import escape
from itertools import groupby, pairwise, product
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from launcher.meshctl.plan.flows import Flow, TrafficSummary, summarize_traffic
from launcher.meshctl.plan.render import format_number
from launcher.model import ranges
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.text import format_count
from launcher.model.topology import Tree, build_tree
from launcher.model.traffic import DEFAULTS
from launcher.placement.limits import Costs, Limits, Plan

WIDTH, MARGIN, BLOCK_GAP, MAP_HEIGHT = 1120, 20, 14, 940
TILES_MAX, FRAMES_MAX, FLOWS_MAX = 1024, 300, 4
FRAME_GAP, BAND_MIN, SWATCH_SIZE, HUES_LISTED = 8, 4, 14, 16
ARCS_MAX, ARCS_LABELLED, STROKE_MAX, PITCH_MAX, BOX_HEIGHT, OUTER_GAP = 96, 12, 12, 120, 24, 10
STAGE_AXES = frozenset(name for name, usual in DEFAULTS.items() if usual == DEFAULTS["pp"])
GROUP_AXES = frozenset(name for name, usual in DEFAULTS.items() if usual == DEFAULTS["dp"])

# Based on those that Okabe and Ito proposed, made lighter so that dark text is readable on each and on every shade. Six
# are distinguishable with any colour blindness; later coordinates repeat them. A test checks contrast and distances.
HUES = ("#62b1e6", "#eba23c", "#35ab84", "#f2e26b", "#d48fbb", "#e5734d", "#b7d989", "#c2c8ce")
PALEST = 55  # per cent of white in the palest shade
TEXT_COLOUR = "#1c2733"
STYLE = f"""
svg, body {{ font-family: system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif; }}
text {{ fill: {TEXT_COLOUR}; }}
.muted {{ fill: #4a5866; }}
.bold {{ font-weight: 600; }}
.middle {{ text-anchor: middle; }}
.sheet {{ fill: #fff; }}
.frame, .domain {{ fill: #f4f6f8; stroke: #8b97a3; }}
.outer {{ fill: #fff; }}
.unknown {{ stroke-dasharray: 4 3; }}
.tile {{ fill: none; }}
.tile, .swatch {{ stroke: {TEXT_COLOUR}; stroke-width: 0.6; }}
.spare {{ fill: #fff; stroke: #4a5866; stroke-width: 1; stroke-dasharray: 3 2; }}
.arc {{ fill: none; stroke: #2b6cb0; stroke-opacity: 0.55; }}
.amount {{ paint-order: stroke; stroke: #fff; stroke-width: 3; }}
"""


class SvgBlock(NamedTuple):
    """A part of a picture below others: its markup, from 0, 0 downwards, and its height."""

    markup: list[str]
    height: float


def render_svg(plan: Plan, nodes: Sequence[Node], mesh: Mesh, limits: Limits, costs: Costs) -> str:
    """Return the picture as the text of a self-contained SVG file."""
    room = WIDTH - 2 * MARGIN
    traffic = summarize_traffic(plan, nodes, mesh, limits, costs)
    title = format_title(plan, mesh, len(nodes))
    heading, y = _draw_lines([(title, 18, 24, "bold"), (format_facts(plan), 13, 19, "muted")], room)
    blocks = [SvgBlock(heading, y), *draw_map(build_map(plan, nodes, mesh, limits.levels), room, MAP_HEIGHT)]
    blocks += [_draw_section_heading(traffic, room)]
    blocks += [draw_arcs(flow, traffic, room, plan.cost) for flow in traffic.crossing_flows[:FLOWS_MAX]]
    return render_sheet(blocks, WIDTH, title, MARGIN) + "\n"


def format_title(plan: Plan, mesh: Mesh, node_count: int) -> str:
    """Format the world in one line."""
    sizes = ", ".join(f"{axis.name}={size}" for axis, size in zip(mesh.axes, plan.shape, strict=True))
    ranks = format_count(plan.world_size, "rank")
    return f"mesh {sizes}: {ranks} on {len(plan.ranks):,} of {format_count(node_count, 'node')}"


def format_facts(plan: Plan) -> str:
    """Format the cost of the world, and the spares."""
    said = [f"J {format_number(plan.cost)}"]
    if plan.lower_bound:
        best = ": no plan of this world is cheaper" if plan.cost <= plan.lower_bound else ""
        said.append(f"lower bound {format_number(plan.lower_bound)}{best}")
    said.append(format_count(len(plan.spares), "spare") if plan.spares else "no spares")
    if plan.moved:
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
    return SvgBlock(*_draw_lines([(said, 15, 24, "bold"), (rest, 13, 18, "muted")], room))


def render_sheet(blocks: Sequence[SvgBlock], width: int, tooltip: str, margin: int, kind: str = "") -> str:
    """Render the blocks below each other as an SVG of their own. `kind`: its class in a page, which has STYLE then."""
    y = float(margin)
    parts = []
    for block in blocks:
        parts.append("\n" + _render_element("g", *block.markup, transform=f"translate({margin} {_format_length(y)})"))
        y += block.height + BLOCK_GAP
    height = y - BLOCK_GAP + margin
    return _render_element(
        "svg",
        *(_render_element("title", escape_text(tooltip)), *([] if kind else [_render_element("style", STYLE)])),
        *(_render_rect("sheet", 0, 0, width, height), *parts, "\n"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {_format_length(height)}",
        width=width,
        height=height,
        role="img",
        **({"class_": kind} if kind else {}),
    )


# The map: a box for every domain, and a tile for every node.


class Box(Struct, frozen=True, kw_only=True):
    """A domain, or without `children` a tile: a node, or some neighbours in a cluster of too many nodes to read.

    `level` and `name` are empty for the whole and for tiles, the name also for nodes of an unknown domain.
    """

    level: str = ""
    name: str = ""
    nodes: Sequence[Node]
    children: Sequence[Box] = ()


class ColouredAxis(NamedTuple):
    """An axis of the mesh that is shown as colour. `coordinates`: one for every rank."""

    name: str
    size: int
    coordinates: Sequence[int]


class Map(Struct, frozen=True, kw_only=True):
    """`axes`: at most two, the first is the hue, the other the shade. `notes`: what was left out, to be readable."""

    root: Box
    depth: int
    ranks: Mapping[str, tuple[int, ...]]
    axes: tuple[ColouredAxis, ...]
    notes: tuple[str, ...]


def build_map(plan: Plan, nodes: Sequence[Node], mesh: Mesh, levels: Sequence[str]) -> Map:
    """Build the map of a plan; the same for every order of the nodes."""
    tree = build_tree(nodes, levels)
    useful = [level for level, names in enumerate(tree.names) if len(names) < len(nodes)]  # puts some together
    every = range(len(nodes))
    shown = useful
    while len(leaves := _group_by_domain(tree, every, shown)) > FRAMES_MAX and shown:
        shown = shown[:-1]
    together = 1
    while sum(-(-len(leaf) // together) for leaf in leaves) > max(TILES_MAX, len(leaves)):
        together *= 2
    notes = [f"a cell stands for up to {format_count(together, 'neighbouring node')}"] if together > 1 else []
    if hidden := [tree.levels[level] for level in useful[len(shown) :]]:
        notes.append(f"domains of {' and '.join(hidden)} are too many to be drawn")

    def build(positions: Sequence[int], depth: int, level: str = "", name: str = "") -> Box:
        children: list[Box] = []
        if depth == len(shown):
            starts = range(0, len(positions), together)
            groups = [positions[start : start + together] for start in starts]
            children = [Box(nodes=[tree.nodes[position] for position in group]) for group in groups]
        else:
            for group in _group_by_domain(tree, positions, shown[depth : depth + 1]):
                label = _find_name(tree, group[0], shown[: depth + 1])
                children.append(build(group, depth + 1, tree.levels[shown[depth]], label))
        inside = [node for child in children for node in child.nodes]
        return Box(level=level, name=name, nodes=inside, children=children)

    places = np.unravel_index(np.arange(plan.world_size), plan.shape)
    axes = (
        ColouredAxis(mesh.axes[axis].name, plan.shape[axis], places[axis].tolist()) for axis in choose_axes(plan, mesh)
    )
    return Map(root=build(every, 0), depth=len(shown), ranks=plan.ranks, axes=tuple(axes), notes=tuple(notes))


def choose_axes(plan: Plan, mesh: Mesh) -> list[int]:
    """Choose the axes for hue and shade: those of stages and of groups, else the outermost that are spread over nodes.

    An axis of which every node has all coordinates would carry no information.
    """
    names, sizes = [axis.name.lower() for axis in mesh.axes], plan.shape
    places = np.unravel_index(np.arange(plan.world_size), sizes)
    wide = [axis for axis, size in enumerate(sizes) if size > 1]

    def is_spread(axis: int) -> bool:
        return any(len(np.unique(places[axis][list(ranks)])) < sizes[axis] for ranks in plan.ranks.values())

    rest = [axis for axis in wide if is_spread(axis)] or wide[:1]
    hue = [axis for axis in rest if names[axis] in STAGE_AXES][:1]
    rest = [axis for axis in rest if axis not in hue]
    groups = [axis for axis in rest if names[axis] in GROUP_AXES]
    shade = (groups or [axis for axis in rest if mesh.axes[axis].size is None])[:1]
    rest = [axis for axis in rest if axis not in shade]
    return [*(hue or rest[:1]), *(shade or rest[not hue :][:1])]


def _find_domain(tree: Tree, position: int, level: int) -> int | None:
    """Return the node's domain; None if it is unknown from this level on, which makes the node a domain of its own."""
    path = tree.nodes[position].path
    return tree.domains[level][position] if any(name is not None for name in path[level:]) else None


def _group_by_domain(tree: Tree, positions: Sequence[int], levels: Sequence[int]) -> list[list[int]]:
    """Group the positions by their domains of `levels`, in order."""
    groups: dict[tuple[int | None, ...], list[int]] = {}
    for position in positions:
        groups.setdefault(tuple(_find_domain(tree, position, level) for level in levels), []).append(position)
    return list(groups.values())


def _find_name(tree: Tree, position: int, levels: Sequence[int]) -> str:
    """Return the name of the domain of the last of `levels` inside that of the one before, "l3" of "p0/l3"."""
    if _find_domain(tree, position, levels[-1]) is None:
        return ""
    outer, name = ["", *(tree.names[level][tree.domains[level][position]] for level in levels)][-2:]
    return name.removeprefix(f"{outer}/")


class TileSize(NamedTuple):
    """Sizes that go together. `name_font`, `caption_font`, `ranks_font`: of a tile's lines, 0 for none."""

    width_min: int
    width_max: int
    height: int
    gap: int
    pad: int
    header_height: int
    header_font: float
    name_font: float
    caption_font: float
    ranks_font: float


TILE_SIZES = (
    TileSize(112, 148, 60, 6, 10, 25, 12.5, 12.5, 12, 10.5),
    TileSize(84, 118, 42, 5, 9, 23, 12, 11.5, 11, 0),
    TileSize(52, 90, 32, 4, 8, 21, 11, 10, 10, 0),
    TileSize(34, 64, 20, 3, 7, 19, 10.5, 0, 10, 0),
    TileSize(22, 46, 15, 2, 6, 17, 10, 0, 9, 0),
    TileSize(12, 26, 11, 2, 5, 15, 9, 0, 0, 0),
    TileSize(5, 16, 7, 1, 4, 14, 9, 0, 0, 0),
)


class LevelGrid(NamedTuple):
    """The children of every box of one level: how many in a row, and the size of each."""

    columns: int
    width: int
    height: int
    gap: int


def arrange(counts: Sequence[int], width: int, height: int) -> tuple[TileSize, list[LevelGrid]]:
    """Return the largest tiles that fit `width` and, if any do, `height`, and a grid per level, the innermost last.

    `counts`: most children of a box per level. All boxes of a level have one size.
    """
    best: tuple[tuple[int, ...], TileSize, list[LevelGrid]] | None = None
    for columns in product(*({-(-count // rows) for rows in range(1, min(count, 40) + 1)} for count in counts)):
        # Rows with a hole at the end look untidy, most of all the inner ones; it is worth some height to have none.
        ragged = sum(40 * (at + 1) for at, count in enumerate(counts) if count % columns[at])
        for number, size in enumerate(TILE_SIZES):
            room = width
            for column in columns[:-1]:
                room = (room - (column - 1) * FRAME_GAP) // column - 2 * size.pad
            tile_width = min(size.width_max, (room + size.gap) // columns[-1] - size.gap)
            grids = _stack_grids(counts, columns, size, max(1, tile_width))
            total = _measure_height(grids, counts)
            score = (max(0, size.width_min - tile_width), max(0, total - height), number, total + ragged, *columns)
            if best is None or score < best[0]:
                best = score, size, grids
    assert best is not None
    return best[1:]


def _stack_grids(counts: Sequence[int], columns: Sequence[int], size: TileSize, tile_width: int) -> list[LevelGrid]:
    grids = [LevelGrid(columns[-1], tile_width, size.height, size.gap)]
    for depth in range(len(columns) - 2, -1, -1):
        inner = grids[0]
        width = inner.columns * (inner.width + inner.gap) - inner.gap + 2 * size.pad
        height = size.header_height + _measure_height(grids, counts[depth + 1 :]) + size.pad
        grids.insert(0, LevelGrid(columns[depth], width, height, FRAME_GAP))
    return grids


def _measure_height(grids: Sequence[LevelGrid], counts: Sequence[int]) -> int:
    """Return the height of a box whose children are in the first of `grids`."""
    rows = -(-counts[0] // grids[0].columns)
    return rows * (grids[0].height + grids[0].gap) - grids[0].gap


def draw_map(shown: Map, room: int, height: int) -> list[SvgBlock]:
    """Draw the legend, and the map below it, `room` wide and at most about `height` high."""
    counts, boxes = [], [shown.root]
    for _ in range(shown.depth + 1):
        counts.append(max(len(box.children) for box in boxes))
        boxes = [child for box in boxes for child in box.children]
    size, grids = arrange(counts, room, height)
    painter = _MapPainter(shown, size, grids, boxes)
    painter.draw_children(shown.root, 0, 0, 0)
    return [_draw_legend(shown, room), SvgBlock(painter.markup, _measure_height(grids, counts))]


Span = tuple[tuple[int, ...], int]
"""A run of ranks with the same coordinates on the coloured axes: those, and how many ranks."""


class _MapPainter:
    """Draws a map. Captions are in full, else numbers, else the first number: what fits every tile of one span."""

    def __init__(self, shown: Map, size: TileSize, grids: Sequence[LevelGrid], tiles: Sequence[Box]) -> None:
        self.map, self.size, self.grids = shown, size, grids
        self.tile_width = grids[-1].width
        self.markup: list[str] = []
        plain = [spans for spans in map(self._split_ranks, tiles) if len(spans) == 1]
        fitting = (form for form in range(3) if all(self._can_fit(self._format_caption(one, form)) for one in plain))
        self._form = next(fitting, 3) if size.caption_font else 3

    def draw_children(self, box: Box, depth: int, left: int, top: int, place: str = "") -> None:
        """Draw what is inside a box with its upper left corner there; `place` describes it: "pod p0, leaf l3"."""
        grid = self.grids[depth]
        for index, child in enumerate(box.children):
            row, column = divmod(index, grid.columns)
            x, y = left + column * (grid.width + grid.gap), top + row * (grid.height + grid.gap)
            if not child.children:
                self._draw_tile(child, x, y, place)
                continue
            label = f"{child.level} {child.name or 'unknown'}"
            self._draw_frame(child, label, x, y, grid, depth + 2 == len(self.grids))
            inside = f"{place}, {label}" if place else label
            self.draw_children(child, depth + 1, x + self.size.pad, y + self.size.header_height, inside)

    def _draw_frame(self, box: Box, label: str, x: int, y: int, grid: LevelGrid, is_inner: bool) -> None:
        kind = ("frame" if is_inner else "frame outer") + ("" if box.name else " unknown")
        border = _render_rect(kind, x, y, grid.width, grid.height, rx=4)
        self.markup.append(_render_group(f"{label}: {format_count(len(box.nodes), 'node')}", border))
        room, font = grid.width - self.size.pad - 2, self.size.header_font
        if shown := shorten(label, room, font) or shorten(box.name or "unknown", room, font):
            baseline = y + self.size.header_height / 2 + font * 0.36
            self.markup.append(_render_text("name muted", x + self.size.pad, baseline, shown, font))

    def _draw_tile(self, tile: Box, x: int, y: int, place: str) -> None:
        spans, ids = self._split_ranks(tile), [node.id for node in tile.nodes]
        held = [rank for id in ids for rank in self.map.ranks.get(id, ())]
        name = ids[0] if len(ids) == 1 else f"{ids[0]} … {ids[-1]}"
        spare_count = sum(not self.map.ranks.get(id) for id in ids)
        said = [name, format_count(len(ids), "node") if len(ids) > 1 else "", place]
        ranks = f"rank{'s' * (len(held) > 1)} {format_ranges(held)}" if held else ""
        if held:
            said += [ranks, ", ".join(f"{axis} {here}" for axis, here in self._format_coordinates(spans))]
        if spare_count:
            said.append("spare" if len(ids) == 1 else format_count(spare_count, "spare"))
        used = self.tile_width * (len(ids) - spare_count) / len(ids)
        border = _render_rect("tile" if spans else "tile spare", x, y, self.tile_width, self.size.height, rx=2)
        parts = (*self._draw_bands(spans, x, y, used), border, *self._draw_words(name, ranks, spans, x, y))
        self.markup.append(_render_group("; ".join(filter(None, said)), *parts))

    def _split_ranks(self, tile: Box) -> list[Span]:
        ranks = (rank for node in tile.nodes for rank in self.map.ranks.get(node.id, ()))
        places = (tuple(axis.coordinates[rank] for axis in self.map.axes) for rank in ranks)
        return [(here, len(list(run))) for here, run in groupby(places)]

    def _draw_bands(self, spans: list[Span], x: float, y: int, room: float) -> list[str]:
        """Draw the colours of a tile from the left; the part of its spare nodes stays empty."""
        most = max(1, int(room / BAND_MIN))
        if len(spans) > most:
            # As many as are visible, each with the colour of the middle of its ranks.
            every = [here for here, count in spans for _ in range(count)]
            spans = [(every[len(every) * (2 * index + 1) // (2 * most)], 1) for index in range(most)]
        total, found = sum(count for _, count in spans), []
        for index, (here, count) in enumerate(spans):
            width = room * count / total
            # A thin gap separates bands of similar shades.
            gap = 0 if index == len(spans) - 1 or width < 2 * BAND_MIN else 1
            hue, shade = (*here, 0, 0)[:2]
            fill = choose_colour(hue, shade, self.map.axes[1].size if len(here) > 1 else 1)
            found.append(_render_rect("", x, y, width - gap, self.size.height, fill=fill))
            x += width
        return found

    def _format_coordinates(self, spans: list[Span]) -> list[tuple[str, str]]:
        """Return the name of each coloured axis, and its coordinates on the tile."""
        return [(axis.name, format_ranges(here[at] for here, _ in spans)) for at, axis in enumerate(self.map.axes)]

    def _format_caption(self, spans: list[Span], form: int) -> str:
        if not spans:
            return "" if form else "spare"
        pairs = self._format_coordinates(spans)
        if form:
            return "·".join(here for _, here in pairs[: 3 - form])
        return " · ".join(f"{axis} {here}" for axis, here in pairs)

    def _can_fit(self, caption: str) -> bool:
        return measure_width(caption, self.size.caption_font) <= self.tile_width - 4

    def _draw_words(self, name: str, ranks: str, spans: list[Span], x: int, y: int) -> list[str]:
        """Draw the lines of a tile, as many as its size has and as fit, centred one below the other."""
        size, room = self.size, self.tile_width - 8
        forms = range(self._form, max(2, self._form + 1) if self._form < 3 else 3)
        captions = [self._format_caption(spans, form) for form in forms]  # several spans may only fit as numbers
        lines = [
            (shorten(name, room, size.name_font, is_bold=True) if size.name_font else "", size.name_font, "bold"),
            (next(filter(self._can_fit, captions), ""), size.caption_font, "" if spans else "muted"),
            (shorten(ranks, room, size.ranks_font) if size.ranks_font else "", size.ranks_font, ""),
        ]
        lines = [line for line in lines if line[0]]
        cursor, found = y + size.height / 2 - sum(font for _, font, _ in lines) * 1.32 / 2, []
        for words, font, kind in lines:
            cursor += font * 1.32
            middle = x + self.tile_width / 2
            found.append(_render_text(f"label middle {kind}".rstrip(), middle, cursor - font * 0.3, words, font))
        return found


def choose_colour(hue: int, shade: int = 0, shade_count: int = 1) -> str:
    """Return the colour of coordinate `hue` of one axis and coordinate `shade` of `shade_count` of the other."""
    base = HUES[hue % len(HUES)]
    # In integers, so that every machine writes the same digits.
    white, steps = PALEST * shade, 100 * max(shade_count - 1, 1)
    parts = (int(base[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{(part * (steps - white) + 255 * white + steps // 2) // steps:02x}" for part in parts)


def _draw_legend(shown: Map, room: int) -> SvgBlock:
    """Draw the meaning of the colours, in as many lines as necessary."""
    items: list[tuple[Sequence[str], str]] = []
    for hue in shown.axes[:1]:
        count = hue.size if hue.size <= HUES_LISTED else len(HUES)
        items += [([choose_colour(index)], str(index) if index else f"{hue.name} 0") for index in range(count)]
        if hue.size > count:
            items.append(([], f"… {hue.size - 1}"))
        if hue.size > len(HUES):
            items.append(([], f"the colours repeat every {len(HUES)}"))
    for shade in shown.axes[1:]:
        steps = min(shade.size, 7)
        ramp = [choose_colour(0, index, steps) for index in range(steps)]
        items.append((ramp, f"{shade.name} 0 to {shade.size - 1}, strong to pale"))
    if any(node.id not in shown.ranks for node in shown.root.nodes):
        items.append(([""], "spare"))
    items += [([], note) for note in shown.notes]
    x, y, found = 0.0, 0.0, []
    for swatches, words in items:
        lead = len(swatches) * SWATCH_SIZE + (5 if swatches else 0)
        words = shorten(words, room - lead, 12)
        width = lead + measure_width(words, 12)
        if x and x + width > room:
            x, y = 0.0, y + 22
        for index, fill in enumerate(swatches):
            kind, attributes = ("swatch", {"fill": fill}) if fill else ("spare", {})
            found.append(_render_rect(kind, x + index * SWATCH_SIZE, y + 2, SWATCH_SIZE, SWATCH_SIZE, **attributes))
        found.append(_render_text("key", x + lead, y + 13.5, words, 12))
        x += width + 14
    return SvgBlock(found, y + 18)


# The arcs between domains.


def draw_arcs(flow: Flow, traffic: TrafficSummary, room: int, cost: int | float) -> SvgBlock:
    """Draw one flow: a heading, its heaviest arcs, and the row of domains. All arcs of a picture share one scale."""
    one, drawn = flow.communicator, flow.arcs[:ARCS_MAX]
    title = f"{one.name}: {one.kind} of weight {format_number(one.weight)}"
    found, y = _draw_lines([(title, 13, 17, "bold"), (_describe_flow(flow, traffic, cost), 11, 15, "muted")], room)
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
        points = [_format_length(each) for each in (left, base, left, peak, right, peak, right, base)]
        width = max(1, round(min(STROKE_MAX, max(2, pitch * 0.4)) * float(arc.amount / heaviest), 1))
        path = f"M{' '.join(points[:2])}C{' '.join(points[2:])}"
        amount = format_number(arc.amount)
        tip = f"{_format_domain(traffic, arc.low)} to {_format_domain(traffic, arc.high)}: {amount}"
        arcs.append(_render_group(tip, _render_element("path", class_="arc", d=path, stroke_width=width)))
        half = measure_width(amount, 11) / 2 + 2
        x, line = min(max((left + right) / 2, half), room - half), max(base - height + 4, y + 20)
        # The amount stands at the peak, unless a heavier one's is there.
        if len(drawn) <= ARCS_LABELLED and all(
            abs(x - other) >= half + other_half or abs(line - other_line) >= 14
            for other, other_half, other_line in taken
        ):
            taken.append((x, half, line))
            amounts.append(_render_text("amount middle", x, line, amount, 11))
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
        box = _render_rect("domain", middle - side / 2, top, side, BOX_HEIGHT, rx=min(3, side / 4))
        found.append(_render_group(_format_domain(traffic, index), box))
    names = [shorten(name, side - 6, 11) for name in traffic.names]
    below: list[tuple[float, str]] = []
    if all(names):
        found += [_render_text("label middle", x, top + 16, name, 11) for x, name in zip(middles, names, strict=True)]
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
    return found + [_render_text("key muted middle", x, top + BOX_HEIGHT + 15, name, 11) for x, name in below if name]


# Text and markup.

# Widths of letters as parts of the font size, after DejaVu Sans; bold ones are wider by at most _BOLD.
_LETTER_WIDTHS = {
    **dict.fromkeys("ijlI.,:;'|!·", 0.36),
    **dict.fromkeys("frt()[]{}/\\-` ", 0.42),
    **dict.fromkeys("wAVXYBEFGKLPRSTUZ", 0.82),
    **dict.fromkeys("CDHNOQ~+=<>…\u2013", 0.86),
    **dict.fromkeys("mMW@%&", 1.05),
}
_BOLD = 1.13


def measure_width(text: str, size: float, is_bold: bool = False) -> float:
    """Return an upper bound of the width of `text`, in the units of the font's `size`."""
    usual = (0.66 if letter < "\u0080" else 1.0 if letter < "\u0250" else 1.4 for letter in text)
    widths = (_LETTER_WIDTHS.get(letter, width) for letter, width in zip(text, usual, strict=True))
    return sum(widths) * size * (_BOLD if is_bold else 1)


def shorten(text: str, room: float, size: float, is_bold: bool = False) -> str:
    """Return `text`, or its beginning and end with an ellipsis between, such that it fits; empty if nothing does.

    Names of nodes mostly differ at the end, so the end keeps the larger part.
    """
    if measure_width(text, size, is_bold) <= room:
        return text
    for kept in range(min(len(text) - 1, int(room / size / 0.3)), 2, -1):
        found = f"{text[: kept // 3]}…{text[len(text) - (kept - kept // 3) :]}"
        if measure_width(found, size, is_bold) <= room:
            return found
    return ""


def wrap(text: str, room: float, size: float, is_bold: bool = False) -> list[str]:
    """Wrap `text` to lines that fit; a single word that does not is shortened."""
    lines: list[str] = []
    for word in text.split():
        if lines and measure_width(f"{lines[-1]} {word}", size, is_bold) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(shorten(word, room, size, is_bold))
    return lines


def format_ranges(numbers: Iterable[int]) -> str:
    """Format 0 to 7 and 16 as "0-7, 16" with a dash: the numbers, runs of them as their ends."""
    return ranges.format_ranges(sorted(set(numbers))).replace("-", "\u2013")


def _draw_lines(texts: Iterable[tuple[str, float, float, str]], room: int) -> tuple[list[str], float]:
    """Draw texts below each other, each with its font size, height of a line and classes; return the height, too."""
    found, y = [], 0.0
    for text, font, leading, kind in texts:
        for line in wrap(text, room, font, is_bold=kind == "bold"):
            y += leading
            found.append(_render_text(f"key {kind}", 0, y - leading / 4, line, font))
    return found, y


def escape_text(text: str) -> str:
    """Escape text as markup, so that a node named `<script>` is only a name; letters that cannot be seen are replaced.

    Those are control characters, halves of characters and changes of direction.
    """
    return escape("".join(letter if letter.isprintable() else "\ufffd" for letter in text))


def _render_element(name: str, *inner: str, **attributes: float | str) -> str:
    """One element; `font_size=13` becomes font-size="13", `class_` becomes class. `inner` is markup already."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{value if isinstance(value, str) else _format_length(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{pairs}>{''.join(inner)}</{name}>" if inner else f"<{name}{pairs}/>"


def _format_length(number: float) -> str:
    """A length with at most two decimals."""
    return f"{number:.2f}".rstrip("0").rstrip(".") if number % 1 else str(int(number))


def _render_group(text: str, *inner: str) -> str:
    """Group elements with the text that a browser shows when the pointer rests on them."""
    return _render_element("g", _render_element("title", escape_text(text)), *inner)


def _render_text(kind: str, x: float, y: float, text: str, font: float) -> str:
    """Text of these classes whose baseline starts at x, y, or has its middle there."""
    return _render_element("text", escape_text(text), class_=kind, x=x, y=y, font_size=font)


def _render_rect(kind: str, x: float, y: float, width: float, height: float, **attributes: float | str) -> str:
    named = {"class_": kind} if kind else {}
    return _render_element("rect", **named, x=x, y=y, width=width, height=height, **attributes)
