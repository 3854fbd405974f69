"""Checks the files that a command line names, before anything is started.

An error that Python itself would report a second later, once per worker and in a traceback, is reported here once
and in a sentence. Only cheap checks are made: the workers find a module, the supervisor a program.
"""

from __future__ import annotations

import os
import stat

from launcher import extensions
from launcher.config.config import WorkerOptions
from launcher.model.errors import TemporaryError, UnfitError, UsageError, sanitize
from launcher.model.mesh import Mesh

FREE_BYTES_MIN = 16 << 20
"""With less left a log disk counts as full: a traceback, a worker's last lines and some more pages still fit."""
FREE_FRACTION_MIN = 0.01  # a small disk counts as full later
_MOUNT_PROC = "run mount -t proc proc /proc, or unshare with --mount-proc"
_STDIN = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
_FROM_STDIN = "the script cannot be read from stdin: every worker reads it", "name a file"


def check_script(workers: WorkerOptions, mesh: Mesh | None) -> None:
    """Raise UsageError if the script cannot be run. `mesh`: which may have been cut off before it."""
    script, origin = workers.script, workers.origins["launch_mode"]
    if not script:
        raise UsageError("the script's name is empty", "check whether a variable of the shell is empty")
    if script == "-":
        raise UsageError(*_FROM_STDIN)
    if workers.launch_mode == "module":
        if "/" in script or (script.endswith(".py") and os.path.isfile(script)):
            sentence = f"{origin} takes the name of a module, but {sanitize(script)} is a file"
            raise UsageError(sentence, f"leave out {origin}")
    elif workers.launch_mode != "program":
        _check_script_file(script, mesh, is_path=workers.launch_mode == "path")


def require_proc() -> None:
    """Raise TemporaryError without a /proc of this pid namespace: the agent finds the processes to kill there."""
    try:
        shown_pid = os.readlink("/proc/self")
    except OSError:
        raise TemporaryError("/proc is not mounted, but meshrun needs it to find processes", _MOUNT_PROC) from None
    if shown_pid != str(os.getpid()):
        seen = f"/proc shows another pid namespace: this process is {os.getpid()} here and {shown_pid} there"
        raise TemporaryError(seen, _MOUNT_PROC)


def _check_script_file(script: str, mesh: Mesh | None, *, is_path: bool) -> None:
    called = sanitize(script)
    try:
        mode = os.stat(script).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            if script in _STDIN:
                raise UsageError(*_FROM_STDIN)
            raise UsageError(
                f"script {called} is neither a file nor a directory", "name a file that every worker can read"
            )
        descriptor = os.open(script, os.O_RDONLY)
        start = os.read(descriptor, 64) if stat.S_ISREG(mode) else b""
        os.close(descriptor)
    except FileNotFoundError:
        hint = extensions.ask("script", script, "" if mesh is None else str(mesh))
        raise UsageError(f"script {called} does not exist", hint) from None
    except OSError as error:
        raise UsageError(f"script {called} cannot be read: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        if not any(os.path.isfile(os.path.join(script, name)) for name in ("__main__.py", "__main__.pyc")):
            raise UsageError(f"{called} is a directory without __main__.py", "give the name of a script in it")
        return
    has_main = _find_zip_main(script)  # a program may have a zip file at its end, which Python runs
    if has_main is False:
        raise UsageError(f"{called} is a zip file without __main__.py")
    is_foreign = has_main is None and start.startswith((b"#!", b"\x7fELF")) and b"python" not in start
    is_foreign = is_foreign or script.endswith((".sh", ".bash", ".ipynb"))
    if is_foreign and (reason := extensions.ask("content", script, start, bool(mode & 0o111), is_path)):
        raise UsageError(*reason)


def _find_zip_main(script: str) -> bool | None:
    """Whether a zip file has a __main__; None if it is no zip file."""
    import zipimport  # Python's own test; always loaded already

    try:
        return zipimport.zipimporter(script).find_spec("__main__") is not None
    except zipimport.ZipImportError:
        return None


def check_log_dir(directory: str | None) -> None:
    """Create it, if one is named. Raises UsageError if it cannot be written."""
    if directory is None or directory == os.devnull:
        return
    called = f"log directory {sanitize(directory)}"
    try:
        os.makedirs(directory, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{called} is not a directory") from None
    except OSError as error:
        raise UsageError(f"{called} cannot be created: {error.strerror}") from None
    except RecursionError:  # makedirs calls itself for every level
        raise UsageError(f"{called} cannot be created: it has too many levels") from None
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise UsageError(f"{called} is not writable")


def require_log_space(directory: str | None) -> None:
    """Raise UnfitError if there is no space for the job's logs in the directory that was named for them."""
    if not directory or directory == os.devnull:
        return
    name = f"log directory {sanitize(directory)}"
    try:
        disk = os.statvfs(directory)
    except OSError as error:
        raise UnfitError(f"{name} cannot be examined: {error.strerror}", kind=("logs", error.errno or 0)) from None
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise UnfitError(f"{name} is not writable", "check mount and ls -ld", kind=("logs", "no access"))
    is_root = os.geteuid() == 0  # many file systems reserve a part for root
    free = (disk.f_bfree if is_root else disk.f_bavail) * disk.f_frsize
    files = disk.f_ffree if is_root else disk.f_favail
    if free < min(FREE_BYTES_MIN, disk.f_blocks * disk.f_frsize * FREE_FRACTION_MIN):
        sentence = f"{name} is on a full disk: {free / (1 << 20):.1f} MiB are free"
        raise UnfitError(sentence, "check df -h", kind=("logs", "full"))
    if disk.f_files and not files:  # some file systems do not count files
        raise UnfitError(
            f"{name} is on a disk where no more files can be created", "check df -i", kind=("logs", "files")
        )
