"""What travels between the caller and its workers: the call, the results and the exceptions, pickled into files.

Files and not pipes, since a result may be hundreds of megabytes and a worker must be able to end once it has written
it. They are in a directory that only this user can open, and named by round and rank, so that a file of an earlier
round is never read as a result. The two ends are the same user's program, so pickle is safe.

pickle serializes functions and classes by name, for which both sides import the same module. Objects without a module
to import from (a notebook, a prompt, a lambda, a function inside a function) go by value, which needs cloudpickle. A
worker reproduces its caller's state exactly as a process of multiprocessing's `spawn` does: the same sys.path, sys.argv
and directory, and the caller's script imported again, under another name than `__main__`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from multiprocessing import process
from typing import IO, Any

from msgspec import Struct

from launcher.hardware.linux.files import replacing
from launcher.model.errors import LauncherError, UsageError, find_shortage_hint

CALL, RESULT, EXCEPTION = "call", "result", "exception"
"""What a file holds: the beginning of its name."""
_PICKLE_ERRORS = (Exception, SystemExit)  # exceptions of user code in a pickle; an interrupt is not caught


class FunctionCall(Struct, frozen=True):
    """One call, for both sides."""

    directory: str

    # --- the caller ---

    def write(self, function: Callable[..., Any], args: Sequence[object]) -> None:
        """Write the call. Raises UsageError for what cannot be pickled, LauncherError if there is no space."""
        main = _find_main()
        pickler = CallPickler(has_main=bool(main))
        try:
            with open(self._make_path(CALL), "xb", opener=open_private) as file:
                pickle.dump(_make_preparation({} if pickler.is_by_value else main), file, pickle.HIGHEST_PROTOCOL)
                pickler.dump((function, tuple(args)), file)
        except OSError as error:
            raise LauncherError(
                f"the call cannot be written to {self.directory}: {error.strerror}", find_shortage_hint(error.errno)
            ) from error
        except Exception as error:
            hint = "pass plain values, and create the object in the worker"
            if _load_cloudpickle() is None:
                hint = "run pip install cloudpickle: it can send functions that no module defines"
            raise UsageError(
                f"the call of {format_name(function)} cannot be sent: {format_error(error)}", hint
            ) from error

    def read_result(self, round: int, rank: int) -> Any:
        """Return the rank's result of that round. Raises LauncherError if there is none, or it is not readable."""
        try:
            with open(self._make_path(RESULT, round, rank), "rb") as file:
                return pickle.load(file)
        except FileNotFoundError:
            raise LauncherError(
                f"rank {rank} ended with exit code 0, but its function did not return",
                "return from the function: os._exit or exec leaves no result",
            ) from None
        except _PICKLE_ERRORS as error:
            raise LauncherError(f"the result of rank {rank} cannot be loaded: {format_error(error)}") from error

    def read_exception(self, round: int, rank: int) -> BaseException | None:
        """Return the exception that ended the rank in that round.

        None if it was none of this call's, or cannot be unpickled, as one whose arguments differ from those it keeps.
        """
        with contextlib.suppress(*_PICKLE_ERRORS), open(self._make_path(EXCEPTION, round, rank), "rb") as file:
            error = pickle.load(file)
            return error if isinstance(error, BaseException) else None
        return None

    # --- a worker ---

    def read(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Reproduce the caller's state and load the call. Raises the script's exceptions, and LauncherError."""
        from multiprocessing import spawn

        with open(self._make_path(CALL), "rb") as file:
            # multiprocessing refuses to start anything while this is set, and so does launch: see `is_importing`.
            process.current_process()._inheriting = True  # type: ignore[attr-defined]
            try:
                spawn.prepare(pickle.load(file))
                try:
                    function, args = pickle.load(file)
                except (AttributeError, ImportError) as error:
                    raise LauncherError(
                        f"the call cannot be loaded in a worker: {format_error(error)}",
                        "define it at the top of a module that workers import, above `if __name__ == ...`",
                    ) from error
            finally:
                del process.current_process()._inheriting  # type: ignore[attr-defined]
        return function, args

    def write_result(self, round: int, rank: int, value: object) -> None:
        """Write the function's result. Raises LauncherError if it cannot be pickled or written."""
        try:
            self._write_pickle(value, self._make_path(RESULT, round, rank))
        except OSError as error:
            raise LauncherError(
                f"the result of rank {rank} cannot be written to {self.directory}: {error.strerror or error}",
                find_shortage_hint(error.errno) or "set TMPDIR to a writable directory",
            ) from error
        except _PICKLE_ERRORS as error:
            raise LauncherError(
                f"rank {rank} returned a {format_type(value)}, which cannot be pickled: {format_error(error)}",
                "return plain values, tensors or arrays",
            ) from error

    def write_exception(self, round: int, rank: int, error: BaseException) -> None:
        """Write the exception if it can be pickled; many cannot."""
        with contextlib.suppress(*_PICKLE_ERRORS):
            self._write_pickle(error, self._make_path(EXCEPTION, round, rank))

    def _write_pickle(self, thing: object, path: str) -> None:
        """Write the file completely, or not at all."""
        with replacing(path, 0o600) as file:
            CallPickler().dump(thing, file)

    def _make_path(self, what: str, *numbers: int) -> str:
        return os.path.join(self.directory, "-".join([what, *map(str, numbers)]))


def is_importing() -> bool:
    """Whether this process is still being prepared, by us or by multiprocessing, and imports its caller's script."""
    return getattr(process.current_process(), "_inheriting", False)


def _make_preparation(main: dict[str, str]) -> dict[str, Any]:
    """Return the data for multiprocessing's `spawn.prepare`; its own function would fix a start method permanently."""
    found: dict[str, Any] = {
        "authkey": bytes(process.current_process().authkey),  # so that a Manager's proxies work as arguments
        "sys_path": [path or _find_start_directory() for path in sys.path],
        "sys_argv": list(getattr(sys, "argv", ())) or [""],  # an embedded Python may have none
        "orig_dir": _find_start_directory(),
        **main,
    }
    with contextlib.suppress(OSError):  # removed: workers will not find it either
        found["dir"] = os.getcwd()
    if method := multiprocessing.get_start_method(allow_none=True):
        found["start_method"] = method
    return found


def _find_main() -> dict[str, str]:
    """Return how a worker can import the caller's `__main__`; empty if it cannot."""
    main = sys.modules.get("__main__")
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:  # python -m; the __main__.py of a package runs without testing its name
        return {} if name == "__main__" or name.endswith(".__main__") else {"init_main_from_name": name}
    path = getattr(main, "__file__", None)
    if not path or os.path.basename(path) in ("ipython", "ipython3"):  # scripts that run without testing it, too
        return {}
    path = os.path.normpath(os.path.join(_find_start_directory(), path))
    return {"init_main_from_path": path} if os.path.isfile(path) else {}


def _find_start_directory() -> str:
    """Return the initial directory of this process, for paths that are relative to that."""
    return process.ORIGINAL_DIR or ""  # type: ignore[attr-defined]


def open_private(path: str, flags: int) -> int:
    """Open a file that only this user can: an `opener` of `open`."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


class CallPickler:
    """`has_main`: whether the other side can import this one's `__main__`."""

    def __init__(self, *, has_main: bool = True) -> None:
        # At a prompt even a script's __main__ has objects that its file has not.
        self.is_by_value = (not has_main or hasattr(sys, "ps1")) and _load_cloudpickle() is not None
        self._pickler_class = pickle.Pickler if has_main else _NoMainPickler

    def dump(self, thing: object, file: IO[bytes]) -> None:
        """Pickle by name, if that fails by value, at a prompt by value at once. Raises the last attempt's exception."""
        start = file.tell()
        if not self.is_by_value:
            try:
                self._pickler_class(file, pickle.HIGHEST_PROTOCOL).dump(thing)
                return
            except OSError:
                raise
            except Exception:
                if _load_cloudpickle() is None:
                    raise
                file.seek(start)
                file.truncate()
        dump_by_value = _load_cloudpickle()
        assert dump_by_value is not None
        dump_by_value(thing, file, pickle.HIGHEST_PROTOCOL)


class _NoMainPickler(pickle.Pickler):
    """For a `__main__` that the other side cannot import: objects defined there have no name for it."""

    def reducer_override(self, thing: Any) -> Any:
        if getattr(thing, "__module__", None) == "__main__" and hasattr(thing, "__qualname__"):
            raise pickle.PicklingError(f"{thing.__qualname__} is defined where no worker can import it")
        return NotImplemented


def _load_cloudpickle() -> Callable[[object, IO[bytes], int], None] | None:
    """Return cloudpickle's `dump`, None where it is not installed; imported on demand, since that is slow."""
    try:
        import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return None
    dump: Callable[[object, IO[bytes], int], None] = cloudpickle.dump
    return dump


def format_name(function: object) -> str:
    """Return the usual name: of a function, of what is inside a partial, or of an object's type."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


def format_type(value: object) -> str:
    """Return its type, as users would import it."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def format_error(error: BaseException) -> str:
    """Return the last line of its traceback."""
    try:
        text = str(error)
    except Exception:
        text = "<exception str() failed>"  # as Python prints it
    return f"{type(error).__name__}: {text}"
