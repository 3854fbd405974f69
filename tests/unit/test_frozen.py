"""What others read of us stays as it was, whatever it is called here.

The files in `frozen` were written by 0.1.0 before anything was renamed. `frozen/renames.json` says, for each of them,
which of its words are others now. FREEZE=1 writes them anew: for a change that others are meant to see.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support import frozen


def renamed(section: str) -> str:
    """The frozen text, with today's words where the map has others."""
    text = (frozen.FOLDER / f"{section}.txt").read_text()
    words = frozen.renames(section)
    return re.sub(r"\w+", lambda match: words.get(match[0], match[0]), text) if words else text


def compare(section: str, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if os.environ.get("FREEZE"):
        (frozen.FOLDER / f"{section}.txt").write_text(text)
    assert text.splitlines() == renamed(section).splitlines()


@pytest.mark.parametrize("section", frozen.SECTIONS)
def test_others_read_what_they_have_always_read(section: str) -> None:
    compare(section, list(frozen.SECTIONS[section]()))


def test_the_lock_of_a_node_lies_where_it_has_always_lain(tmp_path: Path) -> None:
    compare("lock", list(frozen.lock(tmp_path)))
