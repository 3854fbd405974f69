"""The launcher's own frames below a script are not shown as the script's."""

from __future__ import annotations

import json

from launcher.diagnose.stacks import read_main_stack


def test_what_the_launcher_calls_a_script_in_is_left_out() -> None:
    files = ("/home/me/train.py", "/opt/launcher/ranks/as_main.py", "/opt/launcher/ranks/as_main.py")
    frames = [{"name": "step", "filename": file, "line": 7} for file in files]
    stack = read_main_stack(json.dumps([{"os_thread_id": 5, "frames": frames}]).encode(), 5)
    assert [frame.file for frame in stack] == ["/home/me/train.py"]
