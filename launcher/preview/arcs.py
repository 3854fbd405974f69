"""The groups that cross domains, as arcs: the domains of a level stand in a row, and whoever talks is joined.

The wider an arc, the more runs along it; all arcs of a picture share one scale. Only the heaviest are drawn, and
what is left out is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from launcher.preview import markup
from launcher.preview.flows import Arc, Flow, Ledger
from launcher.preview.lettering import amount, counted, shorten, width, wrap
from launcher.preview.markup import CARD, INK, LINE, PAPER, SOFT
from launcher.preview.tiles import Block

ARCS_MAX = 96
ARCS_LABELLED = 12
STROKE_MAX = 12
WIRE = "#2b6cb0"
PITCH_MAX, BOX, OUTER_GAP = 120, 24, 10
COLUMN_GAP = 40
HEAD_FONT, FONT = 13, 11


def crossing(book: Ledger) -> list[Flow]:
    """The flows with something to draw."""
    return [flow for flow in book.flows if flow.arcs]


def rows(book: Ledger, flows: Sequence[Flow], room: int, cost: int | float) -> list[Block]:
    """The flows below each other, or two beside each other where both have all the room they want."""
    half = (room - COLUMN_GAP) // 2
    if len(flows) < 2 or width_wanted(book) > half:
        return [arcs(flow, book, room, cost) for flow in flows]
    blocks = [arcs(flow, book, half, cost) for flow in flows]
    found = []
    for pair in (blocks[start : start + 2] for start in range(0, len(blocks), 2)):
        lines = [
            markup.element("g", block.markup, transform=f"translate({side * (half + COLUMN_GAP)} 0)")
            for side, block in enumerate(pair)
        ]
        found.append(Block(lines, max(block.height for block in pair)))
    return found


def arcs(flow: Flow, book: Ledger, room: int, cost: int | float) -> Block:
    """One flow: a heading, its arcs, and the row of domains."""
    assert book.level is not None
    level = book.levels[book.level]
    heaviest = max(each.arcs[0].amount for each in crossing(book))
    one = flow.communicator
    found: list[str] = []
    y = 0.0
    for line in wrap(f"{one.name}: {one.kind} of weight {amount(one.weight)}", room, HEAD_FONT, is_bold=True):
        y += 17
        found.append(markup.text(0, y - 4, line, HEAD_FONT, fill=INK, weight="600", class_="key"))
    for line in wrap(_sentence(flow, level, book, cost), room, FONT):
        y += 15
        found.append(markup.text(0, y - 4, line, FONT, fill=SOFT, class_="key"))
    middles, pitch = _places(book, room)
    drawn = flow.arcs[:ARCS_MAX]
    wide = min(STROKE_MAX, max(2, pitch * 0.4)) / heaviest
    farthest = max(middles[arc.high] - middles[arc.low] for arc in drawn)
    high = min(120.0, 34 + farthest / 4)
    top, base = y + 20, y + 20 + high
    found += [_arc(arc, middles, base, high, farthest, wide, book) for arc in reversed(drawn)]
    found += _amounts(drawn, middles, base, high, farthest, top, room) if len(drawn) <= ARCS_LABELLED else []
    found += _domains(book, middles, pitch, base)
    return Block(found, base + BOX + 20)


def width_wanted(book: Ledger) -> float:
    """How wide a row of domains is when it has all the room it wants."""
    return len(book.names) * PITCH_MAX + len(set(book.outer)) * OUTER_GAP


def _sentence(flow: Flow, level: str, book: Ledger, cost: int | float) -> str:
    """How many groups cross, and what that costs."""
    assert book.level is not None
    verb = "leaves its" if flow.crossing_count == 1 else "leave their"
    said = f"{flow.crossing_count:,} of {counted(flow.group_count, 'group')} {verb} {level}, "
    said += f"traffic {amount(flow.leaving[book.level])}"
    if cost:
        said += f"; all levels together cost {amount(flow.cost)}, {amount(round(100 * flow.cost / cost, 1))}% of J"
    if len(flow.arcs) > ARCS_MAX:
        rest = sum(arc.amount for arc in flow.arcs[ARCS_MAX:]) / sum(arc.amount for arc in flow.arcs)
        said += f"; the {ARCS_MAX} heaviest of {len(flow.arcs)} pairs are drawn, {amount(round(100 * rest, 1))}% is not"
    return said


def _places(book: Ledger, room: int) -> tuple[list[float], float]:
    """The middle of every domain, and how wide one is with its gap."""
    gap_count = sum(1 for one, other in zip(book.outer, book.outer[1:], strict=False) if one != other)
    gap = min(OUTER_GAP, room / 4 / max(gap_count, 1))
    pitch = min(PITCH_MAX, (room - gap_count * gap) / len(book.names))
    middles, gaps = [], 0.0
    for index, outer in enumerate(book.outer):
        gaps += gap if index and outer != book.outer[index - 1] else 0
        middles.append((index + 0.5) * pitch + gaps)
    return middles, pitch


def _rise(arc: Arc, middles: Sequence[float], high: float, farthest: float) -> float:
    """How high the arc rises: the farther apart, the higher."""
    return high * (0.3 + 0.7 * (middles[arc.high] - middles[arc.low]) / farthest)


def _arc(
    arc: Arc, middles: Sequence[float], base: float, high: float, farthest: float, wide: float, book: Ledger
) -> str:
    one, other = middles[arc.low], middles[arc.high]
    peak = base - _rise(arc, middles, high, farthest) * 4 / 3  # of the handles; the curve reaches three quarters
    path = " ".join(map(markup.shortly, (one, peak, other, peak, other, base)))
    wire = markup.element(
        "path",
        None,
        d=f"M{markup.shortly(one)} {markup.shortly(base)}C{path}",
        fill="none",
        stroke=WIRE,
        stroke_width=max(1, round(wide * arc.amount, 1)),
        stroke_opacity=0.55,
        class_="arc",
    )
    names = f"{_full(book, arc.low)} to {_full(book, arc.high)}"
    return markup.element("g", [markup.tip(f"{names}: {amount(round(arc.amount, 2))}"), wire])


def _full(book: Ledger, index: int) -> str:
    return "/".join(part for part in (book.outer[index], book.names[index]) if part)


def _amounts(
    drawn: Sequence[Arc],
    middles: Sequence[float],
    base: float,
    high: float,
    farthest: float,
    top: float,
    room: float,
) -> list[str]:
    """The amount at the peak of each arc, unless another, heavier one's stands there."""
    taken: list[tuple[float, float, float]] = []
    found = []
    for arc in drawn:
        words = amount(round(arc.amount, 2))
        half = width(words, FONT) / 2 + 2
        x = min(max((middles[arc.low] + middles[arc.high]) / 2, half), room - half)
        y = max(base - _rise(arc, middles, high, farthest) + 4, top)
        if any(abs(x - other) < half + other_half and abs(y - line) < FONT + 3 for other, other_half, line in taken):
            continue
        taken.append((x, half, y))
        said = markup.text(x, y, words, FONT, fill=INK, anchor="middle", class_="amount")
        found.append(markup.element("g", [said], stroke=PAPER, stroke_width=3, paint_order="stroke"))
    return found


def _domains(book: Ledger, middles: Sequence[float], pitch: float, top: float) -> list[str]:
    """The row of domains; where names have no room, every second one or fewer have theirs."""
    side = max(pitch - min(4, pitch / 4), 1)
    boxes = []
    for index, middle in enumerate(middles):
        box = markup.box(
            middle - side / 2, top, side, BOX, rx=min(3, side / 4), fill=CARD, stroke=LINE, class_="domain"
        )
        boxes.append(markup.element("g", [markup.tip(_full(book, index)), box]))
    names = [shorten(name, side - 6, FONT) for name in book.names]
    if all(names):
        for middle, name in zip(middles, names, strict=True):
            boxes.append(markup.text(middle, top + 16, name, FONT, fill=INK, anchor="middle", class_="label"))
    if len(set(book.outer)) < 2:
        return boxes if all(names) else boxes + _every_so_many(book, middles, pitch, top)
    start = 0
    for outer, run in groupby(book.outer):
        end = start + len(list(run))
        left, right = middles[start] - side / 2, middles[end - 1] + side / 2
        shown = shorten(outer, right - left, FONT)
        if shown:
            middle = (left + right) / 2
            boxes.append(markup.text(middle, top + BOX + 15, shown, FONT, fill=SOFT, anchor="middle", class_="key"))
        start = end
    return boxes


def _every_so_many(book: Ledger, middles: Sequence[float], pitch: float, top: float) -> list[str]:
    """Names below the row, of as many domains as have room for theirs."""
    shown = [shorten(name, 12 * FONT, FONT) for name in book.names]
    step = int(max(width(name, FONT) for name in shown) / pitch) + 2
    return [
        markup.text(middles[index], top + BOX + 14, shown[index], FONT, fill=SOFT, anchor="middle", class_="key")
        for index in range(0, len(shown), step)
        if width(shown[index], FONT) / 2 <= min(middles[index], middles[-1] + pitch / 2 - middles[index])
    ]
