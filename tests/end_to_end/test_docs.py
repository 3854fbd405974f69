"""Every command in README and in the documentation does what the page says, and the pages build.

The blocks of a page run in order in one directory that has the repository's examples; the marks that a page
can give them are explained in tests/support/documentation.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documentation import COMMANDS, LANGUAGES, ROOT, Block, blocks, is_shown, pages

BLOCK_LIMIT_S = 180.0
ALL_BLOCKS = [block for page in pages() for block in blocks(page)]
PAGES_THAT_RUN = sorted({block.page for block in ALL_BLOCKS if block.is_run})


def run(block: Block, directory: Path) -> tuple[int, str]:
    """Run a block's commands in one shell; its exit code, and stdout and stderr as they came."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("LAUNCHER_", "PET_", "TORCHEL"))}
    environ |= {"PATH": f"{Path(sys.executable).parent}:{environ['PATH']}", "TMPDIR": str(directory)}
    shell = subprocess.Popen(
        ["bash", "-eu", "-o", "pipefail", "-c", block.script],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        output, _ = shell.communicate(timeout=BLOCK_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)  # an agent's workers do not outlive it
        output, _ = shell.communicate()
        pytest.fail(f"{block.where} was not done after {BLOCK_LIMIT_S:g} s:\n{output}")
    return shell.returncode, output


@pytest.mark.parametrize("page", PAGES_THAT_RUN, ids=[str(page.relative_to(ROOT)) for page in PAGES_THAT_RUN])
def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        if not block.is_run:
            continue
        code, output = run(block, tmp_path)
        assert code == block.exits, f"{block.where} exits with {code}:\n{output}"
        if block.output:
            assert is_shown(block.output, output), f"{block.where} shows\n{block.output}\nbut prints\n{output}"


@pytest.mark.parametrize("block", ALL_BLOCKS, ids=[block.where for block in ALL_BLOCKS])
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES, f"one of {', '.join(LANGUAGES)} must stand behind the fence"
    if block.language in COMMANDS:
        assert block.script.strip(), "a block of commands without a command"
    else:
        assert not block.not_run, "only commands are run, so only they need a reason not to be"
        assert not block.text.startswith("$ "), "commands belong in a console block, where they are run"
    if block.language == "python":
        compile(block.text, block.where, "exec")


def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=BLOCK_LIMIT_S)
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "index.html").exists()
