"""With LAUNCHER_HANG_EVIDENCE=1 Python's `site` loads this in a worker, in place of the user's, which is loaded next.

It does what a worker of the agent's own Python begins with, for scripts in another Python: should the job hang, the
worker writes its stack, and its flight recorder is open (launcher/ranks/main_start.py). The hook takes itself out of
the path, so that no child of the worker has it. If anything fails here, the script runs as it would without.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ROOM = os.path.dirname(os.path.abspath(__file__))
_AS_MAIN = os.path.join(os.path.dirname(os.path.dirname(_ROOM)), "ranks", "as_main.py")


def _take_out() -> None:
    """Take this directory out of every path: the environment's for children, and this Python's."""
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != _ROOM]
    if any(entries):
        os.environ["PYTHONPATH"] = os.pathsep.join(entries)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [entry for entry in sys.path if entry != _ROOM]
    sys.path_importer_cache.pop(_ROOM, None)


def _prepare_evidence() -> None:
    if "LAUNCHER_RECORDER_SOCKET" in os.environ and os.getsid(0) == os.getpid():  # not in a child
        names: dict[str, Any] = {"__name__": "as_main", "__file__": _AS_MAIN}
        with open(_AS_MAIN, encoding="utf-8") as text:
            exec(compile(text.read(), _AS_MAIN, "exec"), names)
        names["load"]("main_start")["prepare_evidence"](names["load"])


try:
    _take_out()
    _prepare_evidence()
except Exception:
    pass
sys.modules.pop("sitecustomize", None)
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401  (`site` expects that there is none)
