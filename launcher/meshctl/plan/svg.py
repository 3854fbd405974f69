"""SVG as text: rectangles, words that fit their room, colours for coordinates, and the style of all pictures.

A picture is drawn without a browser, so the width of a word is estimated from the widest of the usual fonts: a word
that fits here fits everywhere. Names are data: `escape_text` makes them harmless wherever they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from launcher.model import ranges

BLOCK_GAP = 14

# Based on those that Okabe and Ito proposed, made lighter so that dark text is readable on each and on every shade. Six
# are distinguishable with any colour blindness; later coordinates repeat them. A test checks contrast and distances.
HUES = ("#62b1e6", "#eba23c", "#35ab84", "#f2e26b", "#d48fbb", "#e5734d", "#b7d989", "#c2c8ce")
PALEST = 55  # per cent of white in the palest shade
TEXT_COLOUR = "#1c2733"  # of words, and of all that stands on a coloured tile, in the dark as well


class Palette(NamedTuple):
    """The colours that differ between a light and a dark page."""

    text: str
    muted: str
    paper: str
    card: str
    line: str
    arc: str
    lost: str
    new: str


LIGHT = Palette(TEXT_COLOUR, "#4a5866", "#fff", "#f4f6f8", "#8b97a3", "#2b6cb0", "#b3261e", "#1f5fbf")
DARK = Palette("#e6edf3", "#a9b4c0", "#11161c", "#1b232c", "#7d8b99", "#6ea8e0", "#ff8a80", "#7db7ff")


def _make_rules(palette: Palette) -> str:
    """Make the rules that differ. Colours stand in them as they are: some viewers of SVG do not know variables."""
    return """
text {{ fill: {text}; }}
.muted {{ fill: {muted}; }}
.sheet, .outer {{ fill: {paper}; }}
.frame, .domain {{ fill: {card}; stroke: {line}; }}
.spare {{ fill: {paper}; stroke: {muted}; }}
.arc {{ stroke: {arc}; }}
.amount, .alarm {{ stroke: {paper}; }}
.corner.listed {{ fill: {text}; }}
.slash.listed {{ stroke: {text}; }}
.is-moved > .tile, .moved {{ stroke: {text}; }}
.is-new > .tile, .new {{ stroke: {new}; }}
.is-lost > .tile, .is-failed > .tile, .is-missing > .tile, .lost, .failed, .missing, .cross {{ stroke: {lost}; }}
.alarm {{ fill: {lost}; }}
""".format(**palette._asdict())


STYLE = f"""
svg, body {{ font-family: system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif; }}
.bold {{ font-weight: 600; }}
.middle {{ text-anchor: middle; }}
.tile {{ fill: none; }}
.tile, .swatch {{ stroke: {TEXT_COLOUR}; stroke-width: 0.6; }}
.spare {{ stroke-width: 1; stroke-dasharray: 3 2; }}
.unknown {{ stroke-dasharray: 4 3; }}
.corner {{ fill: {TEXT_COLOUR}; }}
.slash {{ fill: none; stroke: {TEXT_COLOUR}; stroke-width: 2; }}
.cross {{ fill: none; stroke-width: 1.5; stroke-opacity: 0.45; }}
.mark {{ fill: none; }}
.mark, .is-moved > .tile, .is-new > .tile, .is-lost > .tile, .is-failed > .tile, .is-missing > .tile {{
  stroke-width: 2.5; stroke-dasharray: none; }}
.missing, .is-missing > .tile {{ stroke-dasharray: 4 2; }}
.arc {{ fill: none; stroke-opacity: 0.55; }}
.amount, .alarm {{ paint-order: stroke; stroke-width: 3; }}
{_make_rules(LIGHT)}
@media (prefers-color-scheme: dark) {{
{_make_rules(DARK)}
}}
.on {{ fill: {TEXT_COLOUR}; }}
"""


class SvgBlock(NamedTuple):
    """A part of a picture below others: its markup, from 0, 0 downwards, and its height."""

    markup: list[str]
    height: float


def stack_blocks(blocks: Sequence[SvgBlock], margin: float = 0) -> SvgBlock:
    """Put the blocks below each other, with `margin` around them."""
    y = margin
    parts = []
    for block in blocks:
        place = f"translate({format_length(margin)} {format_length(y)})"
        parts.append("\n" + render_element("g", *block.markup, transform=place))
        y += block.height + BLOCK_GAP
    return SvgBlock(parts, y - BLOCK_GAP + margin)


def render_sheet(blocks: Sequence[SvgBlock], width: int, tooltip: str, margin: int, kind: str = "") -> str:
    """Render the blocks below each other as an SVG of their own. `kind`: its class in a page, which has STYLE then."""
    parts, height = stack_blocks(blocks, margin)
    return render_element(
        "svg",
        *(render_element("title", escape_text(tooltip)), *([] if kind else [render_element("style", STYLE)])),
        *(render_rect("sheet", 0, 0, width, height), *parts, "\n"),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {format_length(height)}",
        width=width,
        height=height,
        role="img",
        **({"class_": kind} if kind else {}),
    )


def choose_colour(hue: int, shade: int = 0, shade_count: int = 1) -> str:
    """Return the colour of coordinate `hue` of one axis and coordinate `shade` of `shade_count` of the other."""
    base = HUES[hue % len(HUES)]
    # In integers, so that every machine writes the same digits.
    white, steps = PALEST * shade, 100 * max(shade_count - 1, 1)
    parts = (int(base[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{(part * (steps - white) + 255 * white + steps // 2) // steps:02x}" for part in parts)


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


def draw_lines(texts: Iterable[tuple[str, float, float, str]], room: int) -> tuple[list[str], float]:
    """Draw texts below each other, each with its font size, height of a line and classes; return the height, too."""
    found, y = [], 0.0
    for text, font, leading, kind in texts:
        for line in wrap(text, room, font, is_bold=kind == "bold"):
            y += leading
            found.append(render_text(f"key {kind}", 0, y - leading / 4, line, font))
    return found, y


def escape_text(text: str) -> str:
    """Escape text as markup, so that a node named `<script>` is only a name; letters that cannot be seen are replaced.

    Those are control characters, halves of characters and changes of direction.
    """
    return escape("".join(letter if letter.isprintable() else "\ufffd" for letter in text))


def render_element(name: str, *inner: str, **attributes: float | str) -> str:
    """One element; `font_size=13` becomes font-size="13", `class_` becomes class. `inner` is markup already."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{value if isinstance(value, str) else format_length(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{pairs}>{''.join(inner)}</{name}>" if inner else f"<{name}{pairs}/>"


def format_length(number: float) -> str:
    """A length with at most two decimals."""
    return f"{number:.2f}".rstrip("0").rstrip(".") if number % 1 else str(int(number))


def render_group(text: str, *inner: str, **attributes: str) -> str:
    """Group elements with the text that a browser shows when the pointer rests on them."""
    return render_element("g", render_element("title", escape_text(text)), *inner, **attributes)


def render_text(kind: str, x: float, y: float, text: str, font: float) -> str:
    """Text of these classes whose baseline starts at x, y, or has its middle there."""
    return render_element("text", escape_text(text), class_=kind, x=x, y=y, font_size=font)


def render_rect(kind: str, x: float, y: float, width: float, height: float, **attributes: float | str) -> str:
    named = {"class_": kind} if kind else {}
    return render_element("rect", **named, x=x, y=y, width=width, height=height, **attributes)
