"""A forked worker: on standby until the supervisor sends its spec, then turned into the worker of that spec.

As in `launcher/supervisor/child.py`, a mistake here is silent and lasting: what is open, blocked or ignored now stays
so in the user's program. The steps of a worker between fork and exec happen here between fork and script.

    out  ["born", pid], once it is the supervisor's child and dies with it
    in   the worker's spec, as `launcher/supervisor/messages.py` encodes it, with its streams and full environment;
         or the end: exit
    out  ["failed", sentence, errno], or nothing: the end closes as the script begins
"""

from __future__ import annotations

import io
import os
import sys
import time
from _signal import SIG_SETMASK, SIGKILL, pthread_sigmask, signal  # type: ignore[import-not-found]
from errno import EINVAL

from launcher.hardware.linux import kernel
from launcher.model.value import PlainValue
from launcher.supervisor.fork_server.json_channel import JsonChannel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_ADOPTION_INTERVAL_S = 0.0005
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_RECORDER = os.path.join(_PACKAGES, "worker", "recorder.py")


class StartupSnapshot(PlainValue):
    """The fork server's command and environment, before anything was imported."""

    launch_mode: str
    arguments: list[str]
    environment: dict[str, str]


def wait_for_spec(channel: JsonChannel, intermediate_pid: int, supervisor_pid: int) -> tuple[Sequence[Any], list[int]]:
    """Wait for the worker's spec; return it and its descriptors. Exits if the supervisor closes the connection."""
    os.setsid()
    while os.getppid() == intermediate_pid:  # it still forks the others
        time.sleep(_ADOPTION_INTERVAL_S)
    if os.getppid() != supervisor_pid:
        os._exit(127)
    kernel.signal_on_parent_death(SIGKILL)
    if os.getppid() != supervisor_pid:  # the supervisor died before the line above
        os._exit(127)
    kernel.allow_tracing_by(supervisor_pid)
    channel.send(["born", os.getpid()])
    reseed()
    try:
        return wait_for_order(channel)
    except OSError as error:  # its streams were lost on the way
        channel.send(["failed", str(error), 0])
        os._exit(127)


def wait_for_order(channel: JsonChannel) -> tuple[Sequence[Any], list[int]]:
    """Wait for a message of the supervisor; return it and its descriptors. Exits once the other end is closed."""
    order = next(channel.receive(wait=True), None)
    if order is None:
        os._exit(0)
    return order


def become_worker(
    channel: JsonChannel,
    startup: StartupSnapshot,
    spec: Sequence[Any],
    descriptors: list[int],
    *,
    signals: tuple[dict[int, Any], set[int]],
) -> None:
    """Set up this process as the worker of this spec, up to its script; or report why not, and exit."""
    local_rank, _, variables, _, has_stdout, has_stderr, affinity, (how, *words) = spec
    attempt = f"cannot start the worker of local rank {local_rank}"
    try:
        streams = iter(descriptors)
        if has_stdout:
            _redirect(next(streams), 1, sys.__stdout__)
        if has_stderr:
            _redirect(next(streams), 2, sys.__stderr__)
        if affinity is not None:
            attempt = f"cannot bind the worker of local rank {local_rank} to its CPUs"
            os.sched_setaffinity(0, affinity)
        attempt = f"cannot run {words[0][:200]!r}"
        if (how, words[0]) != (startup.launch_mode, startup.arguments[0]):
            raise ValueError(f"the fork server was started for {startup.arguments[0][:200]!r}")
        _set_arguments(startup, words)
        _set_environment(startup, variables)
        handlers, mask = signals
        for number, handler in handlers.items():
            signal(number, handler)
        pthread_sigmask(SIG_SETMASK, mask)
        channel.close()
        _open_recorder()
    except OSError as error:
        number = error.errno or EINVAL
        channel.send(["failed", f"{attempt}: {os.strerror(number)}", number])
        os._exit(127)
    except Exception as error:  # a zero byte in a variable, "=" in its name, or a bug of ours
        channel.send(["failed", f"{attempt}: {str(error)[:200]}", EINVAL])
        os._exit(127)


def _open_recorder() -> None:
    """Open the flight recorder's socket, if torch.distributed was preloaded: see launcher/worker/recorder.py."""
    if "torch.distributed" not in sys.modules:
        return
    recorder: dict[str, Any] = {"__name__": "launcher.worker.recorder"}
    try:
        with open(_RECORDER, encoding="utf-8") as file:
            exec(compile(file.read(), _RECORDER, "exec"), recorder)
        recorder["open_recorder"]()
    except Exception:
        return


def _redirect(source: int, target: int, stream: Any) -> None:
    """Redirect a standard stream, and test it again as at the start of Python: can it seek, what is its block size?

    The text stream stays the same object, since a handler of logging may refer to it. Below it is a new one: a FileIO
    never tests again whether it can seek.
    """
    os.dup2(source, target)
    if source != target:
        os.close(source)
    try:
        raw = stream.buffer
    except (AttributeError, ValueError):  # an import has replaced or detached it
        return
    if type(stream) is io.TextIOWrapper and type(raw) is io.FileIO:  # the case under -u
        name, line_buffering, write_through = raw.name, stream.line_buffering, stream.write_through
        encoding, errors = stream.encoding, stream.errors
        raw = io.FileIO(target, "wb", closefd=False)
        raw.name = name
        stream.__init__(raw, encoding, errors, "\n", line_buffering, write_through)  # type: ignore[misc]


def _set_arguments(startup: StartupSnapshot, arguments: list[str]) -> None:
    """Set arguments that only this worker has, as `--local-rank=3`; an import's changes of the others stay."""
    if arguments != startup.arguments:
        sys.orig_argv[len(sys.orig_argv) - len(startup.arguments) :] = arguments
        sys.argv[1:] = arguments[1:]


def _set_environment(startup: StartupSnapshot, variables: dict[str, str]) -> None:
    """Set the environment of an exec, plus changes by imports, unless an import would have seen another value here."""
    given = dict(variables)
    before, now = startup.environment, dict(os.environ)
    for name in {**before, **now}:
        if before.get(name) != now.get(name) and before.get(name) == given.get(name):
            if name in now:
                given[name] = now[name]
            else:
                given.pop(name, None)
    if list(now.items()) != list(given.items()):
        os.environ.clear()
        os.environ.update(given)


def reseed() -> None:
    """Renew what every process makes for itself when it starts, and forks would share: random numbers and secrets.

    Python reseeds its own `random`. What a preloaded module has seeded explicitly is reseeded, too: it cannot be told
    from what was not seeded. Generators that a module has created for itself are not touched; they are equal in all
    workers.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
        process.current_process()._config.pop("tempdir", None)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        try:  # noqa: SIM105 - as little of Python's library as possible
            numpy_random.seed()
        except TypeError:  # another generator than numpy's own, set explicitly
            pass
    torch = sys.modules.get("torch")
    generator = getattr(torch, "default_generator", None)
    if generator is not None:
        generator.seed()  # the CPU's only, as torch does when it is loaded; those of devices do not exist yet
    threading = sys.modules.get("threading")
    if threading is not None:
        main = threading.main_thread()
        getattr(main, "_set_native_id", bool)()  # Python, 3.13 included, leaves the number of its parent there
