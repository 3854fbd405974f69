"""What others read of us stays as it is, whatever it is called here.

FREEZE=1 writes the files in `frozen` anew: for a change that others are meant to see.
"""

from __future__ import annotations

import os

import pytest

from tests.support import frozen


@pytest.mark.parametrize("section", frozen.SECTIONS)
def test_others_read_what_they_have_always_read(section: str) -> None:
    file, lines = frozen.FOLDER / f"{section}.txt", list(frozen.SECTIONS[section]())
    if os.environ.get("FREEZE"):
        file.write_text("".join(f"{line}\n" for line in lines))
    hint = "FREEZE=1 pytest tests/unit/test_frozen.py writes it anew, if others are meant to see the change"
    assert lines == file.read_text().splitlines(), hint
