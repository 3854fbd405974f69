"""What the commands answer to words that cannot be meant, as a terminal shows it: tests/cli/transcripts/*.txt.

A command may have variables before it. What follows is all that it prints, on stderr, `...` standing for anything, and
its exit code. Nothing is on stdout. The directory has the files of `place`.
"""

from __future__ import annotations

import os
import shlex
import zipfile
from itertools import takewhile
from pathlib import Path

import pytest

from tests.cli.running import Call
from tests.support.documents.pages import is_shown

SESSIONS = [
    session
    for path in sorted((Path(__file__).parent / "transcripts").glob("*.txt"))
    for session in path.read_text().strip().split("\n\n")
]
FILES = {
    "train.py": "print('it runs')\n",
    "good.json": '{"levels": ["leaf"], "nodes": [{"id": "a", "path": ["l0"], "devices": 8}]}',
    "within.json": '{"within": {"dp": "rack"}, "nodes": [{"id": "a", "devices": 8}]}',
    "other.json": '{"mesh": "dp=*,tp=2", "previous": {"dims": [1, 4], "plan": {"a": [0, 1, 2, 3]}}, '
    '"nodes": [{"id": "a", "devices": 8}]}',
    "control.json": '{"nodes": "\x01"}',
    "merge.yaml": "nodes:\n  - {<<: {devices: 8}, id: a}\n",
    "escape.json": '{"previous": {"dims": [1], "plan": {"\\u001b[31m": [0]}}, "nodes": [{"id": "a", "devices": 8}]}',
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    # Several things beside the script that are none.
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "other.py").touch()
    with zipfile.ZipFile(tmp_path / "bundle.zip", "w") as bundle:
        bundle.writestr("other.py", "")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.partition("\n")[0].strip("# ."))
def test_the_transcript_is_what_a_terminal_shows(call: Call, place: Path, session: str) -> None:
    for step in session.split("\n$ ")[1:]:
        line, *shown, code = step.splitlines()
        words = shlex.split(line)
        variables = dict(word.split("=", 1) for word in takewhile(lambda word: "=" in word, words))
        outcome = call(*words[len(variables) :], cwd=place, environ=variables)
        assert (outcome.out, f"[{outcome.code}]") == ("", code), line
        assert is_shown("\n".join(shown), outcome.err), f"$ {line}\n{outcome.err}"
