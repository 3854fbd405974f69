"""Every command in README and in the documentation does what the page says, and the pages build.

The blocks of a page run in order in one directory that has the repository's examples; the marks that a page
can give them, and the stores that it can name, are explained in tests/support/documents/pages.py. What a block leaves
running in the background runs on until the page has been read to its end.

Each worker that imports torch takes two seconds of a core. So one page runs the examples that do; on the others
stand-ins print the same, and a script that a page itself shows finds torch in memory.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs import website
from tests.support.documents.pages import (
    COMMANDS,
    DIRECTORY,
    ETCD,
    LANGUAGES,
    MACHINE,
    METRICS,
    ROOT,
    SERVED,
    Block,
    blocks,
    is_shown,
    pages,
)
from tests.support.network.namespaces import free_port
from tests.support.stores.etcd import EtcdServer

BLOCK_LIMIT_S = 180.0
STAND_INS = ROOT / "tests/support/documents/stand_ins"
PAGE_OF_THE_EXAMPLES = ROOT / "docs/start/from-torchrun.md"
ALL_BLOCKS = [block for page in pages() for block in blocks(page)]
PAGES_THAT_RUN = sorted({block.page for block in ALL_BLOCKS if block.is_run})


class Reader:
    """Does what a page says, in one directory. `addresses`: what a page names -> what is there while it is tested."""

    def __init__(self, directory: Path, addresses: dict[str, str]) -> None:
        self.directory = directory
        self._addresses = addresses
        self._shells: list[int] = []

    def read(self, text: str) -> str:
        """The text with the addresses of this test."""
        for usual, address in self._addresses.items():
            text = text.replace(usual, address)
        return text

    def run(self, block: Block) -> tuple[int, str]:
        """Run a block's commands in one shell; its exit code, and stdout and stderr as they came."""
        foreign = ("LAUNCHER_", "PET_", "TORCHEL")
        environ = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        environ |= {"PATH": f"{Path(sys.executable).parent}:{environ['PATH']}", "TMPDIR": str(self.directory)}
        if self.imports_torch(block):
            environ["LAUNCHER_PRELOAD"] = "torch"
        shell = subprocess.Popen(
            ["bash", "-eu", "-o", "pipefail", "-c", self.read(block.script)],
            cwd=self.directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        self._shells.append(shell.pid)
        try:
            output, _ = shell.communicate(timeout=BLOCK_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.close()
            output, _ = shell.communicate()
            pytest.fail(f"{block.where} was not done after {BLOCK_LIMIT_S:g} s:\n{output}")
        return shell.returncode, output

    def imports_torch(self, block: Block) -> bool:
        """Whether a script that the block names imports it, and no stand-in of it."""
        scripts = [self.directory / word for word in block.script.split() if word.endswith(".py")]
        return any(
            "import torch" in script.read_text() and not (script.parent / "torch").exists()
            for script in scripts
            if script.exists()
        )

    def close(self) -> None:
        """End what runs in the background; an agent's workers do not outlive it."""
        for shell in self._shells:
            with suppress(ProcessLookupError):
                os.killpg(shell, signal.SIGKILL)


@contextmanager
def reader(page: Path, directory: Path) -> Iterator[Reader]:
    """A reader with the stores that the commands of this page name."""
    with ExitStack() as stack:
        addresses = {DIRECTORY: str(directory), MACHINE: socket.gethostname()}
        named = "".join(block.text for block in blocks(page) if block.is_run or block.file)
        if ETCD in named:
            addresses[ETCD] = stack.enter_context(EtcdServer("3.4", directory / "etcd")).endpoint
        for address in (SERVED, METRICS):
            if address in named:
                addresses[address] = f"127.0.0.1:{free_port('127.0.0.1')}"
        found = Reader(directory, addresses)
        stack.callback(found.close)
        yield found


@pytest.mark.parametrize("page", PAGES_THAT_RUN, ids=[str(page.relative_to(ROOT)) for page in PAGES_THAT_RUN])
def test_the_commands_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    if page != PAGE_OF_THE_EXAMPLES:
        shutil.copytree(STAND_INS, tmp_path / "examples", dirs_exist_ok=True)
    with reader(page, tmp_path) as one:
        for block in blocks(page):
            if block.file:
                (tmp_path / block.file).write_text(one.read(block.text))
            if not block.is_run:
                continue
            code, output = one.run(block)
            assert code == block.exits, f"{block.where} exits with {code}:\n{output}"
            shown = one.read(block.output)
            if shown:
                assert is_shown(shown, output), f"{block.where} shows\n{shown}\nbut prints\n{output}"


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        ("rank 1 (pid 4711) ended after 1.2 s", "rank 1 (pid 89) ended after 12 s", True),
        ("rank 1 ended", "rank 2 ended", False),
        ("round 2, since 2026-01-31 08:05:00", "round 2, since 2027-12-01 18:55:01", True),
        ("n1   running  0  0 s ago", "n1    running  0   12 s ago", True),
        ("accuracy 0.97, 12,345 samples/s", "accuracy 0.9861, 845 samples/s", True),
        ("serves at 127.0.0.1:41234", "serves at 127.0.0.1:5123", True),
        ("a\n...\nz", "a\nb\nc\nz", True),
        ("a ... z", "a\nz", False),
    ],
)
def test_a_page_shows_one_run_and_another_may_have_other_times(shown: str, printed: str, fits: bool) -> None:
    assert is_shown(shown, printed) == fits


def test_a_page_shows_a_terminal_where_lines_have_no_time() -> None:
    stamped = "2026-01-31T08:05:00.250Z node3 meshrun: one\nn1.log:2026-01-31T08:05:00.250Z n1 meshrun: two\n"
    assert is_shown("meshrun: one\nn1.log:... meshrun: two", stamped)
    assert not is_shown("meshrun: one\nn1.log:meshrun: two", stamped), "in a file they have"


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


@pytest.mark.skipif(find_spec("zensical") is None, reason="zensical needs Python 3.11")
def test_the_documentation_builds_without_a_warning_and_asks_no_other_host(tmp_path: Path) -> None:
    """As `make docs` builds it."""
    built = website.build(tmp_path / "build")
    made = {page: page.read_text() for page in built.rglob("*.html")}
    assert {built / "index.html", built / "release-notes/index.html"} <= made.keys()
    loads = re.compile(r"<(?:script|img|source|iframe)[^>]* src=\"?(?:https?:)?//|<link[^>]* rel=\"?stylesheet[^>]*//")
    assert not [str(page) for page, text in made.items() if loads.search(text)]
