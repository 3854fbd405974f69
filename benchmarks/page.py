"""docs/performance.md: what is made of records stands between marks, what people explain stands between those.

A part that is made begins with `<!-- made: NAME -->` and ends with `<!-- end: NAME -->`; BLOCKS says what belongs
there. All else is left as it is. As figures are made anew, what people write has none but those that no measurement
changes: settings, sizes and aims, listed in FIXED. `stray` finds others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from benchmarks import derived, pictures, planner_tables, runs, tables
from benchmarks.runs import History

ROOT = Path(__file__).parents[1]
RECORDS, PAGE, IMAGES = ROOT / "benchmarks/records", ROOT / "docs/performance.md", ROOT / "docs/images"
MARKED = re.compile(r"<!-- made: ([\w-]+) -->\n.*?<!-- end: \1 -->", flags=re.DOTALL)
MARK = re.compile(r"<!-- (?:made|end): ([\w-]+) -->")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|<!--.*?-->", flags=re.DOTALL | re.MULTILINE)
FIGURE = re.compile(
    r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?:\s(?:ms|s|seconds|minutes|MiB|GiB|MB|%|per cent|times|requests|ranks)\b|\s%)"
    r"|(?<![\w.,-])\d+\.\d+(?![\w.])"
)
# What stands in the text of people and is no measurement: settings, limits of the benchmarks, versions.
FIXED = frozenset(
    {
        "2.13",  # torchrun's version
        "3.4",  # etcd's
        "5 s",  # the lease by default; the time that a round must live to count as progress
        "1 s",  # the longest that a member waits before it tries to lead
        "20 ms",  # between two dials that are to prove that a node is gone
        "0.2 s",  # for which further departures are gathered
        "180 s",  # when a first round is given up
        "5.5 s",  # the least pause between two kills
        "0.1",  # what a ratio means
        "16 ranks", "8 ranks",  # two nodes' and one's
    }
)  # fmt: skip


class PageError(Exception):
    """A page without the marks that it needs; the sentence says which."""


def _picture(file: str) -> Callable[[History, dict[str, str]], str]:
    def shown(history: History, files: dict[str, str]) -> str:
        picture = pictures.PICTURES[file](history)
        if picture is None:
            return ""
        files[file] = picture.svg
        return picture.shown(file)

    return shown


def _table(table: Callable[[History], str]) -> Callable[[History, dict[str, str]], str]:
    return lambda history, files: table(history)


BLOCKS: dict[str, Callable[[History, dict[str, str]], str]] = {
    **{
        name: _table(table)
        for name, table in {
            "machine": tables.machine,
            "aims": tables.aims,
            "one-node": tables.one_node,
            "warm": tables.warm,
            "rounds": tables.rounds,
            "events": tables.events,
            "scale": tables.scale,
            "runs": tables.when,
            "placement-aims": planner_tables.aims,
            "placement-costs": planner_tables.costs,
            "placement-times": planner_tables.seconds,
            "placement-moves": planner_tables.moves,
        }.items()
    },
    **{f"picture-{Path(file).stem}": _picture(file) for file in pictures.PICTURES},
}


# docs/internals/decisions/0036-generated-parts-of-the-performance-page.md
def made(text: str, history: History) -> tuple[str, dict[str, str]]:
    """The page with its parts made anew, and the pictures by file name. Raises PageError for marks that are amiss."""
    files: dict[str, str] = {}

    def part(match: re.Match[str]) -> str:
        name = match[1]
        if name not in BLOCKS:
            raise PageError(f"nobody makes a part {name!r}; there are {', '.join(BLOCKS)}")
        content = BLOCKS[name](history, files).strip()
        between = f"\n{content}\n\n" if content else ""
        return f"<!-- made: {name} -->\n{between}<!-- end: {name} -->"

    written = MARKED.sub(part, text)
    found = MARKED.findall(text)
    for name in BLOCKS:
        if found.count(name) != 1:
            raise PageError(f"the page needs one part between `<!-- made: {name} -->` and `<!-- end: {name} -->`")
    if left := MARK.findall(MARKED.sub("", text)):
        raise PageError(f"the mark of the part {left[0]!r} has no other to go with it")
    return written, files


def stray(text: str) -> list[str]:
    """Figures in what people wrote, which nobody would make anew."""
    prose = CODE.sub("", MARKED.sub("", text))
    return [found[0] for found in FIGURE.finditer(prose) if found[0] not in FIXED]


def history(folder: Path = RECORDS) -> History:
    """All records, with what is derived from them. Raises RecordError."""
    found = runs.load(folder)
    derived.add(found)
    return found


def write(records: Path = RECORDS, page: Path = PAGE, images: Path = IMAGES) -> History:
    """Make page and pictures anew. Raises RecordError and PageError before anything is written."""
    found = history(records)
    text, files = made(page.read_text(), found)
    images.mkdir(parents=True, exist_ok=True)
    for file in pictures.PICTURES.keys() - files.keys():
        (images / file).unlink(missing_ok=True)
    for file, svg in files.items():
        (images / file).write_text(svg)
    page.write_text(text)
    return found
