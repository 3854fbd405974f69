"""Lays out the tree: nested frames with rows of tiles, aligned on both sides.

All tiles of a picture have one size, and all frames of a level one width. The choice is the number of children in a row
at every level; the best one has the largest tiles on a sheet of the given width that is not too high. Sizes come in
steps, and each step has its text: a name and all coordinates, only numbers, nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

from launcher.meshctl.plan.drawing.scene import DomainFrame, Scene, Tile

FRAME_GAP = 8


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


class Rect(NamedTuple):
    x: float
    y: float
    width: float
    height: float


class Layout(NamedTuple):
    """Tiles and frames with their positions, outer frames before inner ones; the origin is the upper left corner."""

    tile_size: TileSize
    tiles: tuple[tuple[Tile, Rect], ...]
    frames: tuple[tuple[DomainFrame, Rect], ...]
    width: float
    height: float


def arrange(scene: Scene, width: int, height: int) -> Layout:
    """The layout with the largest tiles on a sheet `width` wide and, if any size allows that, at most `height` high."""
    best: tuple[tuple[float, ...], tuple[int, ...], TileSize, int] | None = None
    counts = [_count_children(scene.root, depth) for depth in range(scene.depth + 1)]
    for columns in product(*(_list_column_counts(max(found)) for found in counts)):
        # Rows with a hole at the end look untidy, most of all the inner ones; it is worth some height to have none.
        ragged = sum(
            40 * (depth + 1)
            for depth, (found, column) in enumerate(zip(counts, columns, strict=True))
            if max(found) % column
        )
        for number, step in enumerate(TILE_SIZES):
            if best is not None and number > best[0][1] and best[0][0] == 0:
                break
            tile = _compute_tile_width(columns, step, width)
            if tile < step.width_min:
                continue
            high = _compute_height(scene.root, columns, step)
            excess = max(0, high - height)
            score = (excess, number, high + ragged, *columns)
            if best is None or score < best[0]:
                best = (score, columns, step, tile)
            if not excess:
                break
    if best is None:  # narrower than one smallest tile
        columns = (1,) * (scene.depth + 1)
        best = ((), columns, TILE_SIZES[-1], max(1, _compute_tile_width(columns, TILE_SIZES[-1], width)))
    _, columns, step, tile = best
    return _LayoutBuilder(columns, step, tile).build(scene.root)


def _count_children(domain: DomainFrame, depth: int) -> list[int]:
    """Return how many children the domains of a depth have."""
    if depth == 0:
        return [max(1, len(domain.children))]
    return [
        count
        for child in domain.children
        if isinstance(child, DomainFrame)
        for count in _count_children(child, depth - 1)
    ]


def _list_column_counts(count: int) -> list[int]:
    """Return column counts to try for at most `count` children: those that make 1, 2, 3... rows."""
    return sorted({-(-count // rows) for rows in range(1, min(count, 40) + 1)}, reverse=True)


def _compute_tile_width(columns: tuple[int, ...], tile_size: TileSize, width: int) -> int:
    """Return the widest tile with which the whole stays within `width`."""
    room = width
    for column in columns[:-1]:
        room = (room - (column - 1) * FRAME_GAP) // column - 2 * tile_size.pad
    return min(tile_size.width_max, (room - (columns[-1] - 1) * tile_size.gap) // columns[-1])


def _split_rows(domain: DomainFrame, column: int) -> Iterable[tuple[DomainFrame | Tile, ...]]:
    return (domain.children[start : start + column] for start in range(0, len(domain.children), column))


def _compute_height(domain: DomainFrame, columns: tuple[int, ...], tile_size: TileSize) -> int:
    """Return the height of the domain frame's content."""
    if len(columns) == 1:
        row_count = -(-len(domain.children) // columns[0])
        return row_count * (tile_size.height + tile_size.gap) - tile_size.gap
    rows = [
        max(_compute_frame_height(child, columns[1:], tile_size) for child in row)
        for row in _split_rows(domain, columns[0])
    ]
    return sum(rows) + (len(rows) - 1) * FRAME_GAP


def _compute_frame_height(child: DomainFrame | Tile, columns: tuple[int, ...], tile_size: TileSize) -> int:
    assert isinstance(child, DomainFrame)
    return tile_size.header_height + _compute_height(child, columns, tile_size) + tile_size.pad


class _LayoutBuilder:
    """Places tiles and frames, once the columns are chosen."""

    def __init__(self, columns: tuple[int, ...], tile_size: TileSize, tile_width: int) -> None:
        self.columns, self.tile_size, self.tile_width = columns, tile_size, tile_width
        self.tiles: list[tuple[Tile, Rect]] = []
        self.frames: list[tuple[DomainFrame, Rect]] = []

    def build(self, root: DomainFrame) -> Layout:
        self._place_domain(root, 0, 0, 0)
        places = [place for _, place in (*self.tiles, *self.frames)]
        return Layout(
            tile_size=self.tile_size,
            tiles=tuple(self.tiles),
            frames=tuple(self.frames),
            width=max((place.x + place.width for place in places), default=0),
            height=max((place.y + place.height for place in places), default=0),
        )

    def _compute_inner_width(self, depth: int) -> int:
        column = self.columns[depth]
        if depth == len(self.columns) - 1:
            return column * (self.tile_width + self.tile_size.gap) - self.tile_size.gap
        return column * (self._compute_inner_width(depth + 1) + 2 * self.tile_size.pad + FRAME_GAP) - FRAME_GAP

    def _place_domain(self, domain: DomainFrame, depth: int, left: int, top: int) -> None:
        step = self.tile_size
        if depth == len(self.columns) - 1:
            for index, tile in enumerate(domain.children):
                assert isinstance(tile, Tile)
                row, column = divmod(index, self.columns[depth])
                x, y = left + column * (self.tile_width + step.gap), top + row * (step.height + step.gap)
                self.tiles.append((tile, Rect(x, y, self.tile_width, step.height)))
            return
        width = self._compute_inner_width(depth + 1) + 2 * step.pad
        for row_of in _split_rows(domain, self.columns[depth]):
            height = max(_compute_frame_height(child, self.columns[depth + 1 :], step) for child in row_of)
            for index, child in enumerate(row_of):
                assert isinstance(child, DomainFrame)
                x = left + index * (width + FRAME_GAP)
                self.frames.append((child, Rect(x, top, width, height)))
                self._place_domain(child, depth + 1, x + step.pad, top + step.header_height)
            top += height + FRAME_GAP
