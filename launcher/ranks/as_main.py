"""The entry point of JAX workers: runs the script as Python would, and ends the process when the script has failed.

    python -u as_main.py script train.py --steps 100      like  python -u train.py --steps 100
    python -u as_main.py module train.main --steps 100    like  python -u -m train.main --steps 100
    python -u as_main.py path train.py --steps 100        like  runpy.run_path("train.py", run_name="__main__")

JAX registers an exit handler in which a process waits for all others. After an exception or `sys.exit(3)` these
others wait for this one, in a collective; five minutes later all are aborted, and the exit code is lost. So the failure
is written to TORCHELASTIC_ERROR_FILE first, then printed, then this process waits for its threads and runs all exit
handlers but JAX's, for a limited time, and ends with the code that it would have had. A script that succeeds ends as
usual, through JAX's handler.

The workers' Python runs this file and may be another than the agent's: the file imports nothing of this project, and
refers to JAX only by name. While the script runs no frame of this file is visible: `__main__` is the script's own
module, and tracebacks begin with its lines.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType, TracebackType
    from typing import NoReturn

EXIT_LIMIT_S = 30.0  # for last uploads and checkpoints; waiting for other workers is futile
_JAX_HANDLERS = (
    # Those of JAX 0.10: the second clears backends, which waits for what they run, and then shuts down.
    ("jax._src.dispatch", "wait_for_tokens"),
    ("jax._src.api", "clean_up"),
    ("jax._src.distributed", "shutdown"),
)


def main() -> None:
    """Run the script, module or path that the command line names. Returns or raises SystemExit only after a success."""
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")  # before the script may change it
    _, how, *words = sys.argv
    pid = os.getpid()
    own = sys.modules["__main__"]  # nothing else holds it any more
    main_module = sys.modules["__main__"] = _make_main_module(own)
    try:
        _require_free_port()
        if hasattr(sys, "orig_argv"):
            start = sys.orig_argv.index(__file__) if __file__ in sys.orig_argv else len(sys.orig_argv)
            sys.orig_argv[start:] = ["-m", *words] if how == "module" else words
        {"script": _run_script, "module": _run_module, "path": _run_path}[how](words, main_module)
    except BaseException as error:
        if os.getpid() != pid:  # a process that the script has forked, not a worker
            raise
        if isinstance(error, SystemExit) and compute_exit_code(_read_exit_argument(error)) == 0:
            raise
        _fail(error, error_file)


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


def _make_main_module(own: ModuleType) -> ModuleType:
    """Create a `__main__` like the one that Python creates before it runs a script."""
    fresh = type(sys)("__main__")
    fresh.__dict__["__builtins__"] = sys.modules["builtins"]
    if "__annotations__" in vars(own):  # before Python 3.14
        fresh.__annotations__ = {}
    if "__cached__" in vars(own):
        fresh.__dict__["__cached__"] = None
    return fresh


def _run_script(words: list[str], main_module: ModuleType) -> None:
    path = words[0]
    file = os.path.join(os.getcwd(), path)  # not normalised
    sys.argv = words
    if any(_is_importable_by(hook, path) for hook in sys.path_hooks):  # a directory or an archive, by Python's own test
        import runpy

        if _has_own_directory():
            sys.path[0] = file
        else:
            sys.path.insert(0, file)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]  # Python's own way
        return
    if _has_own_directory():
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    if path.endswith(".pyc"):
        from importlib.machinery import SourcelessFileLoader

        loader: object = SourcelessFileLoader("__main__", file)
        code = SourcelessFileLoader("__main__", file).get_code("__main__")
    else:
        try:
            with open(path, "rb") as source:
                text = source.read()
        except OSError as error:
            why = f"[Errno {error.errno}] {error.strerror}"
            print(f"{sys.executable}: can't open file {file!r}: {why}", file=sys.stderr)
            raise SystemExit(2) from None
        loader = type(__loader__)("__main__", file)  # type: ignore[name-defined]
        code = compile(text, file, "exec", dont_inherit=True)
    vars(main_module).update(__file__=file, __loader__=loader)
    assert code is not None
    exec(code, vars(main_module))


def _run_module(words: list[str], main_module: ModuleType) -> None:
    import runpy

    sys.argv = ["-m", *words[1:]]
    if _has_own_directory():
        sys.path[0] = os.getcwd()
    runpy._run_module_as_main(words[0])  # type: ignore[attr-defined]  # what -m calls


def _run_path(words: list[str], main_module: ModuleType) -> None:
    import runpy

    sys.argv = words
    if _has_own_directory():
        sys.path[0] = ""
    runpy.run_path(words[0], run_name="__main__")


def _has_own_directory() -> bool:
    """Whether Python has put this file's directory on the path, in the place of the script's."""
    return not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated


def _is_importable_by(hook: object, path: str) -> bool:
    try:
        hook(path)  # type: ignore[operator]
    except ImportError:
        return False
    return True


def _require_free_port() -> None:
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
                raise SystemExit(f"port {port} is where JAX's coordinator is to listen, and it is taken") from None


def _fail(error: BaseException, error_file: str) -> NoReturn:
    """Record the failure, print it as Python would, and exit."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
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

    `message`: by default the last line of the traceback. Raises OSError.
    """
    if not path or os.path.exists(path):
        return
    import json
    import time
    import traceback

    message = message or traceback.format_exception_only(type(error), error)[-1].strip()
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


if __name__ == "__main__":
    main()
