"""Stacks as py-spy and faulthandler print them, and the reasons for which there is none."""

from __future__ import annotations

import json
import re
import site
import sys
from pathlib import Path

import pytest

from launcher.diagnosis import stacks
from launcher.diagnosis.evidence import Frame
from launcher.diagnosis.stack_groups import render_frames
from launcher.diagnosis.stacks import (
    FRAMES_MAX,
    explain_failure,
    explain_source,
    keep_agreeing,
    read_main_stack,
    read_traceback,
)

TRACEBACK = b"""Stack (most recent call first):
  File "/job/a "quoted" name.py", line 20 in load
  File "/job/train.py", line ??? in <module>
  File "/x/launcher/ranks/as_main.py", line 152 in <module>
"""


def test_a_traceback_is_read_and_of_two_looks_the_common_frames_are_kept() -> None:
    assert read_traceback(TRACEBACK) == (
        Frame(function="load", file='/job/a "quoted" name.py', line=20),
        Frame(function="<module>", file="/job/train.py", line=0),
    )
    assert len(read_traceback(TRACEBACK + b'  File "a.py", line 1 in f\n' * 1000)) == FRAMES_MAX
    one, other = [
        tuple(Frame(function=name, file="a.py", line=at) for at, name in enumerate(names))
        for names in (("recv", "step", "main"), ("send", "step", "main"))
    ]
    assert [frame.function for frame in keep_agreeing(one, other)] == ["step", "main"]


@pytest.mark.parametrize("text", [b"", b"\xff" * 9, b"Thread 0x1 (most recent call first):\n  <no Python frame>\n"])
def test_what_is_no_traceback_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="its own handler has written nothing"):
        read_traceback(text)


@pytest.mark.parametrize(
    ("text", "scope", "reason"),
    [
        ("Permission Denied: Try running again\n", "", "a container may need the capability SYS_PTRACE"),
        ("Permission Denied: Try running again\n", "2", r"kernel\.yama\.ptrace_scope=2"),
        ("Error: Failed to get process executable name.\n\nCaused by:\n    0: Permission denied (os error 13)\n", "",
         "the kernel does not let py-spy read the worker"),
        ("Error: Failed to find python version from target process\n\nStack backtrace:\n", "",
         "not a Python process, or one that"),
        ("Error: Odd\nmore", "", "py-spy cannot read the worker: Odd$"),
        ("", "", "py-spy cannot read the worker: exit code 3$"),
    ],
)  # fmt: skip
def test_a_failure_of_py_spy_is_one_sentence(text: str, scope: str, reason: str) -> None:
    sentence = explain_source(explain_failure(text, 3, scope), has_stack=False)
    assert re.match(f"no stacks: .*{reason}", sentence)
    own = explain_source(explain_failure(text, 3, scope), has_stack=True)
    assert re.match(f"the worker wrote the stack itself, of its main thread only: .*{reason}", own)


def test_frames_of_the_launcher_are_left_out_and_a_line_feed_in_a_name_begins_no_line() -> None:
    files = ("/home/me/train.py", "/opt/launcher/ranks/as_main.py", "/opt/launcher/ranks/as_main.py")
    frames = [{"name": "step", "filename": file, "line": 7} for file in files]
    stack = read_main_stack(json.dumps([{"os_thread_id": 5, "frames": frames}]).encode(), 5)
    assert [frame.file for frame in stack] == ["/home/me/train.py"]
    frames = [{"name": "f\x1b[1m", "filename": "/tmp/a\nrank 0: asleep\n.py", "line": 1}]
    stack = read_main_stack(json.dumps([{"os_thread_id": 5, "frames": frames}]).encode(), 5)
    (line,) = render_frames(stack)
    assert line.split() == ["f\\x1b[1m", "/tmp/a\\nrank", "0:", "asleep\\n.py:1"]


@pytest.mark.parametrize("folder", ["python", "target/bin", "user/bin", "path"])
def test_py_spy_is_found_where_pip_puts_it(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python" / "python3"))
    monkeypatch.setattr(stacks, "_ROOT", str(tmp_path / "target"))
    monkeypatch.setattr(site, "getuserbase", lambda: str(tmp_path / "user"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert stacks.find_command() is None
    program = tmp_path / folder / "py-spy"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    assert stacks.find_command() == str(program)
