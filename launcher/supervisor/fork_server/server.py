"""The main program of the fork server: import, report, and fork on the supervisor's orders, until that has ended.

Workers must be the supervisor's own children, which it can reap and kill by pid, like those that it starts by exec.
So the fork server does not fork them itself. It forks an intermediate process that forks the workers ordered and ends;
the nearest subreaper, the supervisor, then adopts its children. One intermediate process serves all waiting orders.

    in   ["preload", modules, the supervisor's pid, descriptors that workers keep], once
    out  ["ready", seconds, remarks]  or  ["refused", sentence, hint]
    in   ["fork"] with one end of a socket, which is the worker's own: see worker.py
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # without enum
import atexit
import gc
import os
import sys
import time
from errno import EAGAIN

from launcher.hardware.linux import kernel
from launcher.supervisor.fork_server.fork_safety import PreloadError
from launcher.supervisor.fork_server.importing import import_all
from launcher.supervisor.fork_server.json_channel import JsonChannel
from launcher.supervisor.fork_server.worker import StartupSnapshot, become_worker, wait_for_order, wait_for_spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_AS_MAIN = "/launcher/ranks/as_main.py"
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # and stay so


def serve(number: int, launch_mode: str, argument_count: int) -> None:
    """Serve over the descriptor `number`. Returns in a worker that is to run its script, and only there."""
    os.set_inheritable(number, False)
    channel = JsonChannel.open(number)
    head = len(sys.orig_argv) - argument_count
    image = StartupSnapshot(launch_mode=launch_mode, arguments=sys.orig_argv[head:], environment=dict(os.environ))
    (_, modules, supervisor_pid, _), _ = wait_for_order(channel)
    start = time.monotonic()
    try:
        remarks = import_all(modules, _find_script_directory(image), _fork)
    except PreloadError as refused:
        kernel.flush_c_streams()
        channel.send(["refused", f"--preload: {refused.sentence}", refused.hint])
        os._exit(0)
    # Keep shared pages shared: the garbage collector of a worker, which writes to every object that it visits, skips
    # frozen ones; measured with torch, that saves 40 MB and 0.2 s for each worker. At the end it has to visit them, or
    # a file of the script's that is reachable only from them is not written.
    gc.freeze()
    atexit.register(gc.unfreeze)
    signals = _reset_signals()
    channel.send(["ready", time.monotonic() - start, remarks])
    end, go_between = _serve_forks(channel)
    order = wait_for_spec(end, go_between, supervisor_pid)
    become_worker(end, image, *order, signals=signals)


def _find_script_directory(startup: StartupSnapshot) -> str | None:
    """Return what Python puts first on the path before it runs the script."""
    if getattr(sys.flags, "safe_path", False):
        return None
    how, words = startup.launch_mode, startup.arguments
    if words[0].endswith(_AS_MAIN):  # the script that it runs
        how, *words = words[2:] if words[1] == "jax" else words[1:]
    if how in ("code", "path"):
        return ""
    if how == "module":
        return os.getcwd()
    script = words[0]
    if os.path.isdir(script) or script.endswith((".zip", ".pyz")):
        return os.path.join(os.getcwd(), script)  # is there itself
    return os.path.dirname(os.path.realpath(script))


def _reset_signals() -> tuple[dict[int, Any], set[int]]:
    """Let signals kill this process as they would a program without Python. Returns what a worker restores."""
    fixed = (*_IGNORED_BY_PYTHON, signal.SIGKILL, signal.SIGSTOP)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals() if number not in fixed}
    handlers = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_DFL, None)}
    for number in handlers:
        signal.signal(number, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return handlers, mask


def _serve_forks(channel: JsonChannel) -> tuple[JsonChannel, int]:
    """Fork for every order, until the supervisor's end closes. Returns in a worker: its channel, its parent's pid."""
    own_pid = os.getpid()
    while True:
        ends = wait_for_order(channel)[1]
        for _, more in channel.receive():
            ends += more
        kernel.flush_c_streams()
        try:
            pid = _fork()
        except OSError as error:
            _report_failure(ends, error)
            continue
        if pid == 0:
            # If the supervisor is killed the fork server dies, and an intermediate process that is stuck dies with it.
            kernel.signal_on_parent_death(signal.SIGKILL)
            if os.getppid() != own_pid:
                os._exit(0)
            channel.close()
            return _fork_each(ends)
        for end in ends:
            os.close(end)
        os.waitpid(pid, 0)


def _fork_each(ends: list[int]) -> tuple[JsonChannel, int]:
    """Run as the intermediate process: fork a worker for each end, and exit. Returns in the workers."""
    go_between = os.getpid()
    for place, end in enumerate(ends):
        try:
            pid = _fork()
        except OSError as error:
            _report_failure([end], error)
            continue
        if pid == 0:
            for other in ends[place + 1 :]:
                os.close(other)
            return JsonChannel.open(end), go_between
        os.close(end)
    os._exit(0)


def _report_failure(ends: list[int], error: OSError) -> None:
    number = error.errno or EAGAIN
    for end in ends:
        channel = JsonChannel.open(end)
        channel.send(["failed", f"cannot fork a worker: {os.strerror(number)}", number])
        channel.close()


def _fork() -> int:
    """Call os.fork, without Python's warning (3.12) on the threads that fork_safety.py knows to be harmless."""
    warnings = sys.modules.get("warnings")
    if warnings is None:
        return os.fork()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()
