"""With LAUNCHER_HANG_EVIDENCE=1 Python's `site` loads this in a worker, in place of the user's, which is loaded next.

Once torch.distributed has been imported the worker opens its flight recorder's socket, see launcher/worker/recorder.py.
The hook takes itself out of the path, so that no child of the worker has it. Whatever fails here fails silently: the
script runs as it would without.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ROOM = os.path.dirname(os.path.abspath(__file__))
_AWAITED = "torch.distributed"


class _ImportWatch:
    """A finder that finds nothing of its own: it has the awaited module's loader call `act` once it has loaded it."""

    def __init__(self, act: "Any") -> None:
        self.act = act

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != _AWAITED:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
        spec = next((spec for spec in found if spec is not None), None)
        loader: Any = getattr(spec, "loader", None)
        if loader is not None:
            load = loader.exec_module

            def exec_module(module: "Any") -> None:
                del loader.exec_module
                load(module)
                self.act()

            loader.exec_module = exec_module
        return spec


def _take_out() -> None:
    """Take this directory out of every path: the environment's for children, and this Python's."""
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != _ROOM]
    if any(entries):
        os.environ["PYTHONPATH"] = os.pathsep.join(entries)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [entry for entry in sys.path if entry != _ROOM]
    sys.path_importer_cache.pop(_ROOM, None)


def _watch_imports() -> None:
    file = os.path.join(os.path.dirname(_ROOM), "recorder.py")
    recorder: dict[str, Any] = {"__name__": "launcher.worker.recorder"}
    with open(file, encoding="utf-8") as text:
        exec(compile(text.read(), file, "exec"), recorder)
    if recorder["VARIABLE"] in os.environ and os.getsid(0) == os.getpid():
        sys.meta_path.insert(0, _ImportWatch(recorder["open_recorder"]))


try:
    _take_out()
    _watch_imports()
except Exception:
    pass
sys.modules.pop("sitecustomize", None)
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401  (`site` expects that there is none)
