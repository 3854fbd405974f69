"""The module that Python's `site` loads in a fork server, in place of the user's own `sitecustomize`, loaded next.

Every error here ends the process: Python would only report it, and run the script. Only a forked worker that got its
spec comes out at the end; it returns or raises as the user's `sitecustomize` did, or returns if there is none.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _load_user_module() -> Exception | None:
    """Hide this module and load the user's. Returns what that raised."""
    room = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != room]
    sys.path_importer_cache.pop(room, None)
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except Exception as error:  # `site` reports it
        return error.with_traceback(None)
    return None


def _load_server() -> "Any":
    """Load the server, leaving no trace in sys.modules: scripts and preloaded modules import their own."""
    root = os.path.abspath(__file__)
    for _ in ("sitecustomize.py", "hook", "fork_server", "supervisor", "launcher"):
        root = os.path.dirname(root)
    looked_up = set(sys.path_importer_cache)
    theirs = dict(sys.modules)
    for name in theirs:
        if name.partition(".")[0] == "launcher":  # a user's, or of another installation
            del sys.modules[name]
    sys.path.insert(0, root)
    try:
        from launcher.supervisor.fork_server.server import serve
    finally:
        sys.path.remove(root)
        for entry in set(sys.path_importer_cache) - looked_up:
            del sys.path_importer_cache[entry]
        for name in [name for name, module in sys.modules.items() if theirs.get(name) is not module]:
            del sys.modules[name]
        if len(sys.modules) < len(theirs):
            sys.modules.clear()
            sys.modules.update(theirs)
    return serve


# docs/internals/decisions/0035-script-run-by-python-in-forked-workers.md
def _main() -> Exception | None:
    number, pid, path, how, word_count = os.environ.pop("LAUNCHER_FORK_SERVER").split(":")
    rest = os.environ.pop("PYTHONPATH").partition(os.pathsep)[2]
    if path:
        os.environ["PYTHONPATH"] = rest
    error = _load_user_module()
    if os.getpid() == int(pid):  # else a process that the fork server's Python has started before this point
        serve = _load_server()
        site = sys.modules["site"]
        if site.ENABLE_USER_SITE:  # what comes after sitecustomize, and before the script's imports
            site.execusercustomize()
        serve(int(number), how, int(word_count))
    return error


try:
    _error = _main()
except BaseException:
    try:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(70)
if _error is not None:
    raise _error
