"""The map of a plan: frames for domains, tiles for nodes, and the legend of the colours.

Colour is never the only sign: where there is room a tile has its coordinates as numbers, and always in the tooltip
of a browser. A tile whose ranks span several coordinates has a band for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from launcher.meshctl.plan.drawing import markup
from launcher.meshctl.plan.drawing.colours import HUES, choose_colour
from launcher.meshctl.plan.drawing.layout import Layout, Rect, TileSize, arrange
from launcher.meshctl.plan.drawing.lettering import format_ranges, measure_width, shorten
from launcher.meshctl.plan.drawing.markup import (
    BACKGROUND_COLOUR,
    BORDER_COLOUR,
    MUTED_COLOUR,
    PANEL_COLOUR,
    TEXT_COLOUR,
)
from launcher.meshctl.plan.drawing.scene import DomainFrame, RankSpan, Scene, Tile
from launcher.model.text import format_count

LEGEND_FONT = 12
SWATCH_SIZE = 14
BAND_MIN = 4
HUES_LISTED = 16


class SvgBlock(NamedTuple):
    """A part of a picture below others: its markup, from 0, 0 downwards, and its height."""

    markup: list[str]
    height: float


def draw_tiles(scene: Scene, room: int, height: int) -> SvgBlock:
    """Draw the tree, `room` wide and at most about `height` high."""
    layout = arrange(scene, room, height)
    parts = [frame for domain, place in layout.frames for frame in _draw_frame(domain, place, layout.tile_size)]
    form = _choose_form(scene, layout)
    parts += [_draw_tile(tile, place, layout.tile_size, scene, form) for tile, place in layout.tiles]
    return SvgBlock(parts, layout.height)


def _draw_frame(domain: DomainFrame, rect: Rect, tile_size: TileSize) -> list[str]:
    dashes = "4 3" if domain.is_unknown else "none"
    label = f"{domain.level} {domain.name}"
    baseline = rect.y + tile_size.header_height / 2 + tile_size.header_font * 0.36
    room = rect.width - tile_size.pad - 2
    shown = shorten(label, room, tile_size.header_font) or shorten(domain.name, room, tile_size.header_font)
    box = markup.render_rect(
        *rect,
        rx=4,
        fill=PANEL_COLOUR if domain.children and isinstance(domain.children[0], Tile) else BACKGROUND_COLOUR,
        stroke=BORDER_COLOUR,
        stroke_dasharray=dashes,
        class_="frame",
    )
    return [
        markup.render_element(
            "g", [markup.render_tooltip(f"{label}: {format_count(_count_nodes(domain), 'node')}"), box]
        ),
        markup.render_text(
            rect.x + tile_size.pad, baseline, shown, tile_size.header_font, fill=MUTED_COLOUR, class_="name"
        )
        if shown
        else "",
    ]


def _count_nodes(domain: DomainFrame) -> int:
    return sum(child.node_count if isinstance(child, Tile) else _count_nodes(child) for child in domain.children)


def _draw_tile(tile: Tile, rect: Rect, tile_size: TileSize, scene: Scene, form: int) -> str:
    fills = _draw_bands(tile, rect, scene) if tile.spans else []
    border = markup.render_rect(
        *rect,
        rx=2,
        fill="none" if fills else BACKGROUND_COLOUR,
        stroke=TEXT_COLOUR if fills else MUTED_COLOUR,
        stroke_width=0.6 if fills else 1,
        stroke_dasharray="none" if fills else "3 2",
        class_="tile" if fills else "tile spare",
    )
    return markup.render_element(
        "g",
        [
            markup.render_tooltip(_describe_tile(tile, scene)),
            *fills,
            border,
            *_draw_lines(tile, rect, tile_size, scene, form),
        ],
    )


def _draw_bands(tile: Tile, rect: Rect, scene: Scene) -> list[str]:
    """Draw the colours of a tile from the left; the part of its spare nodes stays empty."""
    used = rect.width * (tile.node_count - tile.spare_count) / tile.node_count
    parts = list(tile.spans)
    most = max(1, int(used / BAND_MIN))
    if len(parts) > most:
        # As many as are visible, each with the colour of the middle of its ranks.
        every = [part for part in parts for _ in range(part.rank_count)]
        parts = [every[len(every) * (2 * index + 1) // (2 * most)]._replace(rank_count=1) for index in range(most)]
    total = sum(part.rank_count for part in parts)
    left, found = rect.x, []
    for part in parts:
        wide = used * part.rank_count / total
        # A thin gap separates bands of similar shades.
        gap = 0 if part is parts[-1] or wide < 2 * BAND_MIN else 1
        found.append(markup.render_rect(left, rect.y, wide - gap, rect.height, fill=_choose_fill(part, scene)))
        left += wide
    return found


def _choose_fill(span: RankSpan, scene: Scene) -> str:
    shade = scene.colouring.shade
    return choose_colour(span.hue, span.shade, 1 if shade is None else scene.shape[shade])


def _format_coordinates(tile: Tile, scene: Scene) -> list[tuple[str, str]]:
    """Name of the axis, and its coordinates on the tile, for the coloured axes."""
    found = []
    for axis, here in ((scene.colouring.hue, 0), (scene.colouring.shade, 1)):
        if axis is not None:
            found.append((scene.axes[axis], format_ranges(part[here] for part in tile.spans)))
    return found


def _describe_tile(tile: Tile, scene: Scene) -> str:
    """Return the full description of a tile."""
    said = [tile.name, *([format_count(tile.node_count, "node")] if tile.node_count > 1 else [])]
    if tile.location:
        said.append(tile.location)
    if tile.ranks:
        said.append(f"ranks {tile.ranks}")
        said.append(", ".join(f"{axis} {here}" for axis, here in _format_coordinates(tile, scene)))
    if tile.spare_count:
        said.append("spare" if tile.node_count == 1 else format_count(tile.spare_count, "spare"))
    return "; ".join(each for each in said if each)


def _format_caption(tile: Tile, scene: Scene, form: int) -> str:
    """Format the caption in full, as numbers, or the first number only."""
    if not tile.spans:
        return "spare" if form == 0 else ""
    pairs = _format_coordinates(tile, scene)
    if form == 0:
        return " · ".join(f"{axis} {here}" for axis, here in pairs)
    return "·".join(here for _, here in (pairs if form == 1 else pairs[:1]))


def _choose_form(scene: Scene, layout: Layout) -> int:
    """Choose the fullest form of captions that fits every tile with one pair of coordinates; all tiles share it."""
    for form in (0, 1, 2):
        plain = (_format_caption(tile, scene, form) for tile, _ in layout.tiles if len(tile.spans) == 1)
        if layout.tile_size.caption_font and all(
            _can_fit(each, layout.tiles[0][1], layout.tile_size.caption_font) for each in plain
        ):
            return form
    return 3


def _can_fit(text: str, rect: Rect, size: float) -> bool:
    return measure_width(text, size) <= rect.width - 4


def _draw_lines(tile: Tile, rect: Rect, tile_size: TileSize, scene: Scene, form: int) -> list[str]:
    """Draw the lines of a tile, as many as its size has and as fit, centred one below the other."""
    lines: list[tuple[str, float, str, str]] = []
    if tile_size.name_font:
        name = shorten(tile.name, rect.width - 8, tile_size.name_font, is_bold=True)
        lines.append((name, tile_size.name_font, "600", TEXT_COLOUR))
    forms = (0, 1) if form == 0 else (form,)  # what spans several coordinates may only fit as numbers
    captions = [_format_caption(tile, scene, each) for each in forms] if form < 3 else []
    caption = next((each for each in captions if each and _can_fit(each, rect, tile_size.caption_font)), "")
    lines.append((caption, tile_size.caption_font, "400", TEXT_COLOUR if tile.spans else MUTED_COLOUR))
    if tile_size.ranks_font and tile.ranks:
        lines.append(
            (
                shorten(f"ranks {tile.ranks}", rect.width - 8, tile_size.ranks_font),
                tile_size.ranks_font,
                "400",
                TEXT_COLOUR,
            )
        )
    lines = [line for line in lines if line[0]]
    leading = 1.32
    y = rect.y + rect.height / 2 - sum(size * leading for _, size, _, _ in lines) / 2
    found = []
    for words, size, weight, ink in lines:
        y += size * leading
        middle = rect.x + rect.width / 2
        found.append(
            markup.render_text(
                middle, y - size * 0.3, words, size, fill=ink, weight=weight, anchor="middle", class_="label"
            )
        )
    return found


def draw_legend(scene: Scene, room: int, has_spares: bool) -> SvgBlock:
    """Draw the meaning of the colours, in lines."""
    items: list[tuple[list[str], str]] = []
    hue, shade = scene.colouring
    if hue is not None:
        size = scene.shape[hue]
        shown = size if size <= HUES_LISTED else len(HUES)
        items += [
            ([choose_colour(index)], f"{scene.axes[hue]} {index}" if index == 0 else str(index))
            for index in range(shown)
        ]
        if size > shown:
            items.append(([], f"… {size - 1}"))
        if size > len(HUES):
            items.append(([], f"the colours repeat every {len(HUES)}"))
    if shade is not None:
        count = scene.shape[shade]
        steps = min(count, 7)
        ramp = [choose_colour(0, index, steps) for index in range(steps)]
        items.append((ramp, f"{scene.axes[shade]} 0 to {count - 1}, strong to pale"))
    if has_spares:
        items.append(([""], "spare"))
    items += [([], note) for note in scene.notes]
    return _draw_items(items, room)


def _draw_items(items: Sequence[tuple[list[str], str]], room: int) -> SvgBlock:
    """Draw swatches and words beside each other, in as many lines as necessary."""
    x, y, found = 0.0, 0.0, []
    for swatches, words in items:
        lead = len(swatches) * SWATCH_SIZE + (5 if swatches else 0)
        words = shorten(words, room - lead, LEGEND_FONT)
        wide = lead + measure_width(words, LEGEND_FONT)
        if x and x + wide > room:
            x, y = 0.0, y + 22
        for index, fill in enumerate(swatches):
            found.append(
                markup.render_rect(
                    x + index * SWATCH_SIZE,
                    y + 2,
                    SWATCH_SIZE,
                    SWATCH_SIZE,
                    fill=fill or BACKGROUND_COLOUR,
                    stroke=TEXT_COLOUR if fill else MUTED_COLOUR,
                    stroke_width=0.6 if fill else 1,
                    stroke_dasharray="none" if fill else "3 2",
                )
            )
        found.append(markup.render_text(x + lead, y + 13.5, words, LEGEND_FONT, fill=TEXT_COLOUR, class_="key"))
        x += wide + 14
    return SvgBlock(found, y + 18)
