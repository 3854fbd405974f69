"""Stacks as py-spy and faulthandler print them, and the reasons for which there is none."""

from __future__ import annotations

import json

import pytest

from launcher.diagnosis.evidence import Frame
from launcher.diagnosis.stack_groups import render_frames
from launcher.diagnosis.stacks import FRAMES_MAX, explain_failure, keep_agreeing, read_main_stack, read_traceback

TRACEBACK = b"""Current thread 0x00007f57196246c0 (most recent call first):
  <no Python frame>

Thread 0x00007f57097fa6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007f573dfddb80 (most recent call first):
  File "/job/a "quoted" name.py", line 20 in load
  File "/job/train.py", line ??? in <module>

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
    with pytest.raises(ValueError, match="traceback cannot be read"):
        read_traceback(text)


@pytest.mark.parametrize(
    ("text", "scope", "reason"),
    [
        ("Permission Denied: Try running again\n", "", "a container may need the capability SYS_PTRACE"),
        ("Permission Denied: Try running again\n", "2", r"kernel\.yama\.ptrace_scope=2"),
        ("Error: Failed to find python version from target process\n\nStack backtrace:\n", "",
         "not a Python process, or one that"),
        ("Error: Odd\nmore", "", "py-spy cannot read the worker: Odd$"),
        ("", "", "py-spy cannot read the worker: exit code 3$"),
    ],
)  # fmt: skip
def test_a_failure_of_py_spy_is_one_sentence(text: str, scope: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^no stacks: .*{reason}"):
        raise ValueError(explain_failure(text, 3, scope))


def test_frames_of_the_launcher_are_left_out_and_a_line_feed_in_a_name_begins_no_line() -> None:
    files = ("/home/me/train.py", "/opt/launcher/ranks/as_main.py", "/opt/launcher/ranks/as_main.py")
    frames = [{"name": "step", "filename": file, "line": 7} for file in files]
    stack = read_main_stack(json.dumps([{"os_thread_id": 5, "frames": frames}]).encode(), 5)
    assert [frame.file for frame in stack] == ["/home/me/train.py"]
    frames = [{"name": "f\x1b[1m", "filename": "/tmp/a\nrank 0: asleep\n.py", "line": 1}]
    stack = read_main_stack(json.dumps([{"os_thread_id": 5, "frames": frames}]).encode(), 5)
    (line,) = render_frames(stack)
    assert line.split() == ["f\\x1b[1m", "/tmp/a\\nrank", "0:", "asleep\\n.py:1"]
