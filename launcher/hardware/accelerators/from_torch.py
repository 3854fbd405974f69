"""Devices of a type that only torch knows: --nproc-per-node xpu, or a name that an extension has registered.

Our own detectors read the driver's files and need no framework. Other types only torch can count, as it does for
torchrun: a short process of the workers' Python imports it, for a second or two, so that the agent need not. torch
itself loads the extension, through its entry points; the process has the job's variables, except for secrets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence

from launcher.config.scrub import PRIVATE
from launcher.hardware.accelerators.contract import Inventory, find_visible_variable
from launcher.model.node import Device

LIMIT_S = 120.0  # importing torch from a network file system is slow

# Prints one line of JSON: how many devices, or why there are none. "" first on the path is the current directory, where
# a file of the user's may have the name of a module of Python's.
_SCRIPT = """
import sys
kind, sys.path[:] = sys.argv[1], [entry for entry in sys.path if entry]
import json
def answer(count, reason=""):
    print("\\n" + json.dumps([count, reason]))
    raise SystemExit(0)
try:
    import torch
except ImportError as error:
    answer(0, f"torch, which would know, cannot be imported: {error}")
try:
    torch.device(kind)
    module = getattr(torch, kind)
except (RuntimeError, AttributeError):
    answer(0, f"torch {torch.__version__} knows no such type of device")
if not module.is_available():
    answer(0, f"torch {torch.__version__} finds none")
answer(module.device_count(), f"torch {torch.__version__}")
"""


class Detector:
    """`kind`: the type of device, as torch calls it; `python`: the interpreter of the workers."""

    def __init__(self, kind: str, python: str, *, script: str = _SCRIPT, limit_s: float = LIMIT_S) -> None:
        self.kind = kind
        self._command = (python, "-c", script, kind)
        self._limit_s = limit_s

    def detect(self, environ: Mapping[str, str]) -> Inventory:
        count, reason = _count_by_torch(self._command, environ, self._limit_s)
        # torch counts what the kind's variable has left, if it is set: entry by entry.
        value = environ.get(find_visible_variable(self.kind, environ) or "", "")
        entries = [entry.strip() for entry in value.split(",")]
        if len(entries) != count or not value:
            entries = [str(index) for index in range(count)]
        devices = tuple(
            Device(kind=self.kind, index=index, id=f"{self.kind}{index}", visible=entries[index])
            for index in range(count)
        )
        return Inventory(devices, f"{count} found by {reason}" if count else reason)


def _count_by_torch(command: Sequence[str], environ: Mapping[str, str], limit_s: float) -> tuple[int, str]:
    import subprocess

    try:
        env = {name: value for name, value in environ.items() if name not in PRIVATE}
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return 0, f"torch did not count them within {limit_s:g} s"
    except OSError as error:
        return 0, f"{command[0]} cannot be run: {os.strerror(error.errno or 0)}"
    try:
        count, reason = json.loads(done.stdout.decode(errors="replace").splitlines()[-1])
        return max(0, int(count)), str(reason)
    except (ValueError, TypeError, LookupError):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return 0, f"torch could not count them: {last[0] if last else f'exit code {done.returncode}'}"
