"""Draws idea.svg, the picture in README: two rounds of one job, and what the loss of a node changes.

It also has what the other pictures are made of. A picture brings its own background, and other colours for readers
who prefer a dark page. Run `python docs/images/idea.py` after a change; a test compares the file with what this script
draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

WIDTH, HEIGHT = 700, 470
MIDDLE = WIDTH / 2
PANEL_HEIGHT = 196
LEFT, NODE_WIDTH, NODE_STEP, LEAF_GAP = 46, 88, 96, 20
REPLICAS = ("#1f5fbf", "#a04a00", "#1e7a3c")  # each at least 4.5 to 1 against white text
INK, SOFT, LINE, PAPER, CARD, LOST = "#1c2733", "#4a5866", "#7b8794", "#f4f6f8", "#ffffff", "#b3261e"
BAND, FRAME = "#e3e9ef", "#c9d1d9"

DARK = {
    "text": {INK: "#e6edf3", SOFT: "#aab6c2", LOST: "#ff8a80", REPLICAS[0]: "#8ab4ff", LINE: "#8793a0"},
    "rect": {PAPER: "#161b22", CARD: "#22282f", BAND: "#2c3440"},
    "path": {INK: "#e6edf3", SOFT: "#aab6c2", LINE: "#8793a0", LOST: "#ff8a80"},
}  # by element: what a colour becomes
STYLE = "".join(
    f"{name}[{key}='{light}']{{{key}:{dark}}}"
    for name, colours in DARK.items()
    for light, dark in colours.items()
    for key in (("fill", "stroke") if name == "path" else ("fill",))
)
FRAMES = {LOST: DARK["path"][LOST], INK: DARK["path"][INK], LINE: "#57606a", FRAME: "#30363d"}
LINES = "".join(f"rect[stroke='{light}']{{stroke:{dark}}}" for light, dark in FRAMES.items())

Ranks = tuple[int, ...] | None  # of one node; () is a spare, None is lost


def element(name: str, words: str | None = None, **attributes: float | str) -> str:
    """One SVG element; `font_size=13` becomes font-size="13"."""
    pairs = [
        f'{key.replace("_", "-")}="{value if isinstance(value, str) else f"{value:g}"}"'
        for key, value in attributes.items()
    ]
    return f"<{name} {' '.join(pairs)}" + ("/>" if words is None else f">{words}</{name}>")


def text(
    x: float, y: float, words: str, *, size: int = 13, colour: str = INK, weight: str = "400", anchor: str = "middle"
) -> str:
    return element("text", words, x=x, y=y, font_size=size, font_weight=weight, fill=colour, text_anchor=anchor)


def box(x: float, y: float, width: float, height: float, *, fill: str, line: str = LINE, dashes: str = "none") -> str:
    return element("rect", x=x, y=y, width=width, height=height, rx=5, fill=fill, stroke=line, stroke_dasharray=dashes)


def wire(path: str, *, colour: str = LINE, dashes: str = "none") -> str:
    return element("path", d=path, fill="none", stroke=colour, stroke_dasharray=dashes)


def svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """A whole file: the parts on a background of their own."""
    paper = box(0.5, 0.5, width - 1, height - 1, fill=PAPER, line=FRAME)
    style = f"<style>@media(prefers-color-scheme:dark){{{STYLE}{LINES}}}</style>"
    words = "\n".join(["", f"<title>{title}</title>", style, paper, *parts, ""])
    size: dict[str, float | str] = {"viewBox": f"0 0 {width:g} {height:g}", "width": width, "height": height}
    font = "system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif"
    return element("svg", words, xmlns="http://www.w3.org/2000/svg", **size, role="img", font_family=font) + "\n"


def elbow(x1: float, y1: float, x2: float, y2: float) -> str:
    return wire(f"M{x1:g} {y1:g}V{(y1 + y2) / 2:g}H{x2:g}V{y2:g}")


def label(middle: float, y: float, width: float, words: str) -> list[str]:
    box_ = box(middle - width / 2, y, width, 20, fill=CARD)
    return [box_, text(middle, y + 14.5, words, size=12, colour=SOFT)]


def node_left(index: int) -> float:
    return LEFT + index * NODE_STEP + index // 2 * LEAF_GAP


def node_middle(index: int) -> float:
    return node_left(index) + NODE_WIDTH / 2


def node(index: int, top: float, ranks: Ranks) -> list[str]:
    """One node: its name, then its ranks in the colour of their replica."""
    left, middle = node_left(index), node_middle(index)
    lost = ranks is None
    fill, line, ink = (PAPER, LOST, LOST) if lost else (CARD, LINE, INK)
    parts = [box(left, top, NODE_WIDTH, 58, fill=fill, line=line, dashes="none" if ranks else "4 3")]
    parts.append(text(middle, top + 17, f"node {'abcdef'[index]}", colour=ink, weight="600"))
    if not ranks:
        parts.append(text(middle, top + 43, "lost" if lost else "spare", colour=LOST if lost else SOFT))
    for slot, rank in enumerate(ranks or ()):
        x, colour = left + 8 + slot * 38, REPLICAS[rank // 4]
        parts.append(element("rect", x=x, y=top + 25, width=34, height=26, rx=4, fill=colour))
        parts.append(text(x + 17, top + 43, str(rank), colour="#ffffff", weight="600", size=14))
    return parts


def panel(top: float, title: str, world: str, seal: str, ranks: list[Ranks]) -> list[str]:
    """One round: the network as a tree, the nodes as its leaves, and the seal that their agents read."""
    spine, leaf, nodes, store = top + 30, top + 62, top + 96, top + 170
    parts = [text(LEFT - 12, top + 16, title, size=15, weight="700", anchor="start")]
    parts.append(text(WIDTH - LEFT + 12, top + 16, world, colour=SOFT, anchor="end"))
    leaves = [(node_middle(2 * i) + node_middle(2 * i + 1)) / 2 for i in range(3)]
    parts += [elbow(MIDDLE, spine + 20, middle, leaf) for middle in leaves]
    parts += [elbow(leaves[i // 2], leaf + 20, node_middle(i), nodes) for i in range(6)]
    parts += label(MIDDLE, spine, 90, "spine switch")
    for i, middle in enumerate(leaves):
        parts += label(middle, leaf, 80, f"leaf switch {i + 1}")
    for i, own in enumerate(ranks):
        parts += node(i, nodes, own)
        if own is not None:
            parts.append(wire(f"M{node_middle(i):g} {nodes + 58:g}V{store:g}", dashes="2 3"))
    parts.append(box(LEFT - 12, store, WIDTH - 2 * LEFT + 24, 26, fill=BAND))
    parts.append(text(MIDDLE, store + 17.5, seal))
    return parts


def picture() -> str:
    """The whole SVG file."""
    whole: list[Ranks] = [(2 * i, 2 * i + 1) for i in range(6)]
    after: list[Ranks] = [*whole[:4], (), None]
    between = 14 + PANEL_HEIGHT
    parts = [
        *panel(
            14,
            "Round 1",
            "mesh dp=*,tp=4: 3 whole replicas, 12 ranks",
            "agents read the plan for round 1 from the store",
            whole,
        ),
        wire(f"M{MIDDLE:g} {between + 8}V{between + 38}m-6 -8l6 8l6 -8", colour=INK),
        text(MIDDLE - 14, between + 27, "node f is lost: stop everywhere,", anchor="end"),
        text(MIDDLE + 14, between + 27, "agree again, start the next round", anchor="start"),
        *panel(
            between + 48,
            "Round 2",
            "2 whole replicas, 8 ranks; ranks 0 to 7 stay",
            "agents read the plan for round 2; node e waits as a spare",
            after,
        ),
    ]
    title = "Six nodes form three replicas; one node is lost; two replicas continue, and one node is spare"
    return svg(WIDTH, HEIGHT, title, parts)


if __name__ == "__main__":
    Path(__file__).with_name("idea.svg").write_text(picture())
