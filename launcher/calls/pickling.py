"""Pickling by name, for which both sides import the same module, else by value, which needs cloudpickle.

pickle itself serializes functions and classes by name. Objects without a module to import from (a notebook, a prompt, a
lambda, a function inside a function) go by value. Both use pickle safely: the two ends are the same user's program, and
the files between them are only that user's.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

from launcher.model.errors import UsageError

PROTOCOL = pickle.HIGHEST_PROTOCOL
_DumpFunction = Callable[[object, IO[bytes], int], None]


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
                self._pickler_class(file, PROTOCOL).dump(thing)
                return
            except OSError:
                raise
            except Exception:
                if _load_cloudpickle() is None:
                    raise
                file.seek(start)
                file.truncate()
        by_value = _load_cloudpickle()
        assert by_value is not None
        by_value(thing, file, PROTOCOL)

    def dump_call(self, function: object, args: Sequence[object], file: IO[bytes]) -> None:
        """Raises UsageError, naming what cannot be pickled."""
        try:
            self.dump((function, tuple(args)), file)
        except OSError:
            raise
        except Exception as error:
            what, reason = self._find_culprit(function, args) or (f"the call of {format_name(function)}", error)
            reason.__context__ = None  # the same, when all were tried at once
            hint = "pass what workers need to make it, and make it there"
            if _load_cloudpickle() is None:
                hint = "pip install 'meshrun[functions]': with cloudpickle functions without a module travel, too"
            raise UsageError(f"{what} cannot be handed to workers: {format_error(reason)}", hint) from reason

    def _find_culprit(self, function: object, args: Sequence[object]) -> tuple[str, Exception] | None:
        """Return the part of a call that cannot be pickled, and why."""
        parts = {f"argument {number}, a {format_type(arg)},": arg for number, arg in enumerate(args, 1)}
        for name, thing in {f"the function {format_name(function)}": function, **parts}.items():
            try:
                self.dump(thing, _NullFile())
            except Exception as error:  # noqa: PERF203 - each is tried separately
                return name, error
        return None


class _NullFile(io.BytesIO):
    """Accepts all data and keeps none."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


class _NoMainPickler(pickle.Pickler):
    """For a `__main__` that the other side cannot import: objects defined there have no name for it."""

    def reducer_override(self, thing: Any) -> Any:
        if getattr(thing, "__module__", None) == "__main__" and hasattr(thing, "__qualname__"):
            raise pickle.PicklingError(f"{thing.__qualname__} is defined where no worker can import it")
        return NotImplemented


def _load_cloudpickle() -> _DumpFunction | None:
    """Return cloudpickle's `dump`, None where it is not installed; imported on demand, since that is slow."""
    try:
        import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        return None
    dump: _DumpFunction = cloudpickle.dump
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
