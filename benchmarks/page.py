"""The pages of figures, and those of README.md: parts between marks are made of records, people write the rest.

docs/performance.md has the results, docs/internals/measurements.md what is behind them. Both are read as one text.

A part that is made begins with `<!-- made: NAME -->` and ends with `<!-- end: NAME -->`; TABLES says what belongs
there. All else is left as it is. As figures are made anew, the text that people write contains only numbers that no
measurement changes: settings, sizes and aims, listed in FIXED. `find_figures` finds others.

Some pages have figures that are measured by hand, on a cluster or for hours. Each of their sections names the commit
and the day (DATED); `find_undated` finds those that do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from benchmarks import pictures, planner_tables, runs, tables, truth_tables
from benchmarks.runs import History

ROOT = Path(__file__).parents[1]
RECORDS, IMAGES = ROOT / "benchmarks/records", ROOT / "docs/images"
PAGE, DETAILS = ROOT / "docs/performance.md", ROOT / "docs/internals/measurements.md"
BETWEEN = "\n<!-- the second page -->\n"
README = ROOT / "README.md"
MARKED = re.compile(r"<!-- made: ([\w-]+) -->\n.*?<!-- end: \1 -->", flags=re.DOTALL)
MARK = re.compile(r"<!-- (?:made|end): ([\w-]+) -->")
DATED = re.compile(r"[Mm]easured at commit `([0-9a-f]+)` on (\d{4}-\d\d-\d\d)")
WHOLE_PAGE = re.compile(rf"figures of this page were {DATED.pattern}")
FENCE = re.compile(r"^ *```.*?^ *```$", flags=re.DOTALL | re.MULTILINE)
SPREAD = re.compile(r"\d \(-?\d[\d.]* to -?\d|\d ± \d|\bmedians?\b")  # what only a measurement has
CODE = re.compile(r"^```.*?^```|`[^`\n]*`|<!--.*?-->", flags=re.DOTALL | re.MULTILINE)
FIGURE = re.compile(
    r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?:\s(?:ms|s|seconds|minutes|MiB|GiB|MB|%|per cent|times|requests|ranks)\b|\s%)"
    r"|(?<![\w.,-])\d+\.\d+(?![\w.])"
)
# Numbers in written text that are not measurements: settings, limits of the benchmarks, versions.
FIXED = frozenset(
    {
        "2.13",  # torchrun's version
        "3.4",  # etcd's
        "5 s",  # the lease by default; the time that a round must live to count as progress
        "1 s",  # the longest that a member waits before it tries to lead
        "20 ms",  # between two dials that are to prove that a node is gone
        "0.2 s",  # for which further departures are gathered
        "5.5 s",  # the least pause between two kills
        "0.1",  # what a ratio means
        "16 ranks", "8 ranks",  # two nodes' and one's
        "3.10",  # the oldest Python
        "2.4",  # the oldest torch
        "30 s",  # how long the second tutorial waits
    }
)  # fmt: skip
TABLES = {
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
    "truth-aims": truth_tables.aims,
    "truth-cases": truth_tables.cases,
}


class PageError(Exception):
    """A page without the marks that it needs; the sentence says which."""


def read() -> str:
    """Both pages as one text."""
    return PAGE.read_text() + BETWEEN + DETAILS.read_text()


# docs/internals/decisions/0036-generated-parts-of-the-performance-page.md
def make(text: str, history: History) -> tuple[str, dict[str, str]]:
    """The pages with their parts made anew, and the pictures by file name. Raises PageError for wrong marks."""
    parts = {name: table(history) for name, table in TABLES.items()}
    files: dict[str, str] = {}
    for file, draw in pictures.PICTURES.items():
        picture = draw(history)
        parts[f"picture-{Path(file).stem}"] = _show(file, picture) if picture else ""
        files |= {file: picture.svg} if picture else {}
    first, between, second = _fill(text, parts).partition(BETWEEN)
    return first + between + second.replace("](images/", "](../images/").replace("](internals/", "]("), files


def _show(file: str, picture: pictures.Picture) -> str:
    """The picture. One whose figures are of several commits says so; else the table before it does."""
    found = {run.source for run in picture.runs}
    image = f"![{picture.alt}](images/{file})"
    return f"{image}\n\n{tables.sources(found)}" if len(found) > 1 else image


def make_readme(text: str, history: History) -> str:
    """README.md with its figures made anew. Raises PageError for marks that are amiss."""
    return _fill(text, {"figures": tables.first(history)})


def _fill(text: str, parts: Mapping[str, str]) -> str:
    def replace(match: re.Match[str]) -> str:
        name = match[1]
        if name not in parts:
            raise PageError(f"nobody makes a part {name!r}; there are {', '.join(parts)}")
        content = parts[name].strip()
        between = f"\n{content}\n\n" if content else ""
        return f"<!-- made: {name} -->\n{between}<!-- end: {name} -->"

    written = MARKED.sub(replace, text)
    found = MARKED.findall(text)
    for name in parts:
        if found.count(name) != 1:
            raise PageError(f"the page needs one part between `<!-- made: {name} -->` and `<!-- end: {name} -->`")
    if left := MARK.findall(MARKED.sub("", text)):
        raise PageError(f"the mark of the part {left[0]!r} has no other to go with it")
    return written


def find_figures(text: str) -> list[str]:
    """Figures in what people wrote, which nobody would make anew."""
    prose = CODE.sub("", MARKED.sub("", text))
    return [found[0] for found in FIGURE.finditer(prose) if found[0] not in FIXED]


def find_undated(text: str) -> list[str]:
    """Headings of sections that have medians or ranges of a measurement by hand, and neither commit nor day."""
    if WHOLE_PAGE.search(text):
        return []
    sections = re.split(r"^(?=#+ )", FENCE.sub("", MARKED.sub("", text)), flags=re.MULTILINE)
    found = [section for section in sections if SPREAD.search(section) and not DATED.search(section)]
    return [section.partition("\n")[0] for section in found]


def write() -> History:
    """Make page, README's figures and pictures anew. Raises RecordError and PageError before anything is written."""
    history = runs.load(RECORDS)
    text, files = make(read(), history)
    readme = make_readme(README.read_text(), history)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for file in pictures.PICTURES:
        (IMAGES / file).unlink(missing_ok=True)
    for file, svg in files.items():
        (IMAGES / file).write_text(svg)
    first, _, second = text.partition(BETWEEN)
    PAGE.write_text(first)
    DETAILS.write_text(second)
    README.write_text(readme)
    return history
