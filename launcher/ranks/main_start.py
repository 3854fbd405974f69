"""What a Python worker does before its script begins, beyond what Python itself does.

`as_main` loads this file by path, in the workers' Python, before every script. The first `compile` of a process makes
Python's types of syntax trees, in a quarter of the instructions of a bare Python; so does whoever imports `inspect`.
Should the job hang, the agent has this process write where its main thread stands, and asks torch's flight recorder.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    Load = Callable[[str], dict[str, Any]]


# docs/internals/decisions/0064-stacks-by-py-spy-or-by-the-worker.md
def prepare_evidence(load: "Load") -> None:
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
                load("../worker/recorder")["open_recorder"]()
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


def share_terminal(load: "Load") -> None:
    """Let `breakpoint()` ask for the terminal, if other workers have it too and the user has chosen nothing else."""
    is_chosen = "PYTHONBREAKPOINT" in os.environ or sys.breakpointhook is not sys.__breakpointhook__
    if os.environ.get("LOCAL_WORLD_SIZE", "1") != "1" and os.isatty(0) and not is_chosen:
        names: dict[str, Any] = {}

        def stop_here(*, header: "str | None" = None, **more: object) -> None:
            if not names:
                names.update(load("../extensions/breakpoints/rank_debugger"))
            names["stop_at"](sys._getframe(1), header, more)

        sys.breakpointhook = stop_here


def open_last_words() -> int:
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


def make_main_module(own: "ModuleType") -> "ModuleType":
    """Create a `__main__` like the one that Python creates before it runs a script."""
    fresh = type(sys)("__main__")
    fresh.__dict__["__builtins__"] = sys.modules["builtins"]
    if "__annotations__" in vars(own):  # before Python 3.14
        fresh.__annotations__ = {}
    if "__cached__" in vars(own):
        fresh.__dict__["__cached__"] = None
    return fresh


def prepare(
    how: str, words: "list[str]", own: "ModuleType", main_module: "ModuleType", load: "Load"
) -> "tuple[Callable[..., object], tuple[Any, ...]]":
    """Set up this process as Python does before it runs a script. Returns what to call, with which arguments.

    `own`: the module of `as_main`, `load`: what loads a file beside it.
    """
    own_file, loader = str(own.__file__), vars(own)["__loader__"]
    if hasattr(sys, "orig_argv"):
        start = sys.orig_argv.index(own_file) if own_file in sys.orig_argv else len(sys.orig_argv)
        sys.orig_argv[start:] = ["-m", *words] if how == "module" else words
    # Whether Python has put the directory of `as_main` on the path, in the place of the script's.
    has_directory = not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated
    path = words[0]
    if how != "script" or path.endswith(".pyc") or any(_is_importable_by(hook, path) for hook in sys.path_hooks):
        return load("main_forms")["prepare"](how, words, main_module, has_directory)  # type: ignore[no-any-return]
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
        load("main_forms")["refuse"](file, error)
    # It is None where a debugger runs `as_main`.
    kind = type(loader) if loader else sys.modules["_frozen_importlib_external"].SourceFileLoader
    vars(main_module).update(__file__=file, __loader__=kind("__main__", file))
    return exec, (compile(text, file, "exec", dont_inherit=True), vars(main_module))


def _is_importable_by(hook: "Callable[[str], object]", path: str) -> bool:
    """Whether it is a directory or an archive, by Python's own test."""
    try:
        hook(path)
    except ImportError:
        return False
    return True
