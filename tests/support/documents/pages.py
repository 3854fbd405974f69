"""The pages of the project as tests see them: fenced blocks with their marks, links, headings.

A block of commands (`console` or `bash`) is run by tests/end_to_end/test_docs.py unless an HTML comment in the
line above its fence says why it is not. The marks, invisible on the rendered page:

    <!-- not run: REASON -->     a command block that no test can run, and why
    <!-- exits: 3 -->            the exit code of the block's last command, when it is not 0

A block with a title (```python title="train.py") is a file that the blocks after it use; the page shows the title.

Pages name stores by the addresses that they usually have. Where a page is run those become others: 127.0.0.1:2379
an etcd started for this page, 127.0.0.1:29400 and 127.0.0.1:9400 free ports.
The machine is called gpu-1, and the directory /home/me/job.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
COMMANDS = ("console", "bash")
LANGUAGES = (*COMMANDS, "python", "text", "yaml", "dockerfile")
ETCD, SERVED, METRICS = "127.0.0.1:2379", "127.0.0.1:29400", "127.0.0.1:9400"
MACHINE, DIRECTORY = "gpu-1", "/home/me/job"
_FENCE = re.compile(r"^( *)```(.*)$")
_TITLE = re.compile(r' title="([^"]+)"$')
_MARK = re.compile(r"^ *<!-- (not run|exits): (.+) -->$")
_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]{12}Z \S+ ", re.MULTILINE)
_VARIES = re.compile(
    r"(?P<any>\.\.\.)|(?P<blanks> {2,})|(?P<id>(?<=[\W_])[0-9a-f]{8}(?:[0-9a-f]{8})?\b)"
    r"|(?P<time>(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:\.\d+)?)"
    r"|(?P<number>(?<=pid )\d+|(?<=pid: )\d+|\d+(?= ?s ago| samples/s| ?%|M\b)|(?<=after )\d+(?= s\b)"
    r"|(?<=waited for )\d+(?= s\b)|(?<=^  for )\d+(?= s\b)|\d+(?:,\d{3})+|\d+\.\d+|\b\d{4,}\b)"
)
_VARIANTS = {
    "any": ".*?",
    "blanks": " {2,}",
    "id": "[0-9a-f]+",
    "time": r"(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d(?:\.\d+)?",
    "number": r"[\d,.]*\d",
}
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|<img[^>]* src=\"([^\"]+)\"")


class Block(NamedTuple):
    """One fenced block; `line` is that of its fence. At most one of the marks is there."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str = ""
    exits: int = 0
    file: str = ""

    @property
    def is_run(self) -> bool:
        return self.language in COMMANDS and not self.not_run and not self.file

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def script(self) -> str:
        """The commands as a shell reads them: in a console block those behind "$ ", continued behind "> "."""
        if self.language == "bash":
            return self.text
        lines = self.text.splitlines()
        return "".join(line[2:] + "\n" for line in lines if line.startswith(("$ ", "> ")))

    @property
    def output(self) -> str:
        """What a console block shows of its output; "..." stands for anything."""
        if self.language == "bash":
            return ""
        return "".join(line + "\n" for line in self.text.splitlines() if not line.startswith(("$ ", "> ")))


def pages() -> list[Path]:
    """Every Markdown page of the repository."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order. Raises ValueError for one that is never closed."""
    found: list[Block] = []
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        if not (fence := _FENCE.match(lines[at])):
            at += 1
            continue
        indent, language = fence.groups()
        end = at + 1
        while end < len(lines) and lines[end] != f"{indent}```":
            end += 1
        if end == len(lines):
            raise ValueError(f"{page}:{at + 1}: a block without an end")
        text = "".join(line[len(indent) :] + "\n" for line in lines[at + 1 : end])
        title = _TITLE.search(language)
        block = Block(page, at + 1, _TITLE.sub("", language).strip(), text, file=title[1] if title else "")
        mark = _MARK.match(lines[at - 1]) if at else None
        if mark and mark[1] == "exits":
            block = block._replace(exits=int(mark[2]))
        elif mark:
            block = block._replace(not_run=mark[2].strip())
        found.append(block)
        at = end + 1
    return found


def is_shown(shown: str, output: str) -> bool:
    """Whether `output` is what a page shows, which is one real run.

    A line "..." stands for any lines, "..." within a line for any text. What another run has otherwise may differ:
    times, pids, ports, numbers with a fraction, the width of columns. The page shows a terminal, where the agent's
    lines have no time and node before them.
    """
    output = _STAMP.sub("", output)
    pattern = "".join("(?:.*\n)*?" if line == "..." else f"{_pattern(line)}\n" for line in shown.splitlines())
    return re.fullmatch(pattern, output if output.endswith("\n") else f"{output}\n") is not None


def _pattern(line: str) -> str:
    found, at = "", 0
    for match in _VARIES.finditer(line):
        assert match.lastgroup is not None
        found += re.escape(line[at : match.start()]) + _VARIANTS[match.lastgroup]
        at = match.end()
    return found + re.escape(line[at:])


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """The targets of all links and images that do not leave the repository."""
    targets = [first or second for first, second in _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page)))]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """What `#...` can name on a page, by the rule of Python-Markdown: lower case, no punctuation, dashes for blanks."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


# Headings of the page, and the environment that sets what is below: "" every one.
FRAMEWORKS = {
    "In every worker": "",
    "Under JAX": "jax",
    "Under Paddle": "paddle",
    "On TPU chips": "tpu",
    "Under torch_xla": "xla",
}


class Variable(NamedTuple):
    """A row of docs/reference/worker-variables.md. A name with <AXIS> stands for one variable per axis of the mesh."""

    name: str
    framework: str
    source: str


def _read_variables() -> tuple[Variable, ...]:
    page = (ROOT / "docs/reference/worker-variables.md").read_text()
    return tuple(
        Variable(name, FRAMEWORKS[heading], source)
        for heading, text in re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        if heading in FRAMEWORKS
        for name, source in re.findall(r"^\| `([^`]+)` \| .+ \| .+ \| (.+) \|$", text, re.MULTILINE)
    )


VARIABLES = _read_variables()
