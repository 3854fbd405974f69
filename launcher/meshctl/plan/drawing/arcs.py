"""The groups that cross domains, as arcs: the domains of a level form a row, and arcs join those with traffic.

The wider an arc, the more traffic it has; all arcs of a picture share one scale. Only the heaviest are drawn, and a
note names what is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from launcher.meshctl.plan.drawing import markup
from launcher.meshctl.plan.drawing.lettering import format_number, measure_width, shorten, wrap
from launcher.meshctl.plan.drawing.markup import (
    BACKGROUND_COLOUR,
    BORDER_COLOUR,
    MUTED_COLOUR,
    PANEL_COLOUR,
    TEXT_COLOUR,
)
from launcher.meshctl.plan.drawing.tiles import SvgBlock
from launcher.meshctl.plan.flows import Arc, Flow, TrafficSummary
from launcher.model.text import format_count

ARCS_MAX = 96
ARCS_LABELLED = 12
STROKE_MAX = 12
ARC_COLOUR = "#2b6cb0"
PITCH_MAX, BOX_HEIGHT, OUTER_GAP = 120, 24, 10
COLUMN_GAP = 40
HEAD_FONT, FONT = 13, 11


def list_crossing_flows(traffic: TrafficSummary) -> list[Flow]:
    """Return the flows with arcs to draw."""
    return [flow for flow in traffic.flows if flow.arcs]


def draw_rows(traffic: TrafficSummary, flows: Sequence[Flow], room: int, cost: int | float) -> list[SvgBlock]:
    """Draw the flows below each other, or two beside each other where both have enough room."""
    half = (room - COLUMN_GAP) // 2
    if len(flows) < 2 or measure_row(traffic) > half:
        return [draw_arcs(flow, traffic, room, cost) for flow in flows]
    blocks = [draw_arcs(flow, traffic, half, cost) for flow in flows]
    found = []
    for pair in (blocks[start : start + 2] for start in range(0, len(blocks), 2)):
        lines = [
            markup.render_element("g", block.markup, transform=f"translate({side * (half + COLUMN_GAP)} 0)")
            for side, block in enumerate(pair)
        ]
        found.append(SvgBlock(lines, max(block.height for block in pair)))
    return found


def draw_arcs(flow: Flow, traffic: TrafficSummary, room: int, cost: int | float) -> SvgBlock:
    """Draw one flow: a heading, its arcs, and the row of domains."""
    assert traffic.level is not None
    level = traffic.levels[traffic.level]
    heaviest = max(each.arcs[0].amount for each in list_crossing_flows(traffic))
    one = flow.communicator
    found: list[str] = []
    y = 0.0
    for line in wrap(f"{one.name}: {one.kind} of weight {format_number(one.weight)}", room, HEAD_FONT, is_bold=True):
        y += 17
        found.append(markup.render_text(0, y - 4, line, HEAD_FONT, fill=TEXT_COLOUR, weight="600", class_="key"))
    for line in wrap(_describe_flow(flow, level, traffic, cost), room, FONT):
        y += 15
        found.append(markup.render_text(0, y - 4, line, FONT, fill=MUTED_COLOUR, class_="key"))
    middles, pitch = _place_domains(traffic, room)
    drawn = flow.arcs[:ARCS_MAX]
    wide = min(STROKE_MAX, max(2, pitch * 0.4)) / heaviest
    farthest = max(middles[arc.high] - middles[arc.low] for arc in drawn)
    high = min(120.0, 34 + farthest / 4)
    top, base = y + 20, y + 20 + high
    found += [_draw_arc(arc, middles, base, high, farthest, wide, traffic) for arc in reversed(drawn)]
    found += _draw_amounts(drawn, middles, base, high, farthest, top, room) if len(drawn) <= ARCS_LABELLED else []
    found += _draw_domains(traffic, middles, pitch, base)
    return SvgBlock(found, base + BOX_HEIGHT + 20)


def measure_row(traffic: TrafficSummary) -> float:
    """Return the width of a row of domains with enough room."""
    return len(traffic.names) * PITCH_MAX + len(set(traffic.outer_names)) * OUTER_GAP


def _describe_flow(flow: Flow, level: str, traffic: TrafficSummary, cost: int | float) -> str:
    """Describe how many groups cross, and the cost of that."""
    assert traffic.level is not None
    verb = "leaves its" if flow.crossing_count == 1 else "leave their"
    said = f"{flow.crossing_count:,} of {format_count(flow.group_count, 'group')} {verb} {level}, "
    said += f"traffic {format_number(flow.leaving[traffic.level])}"
    if cost:
        said += (
            f"; all levels together cost {format_number(flow.cost)}, "
            f"{format_number(round(100 * flow.cost / cost, 1))}% of J"
        )
    if len(flow.arcs) > ARCS_MAX:
        rest = sum(arc.amount for arc in flow.arcs[ARCS_MAX:]) / sum(arc.amount for arc in flow.arcs)
        said += (
            f"; the {ARCS_MAX} heaviest of {len(flow.arcs)} pairs are drawn, {format_number(round(100 * rest, 1))}% "
            "is not"
        )
    return said


def _place_domains(traffic: TrafficSummary, room: int) -> tuple[list[float], float]:
    """Return the middle of every domain, and its width with the gap."""
    gap_count = sum(1 for one, other in zip(traffic.outer_names, traffic.outer_names[1:], strict=False) if one != other)
    gap = min(OUTER_GAP, room / 4 / max(gap_count, 1))
    pitch = min(PITCH_MAX, (room - gap_count * gap) / len(traffic.names))
    middles, gaps = [], 0.0
    for index, outer in enumerate(traffic.outer_names):
        gaps += gap if index and outer != traffic.outer_names[index - 1] else 0
        middles.append((index + 0.5) * pitch + gaps)
    return middles, pitch


def _compute_height(arc: Arc, middles: Sequence[float], height_max: float, span_max: float) -> float:
    """Return the height of the arc: the farther apart its ends, the higher."""
    return height_max * (0.3 + 0.7 * (middles[arc.high] - middles[arc.low]) / span_max)


def _draw_arc(
    arc: Arc,
    middles: Sequence[float],
    base: float,
    height_max: float,
    span_max: float,
    stroke_scale: float,
    traffic: TrafficSummary,
) -> str:
    one, other = middles[arc.low], middles[arc.high]
    peak = (
        base - _compute_height(arc, middles, height_max, span_max) * 4 / 3
    )  # of the handles; the curve reaches three quarters
    path = " ".join(map(markup.format_length, (one, peak, other, peak, other, base)))
    wire = markup.render_element(
        "path",
        None,
        d=f"M{markup.format_length(one)} {markup.format_length(base)}C{path}",
        fill="none",
        stroke=ARC_COLOUR,
        stroke_width=max(1, round(stroke_scale * arc.amount, 1)),
        stroke_opacity=0.55,
        class_="arc",
    )
    names = f"{_format_domain(traffic, arc.low)} to {_format_domain(traffic, arc.high)}"
    return markup.render_element("g", [markup.render_tooltip(f"{names}: {format_number(round(arc.amount, 2))}"), wire])


def _format_domain(traffic: TrafficSummary, index: int) -> str:
    return "/".join(part for part in (traffic.outer_names[index], traffic.names[index]) if part)


def _draw_amounts(
    arcs: Sequence[Arc],
    middles: Sequence[float],
    base: float,
    height_max: float,
    span_max: float,
    top: float,
    room: float,
) -> list[str]:
    """Draw the amount at the peak of each arc, unless a heavier one's is there."""
    taken: list[tuple[float, float, float]] = []
    found = []
    for arc in arcs:
        words = format_number(round(arc.amount, 2))
        half = measure_width(words, FONT) / 2 + 2
        x = min(max((middles[arc.low] + middles[arc.high]) / 2, half), room - half)
        y = max(base - _compute_height(arc, middles, height_max, span_max) + 4, top)
        if any(abs(x - other) < half + other_half and abs(y - line) < FONT + 3 for other, other_half, line in taken):
            continue
        taken.append((x, half, y))
        said = markup.render_text(x, y, words, FONT, fill=TEXT_COLOUR, anchor="middle", class_="amount")
        found.append(markup.render_element("g", [said], stroke=BACKGROUND_COLOUR, stroke_width=3, paint_order="stroke"))
    return found


def _draw_domains(traffic: TrafficSummary, middles: Sequence[float], pitch: float, top: float) -> list[str]:
    """Draw the row of domains; where names have no room, only every second one or fewer."""
    side = max(pitch - min(4, pitch / 4), 1)
    boxes = []
    for index, middle in enumerate(middles):
        box = markup.render_rect(
            middle - side / 2,
            top,
            side,
            BOX_HEIGHT,
            rx=min(3, side / 4),
            fill=PANEL_COLOUR,
            stroke=BORDER_COLOUR,
            class_="domain",
        )
        boxes.append(markup.render_element("g", [markup.render_tooltip(_format_domain(traffic, index)), box]))
    names = [shorten(name, side - 6, FONT) for name in traffic.names]
    if all(names):
        for middle, name in zip(middles, names, strict=True):
            boxes.append(
                markup.render_text(middle, top + 16, name, FONT, fill=TEXT_COLOUR, anchor="middle", class_="label")
            )
    if len(set(traffic.outer_names)) < 2:
        return boxes if all(names) else boxes + _draw_some_names(traffic, middles, pitch, top)
    start = 0
    for outer, run in groupby(traffic.outer_names):
        end = start + len(list(run))
        left, right = middles[start] - side / 2, middles[end - 1] + side / 2
        shown = shorten(outer, right - left, FONT)
        if shown:
            middle = (left + right) / 2
            boxes.append(
                markup.render_text(
                    middle, top + BOX_HEIGHT + 15, shown, FONT, fill=MUTED_COLOUR, anchor="middle", class_="key"
                )
            )
        start = end
    return boxes


def _draw_some_names(traffic: TrafficSummary, middles: Sequence[float], pitch: float, top: float) -> list[str]:
    """Draw names below the row, of as many domains as have room for theirs."""
    shown = [shorten(name, 12 * FONT, FONT) for name in traffic.names]
    step = int(max(measure_width(name, FONT) for name in shown) / pitch) + 2
    return [
        markup.render_text(
            middles[index], top + BOX_HEIGHT + 14, shown[index], FONT, fill=MUTED_COLOUR, anchor="middle", class_="key"
        )
        for index in range(0, len(shown), step)
        if measure_width(shown[index], FONT) / 2 <= min(middles[index], middles[-1] + pitch / 2 - middles[index])
    ]
