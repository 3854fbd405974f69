"""The list of differences from torchrun, read from the page that users read.

It is the tables of docs/reference/compatibility.md with the heading below: one row for a behaviour, with what is seen
of torchrun, what is seen of meshrun, and why. A case of the table that shows something else must be in the list, and
what is in the list must be seen.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.support.documents.pages import ROOT

PAGE = ROOT / "docs/reference/compatibility.md"
HEADING = "| behaviour | torchrun 2.13 | meshrun | why |"


class Difference(NamedTuple):
    behaviour: str
    torchrun: str
    meshrun: str
    why: str


def plain(text: str) -> str:
    """A cell, or what was seen, without the marks of Markdown."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("\\|", "|").strip()


def differences(text: str | None = None) -> dict[str, Difference]:
    """The rows of every table with the heading: behaviour -> row. `text`: the page, by default the one there is."""
    found: dict[str, Difference] = {}
    is_inside = False
    for line in (PAGE.read_text() if text is None else text).splitlines():
        if line == HEADING:
            is_inside = True
        elif not line.startswith("|"):
            is_inside = False
        elif is_inside and not line.startswith("| ---") and not line.startswith("|---"):
            cells = [plain(cell) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
            assert len(cells) == 4, f"not four cells: {line}"
            row = Difference(*cells)
            assert row.behaviour not in found, f"listed twice: {row.behaviour}"
            found[row.behaviour] = row
    return found


def expected(launcher: str, sentence: str, torchruns: str, listed: dict[str, Difference]) -> str:
    """What a launcher shall show: what torchrun does, or, of meshrun, what the list says."""
    row = listed.get(plain(sentence)) if launcher == "meshrun" else None
    return row.meshrun if row else plain(torchruns)
