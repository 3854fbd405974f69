"""Imports the modules to preload, one by one, with remarks on each.

They are imported as by the script: with its arguments in `sys.argv` and its directory first on `sys.path`, so that a
module beside the script can be preloaded, too.

A module that reads RANK while it is imported here finds nothing, and keeps that. So reads of variables that differ
between workers, or between rounds, are recorded: every access to a variable in `os.environ` goes through one function,
which encodes its name. Reads in C code bypass it and are not seen; neither is a copy of all variables, which contains
none of these.
"""

from __future__ import annotations

import gc
import io
import os
import re
import sys
from _signal import SIG_DFL, SIGINT, signal  # type: ignore[import-not-found]

from launcher.supervisor.fork_server import fork_safety
from launcher.supervisor.fork_server.fork_safety import PreloadError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

# The variables of `launcher/ranks/environments` that differ by worker or by round; a test compares.
WORKER_VARIABLES = re.compile(
    r"""(?:
    RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_WORLD_SIZE|ROLE_WORLD_SIZE
    |MASTER_ADDR|MASTER_PORT|TORCHELASTIC_RESTART_COUNT|TORCHELASTIC_ERROR_FILE
    |LAUNCHER_(?:ROUND|LOCAL_RANK|WORKER_DEVICES|BOARD|RECORDER_SOCKET)
    |MESH_(?:SHAPE|COORDS|\w+_RANK|\w+_SIZE)
    |JAX_(?:COORDINATOR_ADDRESS|COORDINATOR_BIND_ADDRESS|LOCAL_DEVICE_IDS)
    |OMPI_COMM_WORLD_(?:SIZE|RANK|LOCAL_RANK)
    |MEGASCALE_(?:COORDINATOR_ADDRESS|NUM_SLICES|SLICE_ID|PORT)
    |TPU_(?:VISIBLE_CHIPS|VISIBLE_DEVICES|CHIPS_PER_PROCESS_BOUNDS|PROCESS_BOUNDS|PROCESS_ADDRESSES|PROCESS_PORT)
    |CLOUD_TPU_TASK_ID
    |PJRT_(?:LOCAL_PROCESS_RANK|LOCAL_PROCESS_COUNT)
    |PADDLE_(?:TRAINER_ID|TRAINERS_NUM|TRAINER_ENDPOINTS|CURRENT_ENDPOINT|MASTER|NNODES|RANK_IN_NODE)
    |PADDLE_(?:GLOBAL|LOCAL)_(?:RANK|SIZE)|FLAGS_selected_gpus
    )\Z""",
    re.VERBOSE,
)


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
    watch = EnvReadRecorder()
    try:
        with watch:
            __import__(module)
    except KeyboardInterrupt:
        signal(SIGINT, SIG_DFL)
        os.kill(own, SIGINT)
    except SystemExit as leaving:
        raise PreloadError(f"importing {module} called sys.exit({leaving.code!r})", _make_hint(module)) from None
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            where = f"workers are run by {sys.executable}, which finds no such module"
            raise PreloadError(f"there is no module {error.name}", where) from None
        trace = _skip_own_frames(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise PreloadError(f"importing {module} raised {_format_error(error)}", _make_hint(module)) from None
    finally:
        if os.getpid() != own:  # the import has forked, and the child returns from it, too
            os._exit(1)
    fork_safety.check_import(module, children, fork)
    remarks = []
    for reader, names in watch.reads_by_module.items():
        by = "" if reader == module else f" ({reader})"
        remarks.append(
            f"importing {module}{by} read {_format_names(names)}, which no process has before its round: it saw none"
        )
    if place and _read_cwd() != place:
        remarks.append(
            f"importing {module} changed the directory to {_read_cwd()}: workers start in {place} all the same"
        )
        os.chdir(place)
    opened = fork_safety.list_opened_files(files)
    if opened:
        remarks.append(f"importing {module} left {_format_names(opened)} open: all workers share it")
    return remarks, bool(opened)


def _make_hint(module: str) -> str:
    return f"leave {module} out of --preload"


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


class EnvReadRecorder:
    """A context manager that records which modules read these variables. `read`: module to names, in order."""

    def __init__(self) -> None:
        self.reads_by_module: dict[str, list[str]] = {}

    def __enter__(self) -> EnvReadRecorder:
        self._environ, self._encode = os.environ, os.environ.encodekey
        self._environ.encodekey = self._record_read
        return self

    def __exit__(self, *error: object) -> None:
        self._environ.encodekey = self._encode

    def _record_read(self, name: str) -> str:
        if isinstance(name, str) and WORKER_VARIABLES.match(name):
            reader = _find_reader()
            if reader and name not in self.reads_by_module.setdefault(reader, []):
                self.reads_by_module[reader].append(name)
        return self._encode(name)


def _find_reader() -> str:
    """Return the module that reads; empty if it writes."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc", "collections.abc"):
        if frame.f_code.co_name in ("__setitem__", "__delitem__"):
            return ""
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "?"))
