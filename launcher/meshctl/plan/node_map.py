"""The map of a plan: a frame for each domain of the network, a tile for each node, and the legend.

Two axes of the mesh become colours, the pipeline's stages the hue and the data-parallel groups the shade; colour is
never the only sign, as the coordinates stand on the tile where there is room, and always in the tooltip of a browser.
All tiles of a map have one size, and all frames of a level one width; the layout is the number of children in a row
at every level.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby, product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from launcher.meshctl.plan.svg import (
    HUES,
    SvgBlock,
    choose_colour,
    escape_text,
    format_length,
    format_ranges,
    measure_width,
    render_element,
    render_group,
    render_rect,
    render_sheet,
    render_text,
    shorten,
)
from launcher.model.mesh import Axis, Mesh
from launcher.model.node import Node
from launcher.model.text import format_count
from launcher.model.topology import Tree, build_tree
from launcher.model.traffic import DEFAULTS
from launcher.placement.limits import Plan

TILES_MAX, FRAMES_MAX = 1100, 300  # 1,024 nodes, and those that are lost or new beside them
RANKS_MAX = 1 << 20  # of a job whose mesh is drawn
CORNER_MAX = 11  # of the triangle on a tile whose ranks came from elsewhere
MARKS = {
    "lost": "lost",
    "moved": "took over ranks of another node",
    "new": "new",
    "failed": "failed",
    "missing": "does not answer",
}
"""Kind of a mark -> its meaning in the legend. The picture's style has a class is-KIND for each."""
_CROSSED, _CORNERED = ("lost", "failed"), ("moved", "new")  # colour is never the only sign
FRAME_GAP, BAND_MIN, SWATCH_SIZE, HUES_LISTED = 8, 4, 14, 16
STAGE_AXES = frozenset(name for name, usual in DEFAULTS.items() if usual == DEFAULTS["pp"])
GROUP_AXES = frozenset(name for name, usual in DEFAULTS.items() if usual == DEFAULTS["dp"])


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


class NodeMark(NamedTuple):
    """What is special about a node. `kind`: of MARKS, or another word, which only becomes a class of the tile.

    `text`: for the tooltip, "8 ranks from h3". `line`: on a large tile in place of the ranks, if it fits.
    """

    kind: str
    text: str = ""
    line: str = ""


class Map(Struct, frozen=True, kw_only=True):
    """`axes`: at most two, the first is the hue, the other the shade. `notes`: what was left out, to be readable.

    `marks`: node id -> what is special about it.
    """

    root: Box
    depth: int
    ranks: Mapping[str, tuple[int, ...]]
    axes: tuple[ColouredAxis, ...]
    notes: tuple[str, ...]
    marks: Mapping[str, NodeMark] = field(default_factory=dict)


def build_map(
    plan: Plan,
    nodes: Sequence[Node],
    mesh: Mesh,
    levels: Sequence[str],
    marks: Mapping[str, NodeMark] = MappingProxyType({}),
    like: Plan | None = None,
) -> Map:
    """Build the map of a plan; the same for every order of the nodes.

    `like`: a plan of the same mesh with whose map this one is to be compared: equal coordinates have equal colours.
    """
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

    places = np.unravel_index(np.arange(math.prod(plan.shape)), plan.shape) if plan.shape else ()
    axes = []
    for axis in choose_axes(like or plan, mesh) if plan.shape else ():
        size = max(plan.shape[axis], like.shape[axis] if like else 1)
        axes.append(ColouredAxis(mesh.axes[axis].name, size, places[axis].tolist()))
    return Map(
        root=build(every, 0), depth=len(shown), ranks=plan.ranks, axes=tuple(axes), notes=tuple(notes), marks=marks
    )


def choose_axes(plan: Plan, mesh: Mesh) -> list[int]:
    """Choose the axes for hue and shade: those of stages and of groups, else the outermost that are spread over nodes.

    An axis of which every node has all coordinates would carry no information.
    """
    names, sizes = [axis.name.lower() for axis in mesh.axes], plan.shape
    places = np.unravel_index(np.arange(math.prod(sizes)), sizes)
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


def draw_map(shown: Map, room: int, height: int) -> SvgBlock:
    """Draw the map, `room` wide and at most about `height` high."""
    counts, boxes = [], [shown.root]
    for _ in range(shown.depth + 1):
        counts.append(max(len(box.children) for box in boxes))
        boxes = [child for box in boxes for child in box.children]
    size, grids = arrange(counts, room, height)
    painter = _MapPainter(shown, size, grids, boxes)
    painter.draw_children(shown.root, 0, 0, 0)
    return SvgBlock(painter.markup, _measure_height(grids, counts))


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
        border = render_rect(kind, x, y, grid.width, grid.height, rx=4)
        self.markup.append(render_group(f"{label}: {format_count(len(box.nodes), 'node')}", border))
        room, font = grid.width - self.size.pad - 2, self.size.header_font
        whole = label if measure_width(label, font) <= room else box.name or "unknown"
        if shown := shorten(whole, room, font):
            baseline = y + self.size.header_height / 2 + font * 0.36
            self.markup.append(render_text("name muted", x + self.size.pad, baseline, shown, font))

    def _draw_tile(self, tile: Box, x: int, y: int, place: str) -> None:
        spans, ids = self._split_ranks(tile), [node.id for node in tile.nodes]
        held = [rank for id in ids for rank in self.map.ranks.get(id, ())]
        name = ids[0] if len(ids) == 1 else f"{ids[0]} … {ids[-1]}"
        empty = [id for id in ids if not self.map.ranks.get(id)]
        spare_count = sum(id not in self.map.marks or self.map.marks[id].kind not in MARKS for id in empty)
        said = [name, format_count(len(ids), "node") if len(ids) > 1 else "", place]
        ranks = f"rank{'s' * (len(held) > 1)} {format_ranges(held)}" if held else ""
        if held:
            said += [ranks, ", ".join(f"{axis} {here}" for axis, here in self._format_coordinates(spans))]
        if spare_count:
            said.append("spare" if len(ids) == 1 else format_count(spare_count, "spare"))
        marks = [self.map.marks[id] for id in ids if id in self.map.marks]
        said += [": ".join(filter(None, (MARKS.get(mark.kind, mark.kind), mark.text))) for mark in marks[:4]]
        used = self.tile_width * (len(ids) - len(empty)) / len(ids)
        mark = next((mark for kind in MARKS for mark in marks if mark.kind == kind), (*marks, None)[0])
        border = render_rect("tile" if spans else "tile spare", x, y, self.tile_width, self.size.height, rx=2)
        parts = [*self._draw_bands(spans, x, y, used), border]
        parts += _draw_mark(mark.kind if mark else "", x, y, self.tile_width, self.size.height)
        parts += self._draw_words(name, ranks, spans, x, y, mark)
        kind = f"node is-{mark.kind}" if mark and mark.kind else "node"
        data = {"data_node": escape_text(name)} if len(ids) == 1 else {"data_nodes": escape_text(json.dumps(ids))}
        self.markup.append(render_group("; ".join(filter(None, said)), *parts, class_=kind, **data))

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
            found.append(render_rect("", x, y, width - gap, self.size.height, fill=fill))
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

    def _draw_words(self, name: str, ranks: str, spans: list[Span], x: int, y: int, mark: NodeMark | None) -> list[str]:
        """Draw the lines of a tile, as many as its size has and as fit, centred one below the other."""
        size, room = self.size, self.tile_width - 8
        forms = range(self._form, max(2, self._form + 1) if self._form < 3 else 3)
        captions = [self._format_caption(spans, form) for form in forms]  # several spans may only fit as numbers
        if mark and not spans and mark.kind in MARKS:
            captions = [MARKS[mark.kind]]
        ink = "alarm" if mark and mark.kind in _CROSSED and not spans else ""
        last = (mark.line if mark else "", ranks)
        lines = [
            (shorten(name, room, size.name_font, is_bold=True) if size.name_font else "", size.name_font, "bold"),
            (next(filter(self._can_fit, captions), ""), size.caption_font, "" if spans else "muted"),
            (next((line for line in last if line and measure_width(line, size.ranks_font) <= room), "")
             or shorten(ranks, room, size.ranks_font) if size.ranks_font else "", size.ranks_font, ""),
        ]  # fmt: skip
        lines = [line for line in lines if line[0]]
        cursor, found = y + size.height / 2 - sum(font for _, font, _ in lines) * 1.32 / 2, []
        for words, font, kind in lines:
            cursor += font * 1.32
            middle = x + self.tile_width / 2
            classes = " ".join(filter(None, ("label middle", kind, "on" if spans else ink)))
            found.append(render_text(classes, middle, cursor - font * 0.3, words, font))
        return found


def _draw_mark(kind: str, x: float, y: float, width: float, height: float, place: str = "") -> list[str]:
    """Draw what tells a marked tile apart without colour: a cross over it or in its corner, or a triangle there."""
    side = min(CORNER_MAX, width / 2, height / 2)
    right, low = x + width, y + height
    ends: tuple[float, ...]
    if kind == "lost":
        name, form, ends = "cross", "M{} {}L{} {}M{} {}L{} {}", (x, y, right, low, x, low, right, y)
    elif kind == "failed":
        ends = (right - side, y + 2, right - 2, y + side, right - side, y + side, right - 2, y + 2)
        name, form = f"slash {place}", "M{} {}L{} {}M{} {}L{} {}"
    elif kind in _CORNERED:
        at, to = (x, x + side) if kind == "new" else (right, right - side)
        name, form, ends = f"corner {place}", "M{} {}L{} {}L{} {}Z", (at, y, to, y, at, y + side)
    else:
        return []
    return [render_element("path", class_=name.rstrip(), d=form.format(*map(format_length, ends)))]


def draw_legend(shown: Map, room: int) -> SvgBlock:
    """Draw the meaning of the colours and marks, in as many lines as necessary."""
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
    kinds = {mark.kind for mark in shown.marks.values()}
    told = {id for id, mark in shown.marks.items() if mark.kind in MARKS}
    if any(node.id not in shown.ranks and node.id not in told for node in shown.root.nodes):
        items.append(([""], "spare"))
    items += [([kind], text) for kind, text in MARKS.items() if kind in kinds]
    items += [([], note) for note in shown.notes]
    x, y, found = 0.0, 0.0, []
    for swatches, words in items:
        lead = len(swatches) * SWATCH_SIZE + (5 if swatches else 0)
        words = shorten(words, room - lead, 12)
        width = lead + measure_width(words, 12)
        if x and x + width > room:
            x, y = 0.0, y + 22
        for index, fill in enumerate(swatches):
            left, side = x + index * SWATCH_SIZE, SWATCH_SIZE
            kind, attributes = f"mark {fill}" if fill else "spare", {}
            if fill[:1] == "#":
                kind, attributes = "swatch", {"fill": fill}
            found.append(render_rect(kind, left, y + 2, side, side, **attributes))
            found += _draw_mark(fill, left, y + 2, side, side, "listed")
        found.append(render_text("key", x + lead, y + 13.5, words, 12))
        x += width + 14
    return SvgBlock(found, y + 18)


# The map of a job that runs.


class ShownNode(Struct, frozen=True, kw_only=True):
    """A node of a job that runs, or ran there. `path`: its domains, outermost first, as in `Node`.

    `ranks`: that it holds now. `state`: "" for a node that runs, else a word in small letters: those of MARKS have a
    look of their own, of all others the page's style can make something. `note`: for the tooltip. `line`: a few words
    on a large tile in place of the ranks, "step 1,204".
    """

    id: str
    path: tuple[str | None, ...] = ()
    ranks: tuple[int, ...] = ()
    state: str = ""
    note: str = ""
    line: str = ""


def render_node_map(
    nodes: Sequence[ShownNode],
    *,
    levels: Sequence[str] = (),
    axes: Sequence[str] = (),
    shape: Sequence[int] = (),
    title: str = "",
    width: int = 1120,
    height: int = 940,
) -> str:
    """Render the map of a job's nodes as an <svg> of the class node-map, for a page that has `svg.STYLE`.

    `axes`, `shape`: of the mesh now; without them tiles have no colours. Each tile is a
    `<g class="node is-STATE" data-node="ID">`; above TILES_MAX nodes some share one, whose `data-nodes` lists them as
    JSON. A page that only changes the class of such a group changes its border; crosses and corners come with the next
    map. Without nodes the map is empty.
    """
    is_mesh = bool(axes) and len(axes) == len(shape) and min(shape) > 0 and math.prod(shape) <= RANKS_MAX
    world_size = math.prod(shape) if is_mesh else 0
    plan = Plan(
        shape=tuple(shape) if world_size else (),
        ranks={
            node.id: held for node in nodes if (held := tuple(rank for rank in node.ranks if 0 <= rank < world_size))
        },
        spares=(),
        moved=0,
        reasons=(),
    )
    mesh = Mesh(axes=tuple(Axis(name=name, size=size) for name, size in zip(axes, shape, strict=False)))
    stand = [Node(id=node.id, slot_count=max(1, len(node.ranks)), path=node.path) for node in nodes]
    marks = {
        node.id: NodeMark(node.state if node.state.isalpha() and node.state.isascii() else "", node.note, node.line)
        for node in nodes
        if node.state or node.note or node.line
    }
    blocks = []
    if nodes:
        shown = build_map(plan, stand, mesh, levels, marks)
        blocks = [draw_legend(shown, width - 2), draw_map(shown, width - 2, height)]
    return render_sheet(blocks, width, title, 1, "node-map")
