"""The entry point of a worker of a `launch`: load the call, run it, write its result or its exception.

An exception ends the worker as it would end a script: a traceback on stderr, without this module's own lines, and exit
code 1. It is also written to TORCHELASTIC_ERROR_FILE, as by torch's `record`, and to the call's directory.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


def main() -> int:
    """Run the call; return the exit code."""
    from launcher.cli import protect_imports

    protect_imports()

    import faulthandler

    from launcher.calls.failure import add_hint
    from launcher.calls.payload import FunctionCall, format_error
    from launcher.config.scrub import CALL_VARIABLE
    from launcher.model.errors import LauncherError
    from launcher.ranks.main_failure import write_error_file

    faulthandler.enable()  # a crash in native code prints the Python stack
    round, rank = int(os.environ["LAUNCHER_ROUND"]), int(os.environ["RANK"])  # before the user's code may change them
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    call = FunctionCall(os.environ.pop(CALL_VARIABLE))
    try:
        function, args = call.read()
        try:
            result = function(*args)
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                _exit_if_others_wait(leaving.code)
                raise
            result = None
        call.write_result(round, rank, result)
    except Exception as error:
        if isinstance(error, LauncherError):
            add_hint(error)
        trace = _skip_own_frames(error.__traceback__)
        try:
            write_error_file(error_file, error, trace, format_error(error))
        except OSError as failure:
            print(f"the exception cannot be written to {error_file}: {failure.strerror}", file=sys.stderr)
        call.write_exception(round, rank, error)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        _exit_if_others_wait(1)
        return 1
    return 0


def _exit_if_others_wait(code: int | str) -> None:
    """End this process, if it is one of several of JAX: at a normal exit they would wait for each other."""
    distributed = sys.modules.get("jax._src.distributed")
    if getattr(getattr(distributed, "global_state", None), "client", None) is None:
        return
    from launcher.ranks.main_failure import compute_exit_code, exit_process

    if not isinstance(code, int):
        print(code, file=sys.stderr)
    if compute_exit_code(code):
        exit_process(compute_exit_code(code))


def _skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the user's code on, be that the function or the script that is imported first."""
    import runpy
    from multiprocessing import spawn

    own = os.path.dirname(__file__)
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if os.path.dirname(file) != own and file not in (spawn.__file__, runpy.__file__, "<frozen runpy>"):
            break
        trace = trace.tb_next
    return trace
