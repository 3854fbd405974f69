"""A type of device that an extension has registered with torch: --nproc-per-node xpu, npu and others.

Only torch can count them, as under torchrun. A short process of the workers' Python imports it, for a second or two, so
that the agent need not; it has the job's variables, except for secrets.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping

from launcher.config.scrub import drop_secrets
from launcher.hardware.accelerators.contract import Inventory, find_visible_variable
from launcher.hardware.accelerators.visible_list import examine
from launcher.model.node import Device

LIMIT_S = 120.0  # importing torch from a network file system is slow
_VISIBLE_VARIABLES = {
    "xpu": "ZE_AFFINITY_MASK",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "hpu": "HABANA_VISIBLE_MODULES",
}
"""Make devices of a type visible, where that is known and the type is no kind of ours."""

# Prints one line of JSON: how many devices, or why there are none. "" first on the path is the current directory, where
# a file of the user's may have the name of a module of Python's.
SCRIPT = """
import sys
kind, sys.path[:] = sys.argv[1], [entry for entry in sys.path if entry]
import json
def answer(count, reason=""):
    print("\\n" + json.dumps([count, reason]))
    raise SystemExit(0)
from importlib.metadata import entry_points
KNOWN = "cpu cuda fpga hip hpu ipu lazy maia meta mps mtia npu privateuseone ve vulkan xla xpu".split()
if kind not in KNOWN and not entry_points(group="torch.backends"):  # extensions that torch loads by itself
    answer(0, "expected a number, auto, gpu, cpu or a type of device that torch knows")
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


def count_devices(kind: str, python: str, environ: Mapping[str, str]) -> Inventory:
    """Return as many devices as torch counts. `kind`: the type, as torch calls it; `python`: the workers'."""
    variable = _VISIBLE_VARIABLES.get(kind) or find_visible_variable(kind) or ""
    if mistaken := examine(environ, (variable,)):
        return mistaken
    count, reason = _ask_torch(kind, python, environ)
    # torch counts what the kind's variable has left, if it is set: entry by entry.
    value = environ.get(variable, "")
    entries = [entry.strip() for entry in value.split(",")]
    if len(entries) != count or not value:
        entries = [str(index) for index in range(count)]
    devices = tuple(
        Device(kind=kind, index=index, id=f"{kind}{entry}", visible=entry, variable=variable)
        for index, entry in enumerate(entries)
    )
    return Inventory(devices, f"{count} found by {reason}" if count else reason)


def _ask_torch(kind: str, python: str, environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the number of devices, and what torch found or why there is none."""
    try:
        done = subprocess.run(
            (python, "-c", SCRIPT, kind),
            env=drop_secrets(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 0, f"torch did not count them within {LIMIT_S:g} s"
    except OSError as error:
        return 0, f"{python} cannot be run: {os.strerror(error.errno or 0)}"
    try:
        count, reason = json.loads(done.stdout.decode(errors="replace").splitlines()[-1])
        return max(0, int(count)), str(reason)
    except (ValueError, TypeError, LookupError):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return 0, f"torch could not count them: {last[0] if last else f'exit code {done.returncode}'}"
