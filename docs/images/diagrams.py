"""Draws the pictures of the pages for users: who talks to whom, what a lost node costs, which way to choose.

They are as wide as a page's text, with letters that can be read on a phone. Run `python docs/images/diagrams.py` after
a change; a test compares the files with what this script draws.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.images.idea import BAND, CARD, INK, LINE, LOST, PAPER, REPLICAS, SOFT, box, element, svg, text, wire

WIDTH = 640
BLUE, BROWN, GREEN = REPLICAS
SIZE, LEADING = 14, 18


def arrow(x1: float, y1: float, x2: float, y2: float, *, colour: str = SOFT, both: bool = False) -> str:
    """A straight line with a head at its end, or at both."""
    turn = math.atan2(y2 - y1, x2 - x1)

    def head(x: float, y: float, turn: float) -> str:
        ends = [(x - 7 * math.cos(turn + side), y - 7 * math.sin(turn + side)) for side in (0.45, -0.45)]
        return f"M{ends[0][0]:.1f} {ends[0][1]:.1f}L{x:g} {y:g}L{ends[1][0]:.1f} {ends[1][1]:.1f}"

    path = f"M{x1:g} {y1:g}L{x2:g} {y2:g}{head(x2, y2, turn)}"
    return wire(path + (head(x1, y1, turn + math.pi) if both else ""), colour=colour)


def card(
    x: float,
    y: float,
    width: float,
    height: float,
    lines: Sequence[str],
    *,
    fill: str = CARD,
    line: str = LINE,
    strong: int = 1,
) -> list[str]:
    """A box with centred lines, the first of them in bold. On a fill that is no paper the letters are white."""
    colour = INK if fill in (CARD, PAPER, BAND) else "#ffffff"
    top = y + height / 2 - LEADING * (len(lines) - 1) / 2 + 5
    parts = [box(x, y, width, height, fill=fill, line=line)]
    for at, words in enumerate(lines):
        weight, ink = ("600", colour) if at < strong else ("400", SOFT if colour == INK else colour)
        parts.append(text(x + width / 2, top + at * LEADING, words, size=SIZE, weight=weight, colour=ink))
    return parts


def heading(words: str) -> str:
    return text(20, 32, words, size=17, weight="700", anchor="start")


def two_nodes() -> str:
    parts = [heading("Two nodes, and who talks to whom")]
    parts += card(150, 54, 340, 50, ["store", "etcd, or one that an agent hosts"], fill=BAND)
    for node, left in enumerate((20, 350)):
        middle = left + 75
        parts.append(box(left, 150, 270, 296, fill=PAPER))
        parts.append(text(left + 255, 174, f"node {node}", size=15, weight="700", anchor="end"))
        for at, (name, what) in enumerate(
            (("agent", ""), ("keeper", "outlives the workers"), ("supervisor", "starts and kills them"))
        ):
            top = 186 + at * 62
            parts += card(left + 20, top, 110, 34, [name])
            if what:
                parts.append(wire(f"M{middle} {top - 28}V{top}m-4 -7l4 7l4 -7", colour=SOFT))
                parts.append(text(left + 138, top + 22, what, size=12, colour=SOFT, anchor="start"))
        for at in range(2):
            x = left + 20 + at * 125
            parts += card(x, 386, 105, 40, [f"rank {2 * node + at}"], fill=(BLUE, GREEN)[node], line=PAPER)
            parts.append(arrow(middle, 344, x + 52, 385))
        parts.append(arrow(middle, 185, (170, 470)[node], 105, both=True))
    parts.append(text(320, 134, "agreement: port 2379 or 29400", size=13))
    parts.append(arrow(151, 203, 369, 203, both=True, colour=INK))
    parts.append(text(225, 196, "presence", size=13, anchor="middle"))
    parts.append(arrow(271, 406, 369, 406, both=True, colour=INK))
    parts.append(text(320, 470, "training: NCCL or gloo between ranks; rank 0 listens on MASTER_PORT", size=13))
    return svg(
        WIDTH, 488, "Agents share a store and watch each other; each starts its workers by keeper and supervisor", parts
    )


def lost_node() -> str:
    """To scale, by the time limits that both have by default; measured times are on the performance page."""
    left, scale, top, step = 176, 9.0, 66, 78
    lanes = (
        ("meshrun", "the agent is killed", ((0, 0.3, LOST, ""),), 0.3),
        ("meshrun", "power or network fails", ((0, 5, LOST, ""),), 5),
        (
            "torchrun",
            "either",
            ((0, 15, LOST, "no keep-alive"), (15, 45, BROWN, "last call: waits for more nodes")),
            45,
        ),
    )
    notes = (
        "its kernel refuses two connections, 20 ms apart: proof",
        "its lease of 5 s expires; by then it has killed its own workers",
        "",
    )
    parts = [heading("A node is lost: time until the others train again")]
    for at, (name, when, bars, ready) in enumerate(lanes):
        y = top + at * step
        parts.append(text(20, y + 13, name, size=15, weight="700", anchor="start"))
        parts.append(text(20, y + 31, when, size=12, colour=SOFT, anchor="start"))
        for start, end, colour, words in bars:
            parts.append(
                element(
                    "rect", x=left + start * scale, y=y, width=max((end - start) * scale, 4), height=28, fill=colour
                )
            )
            if words:
                parts.append(
                    text(left + (start + end) / 2 * scale, y + 19, words, size=12, colour="#ffffff", weight="600")
                )
        x = left + ready * scale
        parts.append(element("rect", x=x, y=y, width=left + 49 * scale - x, height=28, fill=GREEN))
        if at < 2:
            parts.append(
                text((x + left + 49 * scale) / 2, y + 19, "workers run", size=13, colour="#ffffff", weight="600")
            )
            parts.append(text(left, y + 46, notes[at], size=12, colour=SOFT, anchor="start"))
    axis = top + 3 * step - 28
    parts.append(wire(f"M{left} {axis}H{left + 49 * scale:g}"))
    for second in (0, 10, 20, 30, 40):
        x = left + second * scale
        parts += [wire(f"M{x:g} {axis}v6"), text(x, axis + 22, f"{second} s", size=12, colour=SOFT)]
    parts.append(
        text(
            20,
            axis + 48,
            "By the default limits of meshrun and torchrun 2.13 with --nnodes 3:4; without imports.",
            size=12,
            colour=SOFT,
            anchor="start",
        )
    )
    return svg(
        WIDTH,
        axis + 62,
        "meshrun restarts within milliseconds or the lease of 5 s; torchrun's limits add up to 45 s",
        parts,
    )


def _choose(title: str, rows: Sequence[tuple[str, Sequence[str]]], last: Sequence[str], alt: str) -> str:
    """Questions below each other; a yes leads to the right, a no to the next question."""
    height, gap, question, answer = 54, 26, 270, 280
    parts = [heading(title)]
    y = 54.0
    for words, found in rows:
        parts += card(20, y, question, height, words.split("|"), fill=BAND, strong=2)
        parts += card(WIDTH - 20 - answer, y, answer, height, found)
        parts.append(arrow(20 + question, y + height / 2, WIDTH - 21 - answer, y + height / 2))
        parts.append(text((question + WIDTH - answer) / 2, y + height / 2 - 6, "yes", size=12, colour=SOFT))
        parts.append(arrow(20 + question / 2, y + height, 20 + question / 2, y + height + gap - 1))
        parts.append(text(30 + question / 2, y + height + 17, "no", size=12, colour=SOFT, anchor="start"))
        y += height + gap
    parts += card(20, y, question, height, last)
    return svg(WIDTH, y + height + 20, alt, parts)


def choose_store() -> str:
    return _choose(
        "Which rendezvous?",
        (
            ("Does the job run on|one machine?", ("no store", "meshrun train.py")),
            ("Must it survive the loss|of any node?", ("etcd", "--rdzv-backend etcd")),
            ("Does a controller number|the nodes and name a master?", ("static", "--node-rank, --master-addr")),
        ),
        ("c10d: an agent hosts it", "--rdzv-backend c10d"),
        "One machine needs no store; etcd survives the loss of any node; else static node ranks, or c10d",
    )


def exit_codes() -> str:
    rows = (
        ("0", "the whole job has succeeded", "done", GREEN),
        ("75", "nodes or the store are missing", "retry the command", BLUE),
        ("143, 137", "node stopped or cut off", "replace this node", BLUE),
        ("2", "the command line is wrong", "stop: correct the command", LOST),
        ("76", "a restart would fail again", "stop: do not requeue", LOST),
        ("70", "a bug in meshrun", "stop: report it", LOST),
        ("any other", "a worker failed", "stop: read the report", LOST),
    )
    parts = [heading("Exit code, and what a scheduler should do")]
    for at, (code, why, action, colour) in enumerate(rows):
        y = 54 + at * 48
        parts += card(20, y, 90, 36, [code], fill=BAND)
        parts.append(text(124, y + 23, why, size=SIZE, anchor="start"))
        parts += [arrow(352, y + 18, 388, y + 18), *card(390, y, 230, 36, [action], fill=colour, line=colour)]
    return svg(
        WIDTH, 54 + len(rows) * 48 + 8, "0: done; 75: run again; 143 and 137: replace the node; others: stop", parts
    )


def mesh() -> str:
    """Six nodes of eight devices; a colour is a replica, a card one of its two pipeline stages."""
    parts = [heading("--mesh pp=2,dp=*,tp=8 on nodes of 8 GPUs")]
    for row, (words, nodes) in enumerate(
        (
            ("6 nodes: dp=3, 48 ranks", ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1))),
            (
                "h3 is lost: dp=2, 32 ranks; h4 takes its place, h5 becomes a spare",
                ((0, 0), (0, 1), (1, 0), None, (1, 1), ()),
            ),
        )
    ):
        top = 56 + row * 150
        parts.append(text(20, top + 12, words, size=SIZE, weight="600", anchor="start"))
        for at, place in enumerate(nodes):
            x = 20 + at * 101
            fill, line = (PAPER, LOST) if place is None else (CARD, LINE)
            parts.append(box(x, top + 24, 93, 96, fill=fill, line=line, dashes="none" if place else "4 3"))
            parts.append(
                text(x + 10, top + 43, f"h{at}", weight="600", anchor="start", colour=LOST if place is None else INK)
            )
            if not place:
                words = "lost" if place is None else "spare"
                parts.append(text(x + 46, top + 84, words, size=SIZE, colour=LOST if place is None else SOFT))
                continue
            replica, stage = place
            parts.append(text(x + 84, top + 43, f"pp {stage}", size=12, colour=SOFT, anchor="end"))
            parts += [
                element(
                    "rect", x=x + 9 + at % 4 * 19, y=top + 54 + at // 4 * 20, width=16, height=16, rx=3, fill=colour
                )
                for colour, at in ((REPLICAS[replica], device) for device in range(8))
            ]
            parts.append(text(x + 46, top + 111, f"dp {replica}, tp 0-7", size=12, colour=SOFT))
    return svg(
        WIDTH,
        352,
        "Three replicas of two nodes each; when one node is lost two replicas continue, and one node is spare",
        parts,
    )


DIAGRAMS: dict[str, Callable[[], str]] = {
    "two-nodes.svg": two_nodes,
    "lost-node.svg": lost_node,
    "choose-store.svg": choose_store,
    "exit-codes.svg": exit_codes,
    "mesh.svg": mesh,
}

if __name__ == "__main__":
    for name, draw in DIAGRAMS.items():
        Path(__file__).with_name(name).write_text(draw())
