"""How a worker's Python script ends by an exception: what is left of it, and under JAX that it ends at once.

`as_main` loads this file when a script has failed, and earlier only for a worker of JAX, so that workers that succeed
do not pay for it. The exception is written to TORCHELASTIC_ERROR_FILE as torch's `record` writes it; after that Python
ends the process as it always does, with the script's own hooks.

JAX registers an exit handler in which a process waits for all others. After an exception or `sys.exit(3)` these
others wait for this one, in a collective; five minutes later all are aborted, and the exit code is lost. So a failed
worker of JAX prints its exception, waits for its threads and runs all exit handlers but JAX's, for a limited time, and
ends with the code that it would have had. A script that succeeds ends as usual, through JAX's handler.

The workers' Python runs this file and may be another than the agent's: the file imports nothing of this project, and
refers to JAX only by name.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import NoReturn

EXIT_LIMIT_S = 30.0  # for last uploads and checkpoints; waiting for other workers is futile
_JAX_HANDLERS = (
    # Those of JAX 0.10: the second clears backends, which waits for what they run, and then shuts down.
    ("jax._src.dispatch", "wait_for_tokens"),
    ("jax._src.api", "clean_up"),
    ("jax._src.distributed", "shutdown"),
)


def leave_exception(error: BaseException, error_file: str) -> None:
    """Write an exception that nobody has caught to the error file, as far as that is possible.

    `sys.exit` and Ctrl-C are no exceptions of the script's. Nothing is raised or printed: Python's own report follows.
    """
    if not isinstance(error, (SystemExit, KeyboardInterrupt)):
        with contextlib.suppress(BaseException):
            write_error_file(error_file, error, error.__traceback__)
    if sys.version_info < (3, 11):  # which keeps the traceback of a raise apart from the exception's own
        hook, trace = sys.excepthook, error.__traceback__
        sys.excepthook = lambda kind, value, _: hook(kind, value.with_traceback(trace), trace)


def fail_under_jax(error: BaseException, error_file: str) -> None:
    """Record the failure, print it as Python would, and exit; returns if the script has succeeded."""
    if isinstance(error, SystemExit) and compute_exit_code(_read_exit_argument(error)) == 0:
        return
    trace = error.__traceback__
    try:
        write_error_file(error_file, error, trace)
    except Exception as failure:
        print(f"the failure cannot be written to {error_file}: {failure}", file=sys.stderr)
    if not isinstance(error, SystemExit):
        error = _print_error(error, trace)
    code = 1
    if isinstance(error, SystemExit):
        said = _read_exit_argument(error)
        code = compute_exit_code(said)
        if said is not None and not isinstance(said, int):
            with contextlib.suppress(Exception):  # nobody reads
                print(said, file=sys.stderr or sys.__stderr__)
    _flush_streams()
    exit_process(code, 2 if isinstance(error, KeyboardInterrupt) else 0)  # SIGINT, which ends Python then, too


def compute_exit_code(code: object) -> int:
    """Return the code that the parent of a process sees that has called `sys.exit(code)`."""
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1
    return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF


# docs/internals/decisions/0025-immediate-exit-of-failed-jax-workers.md
def exit_process(code: int, signum: int = 0) -> NoReturn:
    """End this process with this code, or by a signal, though other workers wait for it.

    Before, as at any end of Python, threads are joined, all exit handlers but JAX's run, and open files are flushed.
    """
    for module, name in _JAX_HANDLERS:
        handler = getattr(sys.modules.get(module), name, None)
        if handler is not None:
            atexit.unregister(handler)
    import _thread
    import threading

    def force_exit() -> None:
        if not done.wait(EXIT_LIMIT_S):
            os.write(2, f"exit handlers and threads were not done after {EXIT_LIMIT_S:g} s\n".encode())
            os._exit(code)

    done = threading.Event()
    last_steps = (
        lambda: _thread.start_new_thread(force_exit, ()),
        threading._shutdown,  # type: ignore[attr-defined]  # Python itself calls this and the next
        atexit._run_exitfuncs,
        _flush_streams,
        _flush_files,
    )
    for step in last_steps:
        with contextlib.suppress(BaseException):  # a failure has been reported
            step()
    done.set()
    if signum:
        import signal

        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
    os._exit(code)


def require_free_port() -> None:
    """JAX's coordinator binds with SO_REUSEPORT even where another job's listens, which then dies: test the port."""
    address = os.environ.get("JAX_COORDINATOR_ADDRESS", "")
    if os.environ.get("RANK") != "0" or not address.rpartition(":")[2].isdigit():
        return
    import socket

    port = int(address.rpartition(":")[2])
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended do not count
                probe.bind((host, port))
            return
        except OSError as error:  # noqa: PERF203 - a kernel without IPv6
            if error.errno == errno.EADDRINUSE:
                raise SystemExit(f"port {port} of JAX's coordinator is in use by another process") from None


def _read_exit_argument(leaving: SystemExit) -> object:
    try:
        return leaving.code
    except Exception:  # a class of the script's own
        return leaving


def _print_error(error: BaseException, trace: TracebackType | None) -> BaseException:
    """Print the error. Returns the exception that ends the process: a hook may call `sys.exit`."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace  # exit handlers read these
    sys.last_exc = error  # type: ignore[attr-defined]  # Python 3.12
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as leaving:
        return leaving
    except BaseException as broken:
        inside = broken.__traceback__ = broken.__traceback__ and broken.__traceback__.tb_next
        broken.__context__ = None  # that is `error`
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(broken), broken, inside)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, trace)
    return error


def write_error_file(path: str, error: BaseException, trace: TracebackType | None, message: str = "") -> None:
    """Write what torch's `record` would have written; a file of its own stays, as it is more precise.

    `message`: by default the line of the traceback that names the exception. Raises OSError.
    """
    if not path or os.path.exists(path):
        return
    import json
    import time
    import traceback

    lines = traceback.format_exception_only(type(error), error)  # before it the place of a syntax error, then its notes
    message = message or next((line for line in lines if not line.startswith(" ")), lines[-1]).strip()
    stack = "".join(traceback.format_exception(type(error), error, trace))
    content = {
        "message": {"message": message, "extraInfo": {"py_callstack": stack, "timestamp": str(int(time.time()))}}
    }
    with open(path, "w") as file:
        json.dump(content, file)


def _flush_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or nobody reads
            stream.flush()


def _flush_files() -> None:
    """Flush the buffers of files that the script has left open; Python does it during its finalization."""
    import gc
    import io

    for kinds in ((io.TextIOWrapper,), (io.BufferedWriter, io.BufferedRandom)):  # the first write into the second
        for file in gc.get_objects():
            if issubclass(type(file), kinds):
                with contextlib.suppress(Exception):  # closed, or its disk is full
                    file.flush()
