"""Draws node-death.svg: the recording as a picture that moves in a browser, without a player.

A terminal of the few sequences that `meshctl top` writes reads the cast; the screens that differ in more than their
clocks are the frames, shown one after the other for as long as they were there. Readers who prefer no motion see the
last one. Run `python docs/casts/picture.py` after a new recording; a test compares.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

CAST = Path(__file__).with_name("node-death.cast")
COLUMN, ROW, MARGIN = 8.4, 18, 12
INK, PAPER = "#e0e0e0", "#121212"
SEQUENCE = re.compile(r"\x1b\[([?>=]?)([\d;]*)([A-Za-z])|\x1b\].*?(?:\x07|\x1b\\)|([^\x1b])", re.DOTALL)
UNFINISHED = re.compile(r"\x1b[^A-Za-z\x1b]*$")  # the rest of the sequence comes with the next piece
CLOCK = re.compile(r"\d+(?::\d+)*\.?\d*")  # what changes each second: no frame of its own for that


class Cell(NamedTuple):
    letter: str = " "
    ink: str = INK
    paper: str = PAPER
    bold: bool = False


Screen = tuple[tuple[Cell, ...], ...]


def read(path: Path) -> Iterator[tuple[float, Screen]]:
    """What is on the screen after each piece of output, while the program has it."""
    head, *events = map(json.loads, path.read_text().splitlines())
    width, height = head["width"], head["height"]
    cells = [[Cell()] * width for _ in range(height)]
    row = column = 0
    style = Cell()
    rest = ""
    for at_s, _, piece in events:
        whole = rest + piece
        end = found.start() if (found := UNFINISHED.search(whole)) else len(whole)
        data, rest = whole[:end], whole[end:]
        for match in SEQUENCE.finditer(data):
            mark, numbers, name, letter = match.groups()
            if letter and letter >= " " and row < height and column < width:
                cells[row][column] = style._replace(letter=letter)
                column += 1
            elif name == "H" and not mark:
                row, column = (int(number) - 1 for number in numbers.split(";"))
            elif name == "m":
                style = _restyle(style, [int(number or 0) for number in numbers.split(";")])
        yield at_s, tuple(map(tuple, cells))


def _restyle(style: Cell, codes: list[int]) -> Cell:
    at = 0
    while at < len(codes):
        if codes[at] == 0:
            style = Cell()
        elif codes[at] == 1:
            style = style._replace(bold=True)
        elif codes[at] in (38, 48):
            colour = "#{:02x}{:02x}{:02x}".format(*codes[at + 2 : at + 5])
            style = style._replace(ink=colour) if codes[at] == 38 else style._replace(paper=colour)
            at += 4
        at += 1
    return style


def words(screen: Screen) -> str:
    return CLOCK.sub("0", "\n".join("".join(cell.letter for cell in line).rstrip() for line in screen))


def frames(path: Path) -> list[tuple[float, Screen]]:
    """Screens by the time at which they appear, those that stay for a while, from the first ranks on."""
    seen = [(at_s, screen) for at_s, screen in read(path) if "running" in words(screen)]
    kept = [(before, screen) for (before, screen), (after, _) in pairwise(seen) if after - before > 0.2]
    return [next(same) for _, same in groupby(kept, key=lambda each: words(each[1]))]


def find_rows(screens: list[Screen]) -> list[int]:
    """The rows to draw: without the second and further ones of those that are empty in every frame."""
    empty = [all(cell.letter == " " for screen in screens for cell in screen[row]) for row in range(len(screens[0]))]
    return [row for row, is_empty in enumerate(empty) if not (is_empty and (row == 0 or empty[row - 1]))]


def draw(screen: Screen, rows: list[int]) -> Iterator[str]:
    for row, line in enumerate(screen[at] for at in rows):
        column = 0
        for (ink, paper, bold), same in groupby(line, key=lambda cell: cell[1:]):
            letters = "".join(cell.letter for cell in same)
            x, y = MARGIN + column * COLUMN, MARGIN + row * ROW
            if paper != PAPER:
                yield f'<rect x="{x:g}" y="{y:g}" width="{len(letters) * COLUMN:.4g}" height="{ROW}" fill="{paper}"/>'
            for part in re.finditer(r"\S(?:.*\S)?", letters):
                shift, found = x + part.start() * COLUMN, part[0]
                look = " class='b'" * bold + f" fill='{ink}'" * (ink != INK)
                yield (
                    f'<text x="{shift:g}" y="{y + 13:g}" textLength="{len(found) * COLUMN:.4g}"{look}>'
                    f"{html.escape(found, quote=False)}</text>"
                )
            column += len(letters)


def picture() -> str:
    """The whole SVG file."""
    found = frames(CAST)
    rows = find_rows([screen for _, screen in found])
    width, height = 2 * MARGIN + len(found[0][1][0]) * COLUMN, 2 * MARGIN + len(rows) * ROW
    begin_s, end_s = found[0][0], found[-1][0] + 4
    style = [
        f"text{{font:13px ui-monospace,Menlo,DejaVu Sans Mono,monospace;fill:{INK};white-space:pre}}",
        f".b{{font-weight:600}}.f{{opacity:0}}.f{len(found) - 1}{{opacity:1}}",
        "@media(prefers-reduced-motion:no-preference){",
    ]
    shown = [at_s for at_s, _ in found] + [end_s]
    for at, (start_s, stop_s) in enumerate(pairwise(shown)):
        start, stop = (100 * (each - begin_s) / (end_s - begin_s) for each in (start_s, stop_s))
        style.append(
            f"@keyframes f{at}{{0%{{opacity:{int(at == 0)}}}{start:.2f}%{{opacity:1}}{stop:.2f}%,100%{{opacity:0}}}}"
        )
        style.append(f".f{at}{{animation:f{at} {end_s - begin_s:.1f}s step-end infinite}}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img">',
        "<title>meshctl top while one of three nodes is killed: its ranks are lost, and the others continue</title>",
        f"<style>{''.join(style)}}}</style>",
        f'<rect width="{width:g}" height="{height:g}" rx="6" fill="{PAPER}"/>',
    ]
    for at, (_, screen) in enumerate(found):
        parts += [f'<g class="f f{at}">', *draw(screen, rows), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    CAST.with_suffix(".svg").write_text(picture())
