"""What a Python worker begins with: runs the script as Python would, and leaves its exception for the agent.

    python -u as_main.py script train.py --steps 100      like  python -u train.py --steps 100
    python -u as_main.py module train.main --steps 100    like  python -u -m train.main --steps 100
    python -u as_main.py path train.py --steps 100        like  runpy.run_path("train.py", run_name="__main__")
    python -u as_main.py jax script train.py --steps 100  like the first, and a failed worker ends at once

An exception that the script does not catch is written to TORCHELASTIC_ERROR_FILE, unless torch's `record` has done it;
then Python goes on with it: hooks, exit code, exit handlers. While the script runs, `__main__` is the script's own
module, and tracebacks begin with its lines; only those who walk the whole stack find the one frame of this file.

Every worker compiles this file, in a sixth of the instructions of a bare Python, so it has what a script needs that
succeeds. Its first `compile` makes Python's types of syntax trees, in a quarter; so does whoever imports `inspect`.
Should the job hang, the agent has this process write where its main thread stands, and asks torch's flight recorder.
`main_forms` has the other forms of a program, `main_failure` what follows a failure, and what JAX needs, `main_exit`
how the script has ended, `main_debugger` what `breakpoint()` does. The workers' Python may be another than the agent's:
none of them imports anything of this project.
"""

import os  # not annotations from __future__, which is a module of its own
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def _load(name: str) -> "dict[str, Any]":
    """Run a file beside this one and return its names. `sys.modules` stays as it is under Python."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    names: dict[str, Any] = {"__name__": name, "__file__": path}
    with open(path, "rb") as source:
        exec(compile(source.read(), path, "exec"), names)
    return names


# docs/internals/decisions/0064-stacks-by-py-spy-or-by-the-worker.md
def prepare_evidence() -> None:
    """Let the agent see where this process stands, should the job hang.

    On SIGURG Python's own handler, which needs no GIL, writes the main thread's stack to a file in memory; a program
    that takes this one's place ignores the signal. torch's flight recorder is opened once torch.distributed is there.
    """
    if os.environ.get("LAUNCHER_HANG_EVIDENCE") == "0":
        return
    names = ["torch.distributed.distributed_c10d"]  # imported after its C library, which has the recorder

    def find_spec(name: str, *_: object) -> None:
        if name in names:
            names.clear()  # the finder stays: importlib goes through the list now
            try:  # noqa: SIM105 - contextlib is an import
                _load("../worker/recorder")["open_recorder"]()
            except Exception:  # the import goes on without
                pass

    if "LAUNCHER_RECORDER_SOCKET" in os.environ:
        watch: Any = type(sys)("torch")  # a finder that finds nothing
        watch.find_spec = find_spec
        sys.meta_path.insert(0, watch)
    import _signal  # type: ignore[import-not-found]
    import faulthandler

    if os.path.exists("/proc/self/fd/112"):  # what the fork server has imported has opened that many
        return
    try:
        file = os.memfd_create("meshrun-stack")
    except (AttributeError, OSError):  # a Python that was built for an old C library, or a sandbox
        file = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.dup2(file, 112, False)  # out of the way of a script that counts its own
    finally:
        os.close(file)
    faulthandler.register(_signal.SIGURG, 112, False)


def _share_terminal() -> None:
    """Let `breakpoint()` ask for the terminal, if other workers have it too and the user has chosen nothing else."""
    is_chosen = "PYTHONBREAKPOINT" in os.environ or sys.breakpointhook is not sys.__breakpointhook__
    if os.environ.get("LOCAL_WORLD_SIZE", "1") != "1" and os.isatty(0) and not is_chosen:
        names: dict[str, Any] = {}

        def stop_here(*, header: "str | None" = None, **more: object) -> None:
            if not names:
                names.update(_load("main_debugger"))
            names["stop_at"](sys._getframe(1), header, more)

        sys.breakpointhook = stop_here


def _open_last_words() -> int:
    """Return a descriptor of this worker's place in the shared page, where a crash leaves Python's stacks; -1 if none.

    Under a high number, which no script means that closes some and opens others. As long as the script is well
    it has one line, which says that the script has begun.
    """
    try:
        page, device, inode, line = map(int, os.environ["LAUNCHER_BOARD"].split(":"))
        found = os.fstat(page)
        if (found.st_dev, found.st_ino) != (device, inode):
            return -1
        place = os.open(f"/proc/self/fd/{page}", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fstat(1000)
        except OSError:
            try:
                page, place = place, os.dup2(place, 1000, inheritable=False)
                os.close(page)
            except OSError:  # the limit of open files is lower
                pass
        os.lseek(place, (8192 + line) << 20, os.SEEK_SET)  # as in launcher.hardware.linux.shared_page
        os.write(place, b"\n")
        import faulthandler

        if place == 1000 and not faulthandler.is_enabled():  # at a lower one another file may be by then
            faulthandler.enable(place)
            vars(faulthandler)["is_of_launcher"] = True  # for launcher.worker.client
        return place
    except (KeyError, ValueError, OSError):
        return -1


def _make_main_module(own: "ModuleType") -> "ModuleType":
    """Create a `__main__` like the one that Python creates before it runs a script."""
    fresh = type(sys)("__main__")
    fresh.__dict__["__builtins__"] = sys.modules["builtins"]
    if "__annotations__" in vars(own):  # before Python 3.14
        fresh.__annotations__ = {}
    if "__cached__" in vars(own):
        fresh.__dict__["__cached__"] = None
    return fresh


def _prepare(
    how: str, words: "list[str]", main_module: "ModuleType"
) -> "tuple[Callable[..., object], tuple[Any, ...]]":
    """Set up this process as Python does before it runs a script. Returns what to call, with which arguments."""
    if hasattr(sys, "orig_argv"):
        start = sys.orig_argv.index(__file__) if __file__ in sys.orig_argv else len(sys.orig_argv)
        sys.orig_argv[start:] = ["-m", *words] if how == "module" else words
    # Whether Python has put this file's directory on the path, in the place of the script's.
    has_directory = not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated
    path = words[0]
    if how != "script" or path.endswith(".pyc") or any(_is_importable_by(hook, path) for hook in sys.path_hooks):
        return _load("main_forms")["prepare"](how, words, main_module, has_directory)  # type: ignore[no-any-return]
    sys.argv = words
    if has_directory:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    file = path
    if path[:1] != "/":  # for another the current directory may be gone
        file = os.path.join(os.getcwd(), path)  # not normalised
    try:
        with open(path, "rb") as source:
            text = source.read()
    except OSError as error:
        _load("main_forms")["refuse"](file, error)
    loader = type(__loader__)  # type: ignore[name-defined]
    if __loader__ is None:  # type: ignore[name-defined]  # a debugger runs this file
        loader = sys.modules["_frozen_importlib_external"].SourceFileLoader
    vars(main_module).update(__file__=file, __loader__=loader("__main__", file))
    return exec, (compile(text, file, "exec", dont_inherit=True), vars(main_module))


def _is_importable_by(hook: "Callable[[str], object]", path: str) -> bool:
    """Whether it is a directory or an archive, by Python's own test."""
    try:
        hook(path)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    _pid = os.getpid()
    _error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")  # before the script may change it
    _place = _open_last_words()
    _words = sys.argv[1:]
    _failure = _load("main_failure") if _words[0] == "jax" else None
    _own = sys.modules["__main__"]  # nothing else holds it any more
    _main_module = sys.modules["__main__"] = _make_main_module(_own)
    try:
        if _failure:
            del _words[0]
            _failure["require_free_port"]()
        _share_terminal()
        try:  # noqa: SIM105 - contextlib is an import
            prepare_evidence()
        except Exception:  # the script runs without
            pass
        _run, _arguments = _prepare(_words[0], _words[1:], _main_module)
        _run(*_arguments)
    except BaseException as _error:
        if os.getpid() == _pid:  # else a process that the script has forked, not a worker
            _trace = _error.__traceback__
            while _trace is not None and _trace.tb_frame.f_code.co_filename == __file__:
                _trace = _trace.tb_next
            _error.__traceback__ = _trace
            if _place >= 0:
                try:
                    try:
                        _load("main_exit")["leave_end"](_place, _error, _trace)
                    except BaseException:  # its type needs no file: there may be no descriptor, or another root
                        os.write(_place, f"Traceback (most recent call last):\n{type(_error).__name__}: \n".encode())
                except BaseException:
                    pass
            if _failure:
                _failure["fail_under_jax"](_error, _error_file)
            elif not isinstance(_error, SystemExit):
                try:  # noqa: SIM105 - contextlib is an import
                    _load("main_failure")["leave_exception"](_error, _error_file)
                except BaseException:  # a module of the script's may stand in the way of Python's own
                    pass
        raise
