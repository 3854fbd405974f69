"""What the commands answer, as a terminal shows it: tests/cli/transcripts/*.txt.

A command may have variables before it. What follows is all that it prints, `...` standing for anything, and its exit
code. An error is on stderr, with nothing on stdout beside it. The directory has the files of `place`.
"""

from __future__ import annotations

import os
import re
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
    for session in re.split(r"\n\n(?=# )", path.read_text().strip())
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
        outcome = call(*words[len(variables) :], cwd=place, environ={"CUDA_VISIBLE_DEVICES": "", **variables})
        text = outcome.out or outcome.err
        assert is_shown("\n".join(shown), text), f"$ {line}\n{text}"
        assert (f"[{outcome.code}]", outcome.out and outcome.err) == (code, ""), line
        assert "error: " not in outcome.out, line
