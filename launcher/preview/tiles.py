"""The map of a plan: frames for domains, tiles for nodes, and the legend that says what the colours mean.

Colour never stands alone: wherever there is room a tile carries its coordinates as numbers, and always in what a
browser shows when the pointer rests on it. A tile whose ranks span several coordinates has a band for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from launcher.preview import markup
from launcher.preview.colours import HUES, colour
from launcher.preview.layout import Layout, Place, Step, arrange
from launcher.preview.lettering import counted, shorten, spans, width
from launcher.preview.markup import CARD, INK, LINE, PAPER, SOFT
from launcher.preview.scene import Domain, Part, Scene, Tile

LEGEND_FONT = 12
SWATCH = 14
BAND_MIN = 4
HUES_LISTED = 16


class Block(NamedTuple):
    """A part of a picture that stands below others: its markup, from 0, 0 downwards, and its height."""

    markup: list[str]
    height: float


def tiles(scene: Scene, room: int, height: int) -> Block:
    """The tree, `room` wide and about as high as `height` at most."""
    layout = arrange(scene, room, height)
    parts = [frame for domain, place in layout.frames for frame in _frame(domain, place, layout.step)]
    form = _form(scene, layout)
    parts += [_tile(tile, place, layout.step, scene, form) for tile, place in layout.tiles]
    return Block(parts, layout.height)


def _frame(domain: Domain, place: Place, step: Step) -> list[str]:
    dashes = "4 3" if domain.is_unknown else "none"
    label = f"{domain.level} {domain.name}"
    baseline = place.y + step.head / 2 + step.head_font * 0.36
    room = place.width - step.pad - 2
    shown = shorten(label, room, step.head_font) or shorten(domain.name, room, step.head_font)
    box = markup.box(
        *place,
        rx=4,
        fill=CARD if domain.children and isinstance(domain.children[0], Tile) else PAPER,
        stroke=LINE,
        stroke_dasharray=dashes,
        class_="frame",
    )
    return [
        markup.element("g", [markup.tip(f"{label}: {counted(_count(domain), 'node')}"), box]),
        markup.text(place.x + step.pad, baseline, shown, step.head_font, fill=SOFT, class_="name") if shown else "",
    ]


def _count(domain: Domain) -> int:
    return sum(child.node_count if isinstance(child, Tile) else _count(child) for child in domain.children)


def _tile(tile: Tile, place: Place, step: Step, scene: Scene, form: int) -> str:
    fills = _bands(tile, place, scene) if tile.parts else []
    border = markup.box(
        *place,
        rx=2,
        fill="none" if fills else PAPER,
        stroke=INK if fills else SOFT,
        stroke_width=0.6 if fills else 1,
        stroke_dasharray="none" if fills else "3 2",
        class_="tile" if fills else "tile spare",
    )
    return markup.element(
        "g", [markup.tip(_told(tile, scene)), *fills, border, *_lettering(tile, place, step, scene, form)]
    )


def _bands(tile: Tile, place: Place, scene: Scene) -> list[str]:
    """The colours of a tile from the left; what its spare nodes would take stays empty."""
    used = place.width * (tile.node_count - tile.spare_count) / tile.node_count
    parts = list(tile.parts)
    most = max(1, int(used / BAND_MIN))
    if len(parts) > most:
        # As many as can be seen, each with the colour that the middle of its ranks has.
        every = [part for part in parts for _ in range(part.rank_count)]
        parts = [every[len(every) * (2 * index + 1) // (2 * most)]._replace(rank_count=1) for index in range(most)]
    total = sum(part.rank_count for part in parts)
    left, found = place.x, []
    for part in parts:
        wide = used * part.rank_count / total
        # A thin gap parts bands of like shades.
        gap = 0 if part is parts[-1] or wide < 2 * BAND_MIN else 1
        found.append(markup.box(left, place.y, wide - gap, place.height, fill=_fill(part, scene)))
        left += wide
    return found


def _fill(part: Part, scene: Scene) -> str:
    shade = scene.colouring.shade
    return colour(part.hue, part.shade, 1 if shade is None else scene.shape[shade])


def _coordinates(tile: Tile, scene: Scene) -> list[tuple[str, str]]:
    """Name of the axis, and its coordinates on the tile, for the coloured axes."""
    found = []
    for axis, here in ((scene.colouring.hue, 0), (scene.colouring.shade, 1)):
        if axis is not None:
            found.append((scene.axes[axis], spans(part[here] for part in tile.parts)))
    return found


def _told(tile: Tile, scene: Scene) -> str:
    """All there is to say of a tile."""
    said = [tile.name, *([counted(tile.node_count, "node")] if tile.node_count > 1 else [])]
    if tile.where:
        said.append(tile.where)
    if tile.ranks:
        said.append(f"ranks {tile.ranks}")
        said.append(", ".join(f"{axis} {here}" for axis, here in _coordinates(tile, scene)))
    if tile.spare_count:
        said.append("spare" if tile.node_count == 1 else counted(tile.spare_count, "spare"))
    return "; ".join(each for each in said if each)


def _caption(tile: Tile, scene: Scene, form: int) -> str:
    """In full, as numbers, or the first number only."""
    if not tile.parts:
        return "spare" if form == 0 else ""
    pairs = _coordinates(tile, scene)
    if form == 0:
        return " · ".join(f"{axis} {here}" for axis, here in pairs)
    return "·".join(here for _, here in (pairs if form == 1 else pairs[:1]))


def _form(scene: Scene, layout: Layout) -> int:
    """The fullest form of captions that fits every tile with one pair of coordinates; all tiles share it."""
    for form in (0, 1, 2):
        plain = (_caption(tile, scene, form) for tile, _ in layout.tiles if len(tile.parts) == 1)
        if layout.step.caption and all(_fits(each, layout.tiles[0][1], layout.step.caption) for each in plain):
            return form
    return 3


def _fits(words: str, place: Place, size: float) -> bool:
    return width(words, size) <= place.width - 4


def _lettering(tile: Tile, place: Place, step: Step, scene: Scene, form: int) -> list[str]:
    """The lines of a tile, as many as its size has and as fit, centred one below the other."""
    lines: list[tuple[str, float, str, str]] = []
    if step.name:
        name = shorten(tile.name, place.width - 8, step.name, is_bold=True)
        lines.append((name, step.name, "600", INK))
    forms = (0, 1) if form == 0 else (form,)  # what spans several coordinates may only fit as numbers
    captions = [_caption(tile, scene, each) for each in forms] if form < 3 else []
    caption = next((each for each in captions if each and _fits(each, place, step.caption)), "")
    lines.append((caption, step.caption, "400", INK if tile.parts else SOFT))
    if step.ranks and tile.ranks:
        lines.append((shorten(f"ranks {tile.ranks}", place.width - 8, step.ranks), step.ranks, "400", INK))
    lines = [line for line in lines if line[0]]
    leading = 1.32
    y = place.y + place.height / 2 - sum(size * leading for _, size, _, _ in lines) / 2
    found = []
    for words, size, weight, ink in lines:
        y += size * leading
        middle = place.x + place.width / 2
        found.append(
            markup.text(middle, y - size * 0.3, words, size, fill=ink, weight=weight, anchor="middle", class_="label")
        )
    return found


def legend(scene: Scene, room: int, has_spares: bool) -> Block:
    """What the colours mean, in lines."""
    items: list[tuple[list[str], str]] = []
    hue, shade = scene.colouring
    if hue is not None:
        size = scene.shape[hue]
        shown = size if size <= HUES_LISTED else len(HUES)
        items += [
            ([colour(index)], f"{scene.axes[hue]} {index}" if index == 0 else str(index)) for index in range(shown)
        ]
        if size > shown:
            items.append(([], f"… {size - 1}"))
        if size > len(HUES):
            items.append(([], f"the colours repeat every {len(HUES)}"))
    if shade is not None:
        count = scene.shape[shade]
        steps = min(count, 7)
        ramp = [colour(0, index, steps) for index in range(steps)]
        items.append((ramp, f"{scene.axes[shade]} 0 to {count - 1}, strong to pale"))
    if has_spares:
        items.append(([""], "spare"))
    items += [([], note) for note in scene.notes]
    return _flow(items, room)


def _flow(items: Sequence[tuple[list[str], str]], room: int) -> Block:
    """Swatches and words beside each other, in as many lines as they take."""
    x, y, found = 0.0, 0.0, []
    for swatches, words in items:
        lead = len(swatches) * SWATCH + (5 if swatches else 0)
        words = shorten(words, room - lead, LEGEND_FONT)
        wide = lead + width(words, LEGEND_FONT)
        if x and x + wide > room:
            x, y = 0.0, y + 22
        for index, fill in enumerate(swatches):
            found.append(
                markup.box(
                    x + index * SWATCH,
                    y + 2,
                    SWATCH,
                    SWATCH,
                    fill=fill or PAPER,
                    stroke=INK if fill else SOFT,
                    stroke_width=0.6 if fill else 1,
                    stroke_dasharray="none" if fill else "3 2",
                )
            )
        found.append(markup.text(x + lead, y + 13.5, words, LEGEND_FONT, fill=INK, class_="key"))
        x += wide + 14
    return Block(found, y + 18)
