"""The picture on the page about placement is what the command on that page draws."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.cli.running import run
from tests.support.documents.pages import ROOT, blocks

PAGE = ROOT / "docs/concepts/placement.md"
PICTURE = ROOT / "docs/images/placement.svg"


def command() -> list[str]:
    """The words of the page's only command that plans."""
    (block,) = [block for block in blocks(PAGE) if block.script.startswith("meshctl plan")]
    return shlex.split(block.script)


def test_the_picture_on_the_page_is_what_its_command_draws(tmp_path: Path) -> None:
    outcome = run(*command(), "--svg", "plan.svg", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "plan.svg").read_text() == PICTURE.read_text(), "make docs draws it anew"


def test_make_draws_the_picture_with_the_command_of_the_page() -> None:
    recipe = f"\t.venv/bin/{shlex.join(command())} --svg {PICTURE.relative_to(ROOT)} >/dev/null\n"
    assert recipe in (ROOT / "Makefile").read_text()
