"""The fork of the keeper, as one of the agent's first acts: what both sides of it must have in order."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Collection

from launcher.model.errors import EXIT_BUG, TemporaryError, find_shortage_hint
from launcher.supervisor.channel import Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def fork_keeper(keep: Collection[int], group: str) -> tuple[int, Channel]:
    """Fork the keeper, which forks the supervisor; its pid, and the agent's end of the talk. Raises TemporaryError."""
    open_standard_streams()
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited; the kernel would hide exit codes from us
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ours, theirs = socket.socketpair()
    agent_pid = os.getpid()
    # No signal may reach the two before they have settled; they keep most of them blocked for good.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise TemporaryError(
            f"cannot fork the supervisor: {error.strerror}", find_shortage_hint(error.errno)
        ) from error
    if pid == 0:
        _run_keeper(ours, theirs, keep, group, agent_pid)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return pid, Channel(ours)


def open_standard_streams() -> None:
    """Put /dev/null where 0, 1 or 2 was closed, lest a socket of ours lands there and workers write into it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _run_keeper(
    agents_end: socket.socket, own_end: socket.socket, keep: Collection[int], group: str, agent_pid: int
) -> NoReturn:
    """Live as the keeper, or the supervisor; never return into the agent's code, nor run its exit handlers."""
    exit_code = EXIT_BUG
    try:
        agents_end.close()
        from launcher.supervisor.keeper import run

        exit_code = run(own_end, keep, group, agent_pid)
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(exit_code)
