"""Imports the modules to preload, one by one, with remarks on each.

They are imported as by the script: with its arguments in `sys.argv` and its directory first on `sys.path`, so that a
module beside the script can be preloaded, too.

A module that reads RANK while it is imported here finds nothing, and keeps that: docs/train/warm-workers.md says so.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from _signal import SIG_DFL, SIGINT, signal  # type: ignore[import-not-found]

from launcher.supervisor.fork_server import fork_safety
from launcher.supervisor.fork_server.fork_safety import PreloadError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


def import_all(modules: list[str], directory: str | None, fork: Callable[[], int]) -> list[str]:
    """Import them. Returns remarks for the user; raises PreloadError.

    `directory`: what Python will put first on the path for the script, None for nothing.
    """
    fork_safety.check_before_import(fork)
    if directory is not None:
        sys.path.insert(0, directory)
    # Nearly all objects of an import stay; repeated garbage collection costs a sixth of the import of torch.
    thresholds = gc.get_threshold()
    gc.set_threshold(0, *thresholds[1:])
    remarks: list[str] = []
    is_kept = False
    for module in modules:
        opened, is_shared = _import_one(module, fork)
        remarks += opened
        is_kept = is_kept or is_shared
    if gc.get_threshold()[0] == 0:
        gc.set_threshold(*thresholds)
    if directory is not None and directory in sys.path:
        sys.path.remove(directory)
    if is_kept:
        _flush_files()
    return remarks


def _import_one(module: str, fork: Callable[[], int]) -> tuple[list[str], bool]:
    """Import one. Returns remarks, and whether it left files open."""
    children = fork_safety.list_children()
    files = fork_safety.list_open_files()
    place = _read_cwd()
    own = os.getpid()
    hint = f"leave {module} out of --preload"
    try:
        __import__(module)
    except KeyboardInterrupt:
        signal(SIGINT, SIG_DFL)
        os.kill(own, SIGINT)
    except SystemExit as leaving:
        raise PreloadError(f"importing {module} called sys.exit({leaving.code!r})", hint) from None
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            install = f"install it for {sys.executable}, which runs the workers, or leave it out of --preload"
            raise PreloadError(f"module {error.name} does not exist", install) from None
        trace = _skip_own_frames(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise PreloadError(f"importing {module} raised {_format_error(error)}", hint) from None
    finally:
        if os.getpid() != own:  # the import has forked, and the child returns from it, too
            os._exit(1)
    fork_safety.check_import(module, children, fork)
    remarks = []
    if place and _read_cwd() != place:
        remarks.append(f"importing {module} changed the directory to {_read_cwd()}: workers still start in {place}")
        os.chdir(place)
    opened = fork_safety.list_opened_files(files)
    if opened:
        remarks.append(f"importing {module} left {_format_names(opened)} open; all workers share it")
    return remarks, bool(opened)


def _read_cwd() -> str:
    try:
        return os.getcwd()
    except OSError:  # removed
        return ""


def _format_error(error: BaseException) -> str:
    """Return the first line of the last line of its traceback."""
    try:
        text = str(error).partition("\n")[0][:200]
    except Exception:
        text = "<exception str() failed>"  # as Python prints it
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _format_names(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _flush_files() -> None:
    """Flush the buffers of open files, lest every worker write them once more."""
    for kinds in ((io.TextIOWrapper,), (io.BufferedWriter, io.BufferedRandom)):  # the first write into the second
        for file in gc.get_objects():
            if issubclass(type(file), kinds):
                try:
                    file.flush()
                except Exception:  # closed, or its disk is full
                    continue
