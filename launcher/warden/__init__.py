"""The warden: a small process beside the agent that starts the workers and, if need be, kills them.

The agent runs threads and network clients; forking from such a process is unsafe, and if it is killed or freezes,
its workers would live on and disturb the next round. So, as one of its first acts, the agent forks this process,
which does nothing but fork, reap, signal and kill. The two talk over a socket: orders go in, reports come out, and
when the agent's end closes, for whatever reason, the warden kills every worker and all they left behind. It may
also hold a leash: a time until which the workers may live, which the agent keeps extending as long as it can prove
that the job still counts on this node.

This module is the agent's side: the messages and the handle. process.py is the warden itself, kernel.py what both
ask of Linux, channel.py how messages travel. Use the handle from one thread.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, NoReturn

from launcher.errors import EXIT_BUG, LauncherError
from launcher.warden.channel import Channel

# A warden that takes no order for so long is stopped or stuck; waiting longer would freeze the agent with it.
ORDER_LIMIT_S = 30.0
# A killed process may hang in a driver. After this long it only matters that it cannot run its own code any more.
STUCK_PATIENCE_S = 3.0


class WorkerSpec(NamedTuple):
    """One process to start.

    `argv[0]` is searched on the PATH of its environment when it has no slash. Its environment is the one the
    warden was forked with, less `unset`, with `env` on top. `stdout` and `stderr` are descriptors to write to,
    which the handle closes after sending; None leaves it the agent's own.
    """

    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]
    stdout: int | None
    stderr: int | None
    affinity: frozenset[int] | None = None


class Spawned(NamedTuple):
    """The worker runs its program."""

    round: int
    local_rank: int
    pid: int


class SpawnFailed(NamedTuple):
    """The worker could not be forked, or its program not be run."""

    round: int
    local_rank: int
    sentence: str
    error_number: int


class Exited(NamedTuple):
    """A worker ended and was reaped at `at` (time.time()); `exit_code` is negative for a signal."""

    round: int
    local_rank: int
    pid: int
    exit_code: int
    at: float


class Gone(NamedTuple):
    """No process of the round is left, what workers started included.

    One that the kernel does not let go (asleep in a driver, frozen) counts as gone once it can run no code of its
    own; its Exited then follows when it is released.
    """

    round: int


class LeashExpired(NamedTuple):
    """The leash ran out: the warden kills the round, or did not start it. Gone follows."""

    round: int


class WardenLost(NamedTuple):
    """The warden ended without being asked to. The kernel kills its workers; kill_orphans() sees to the rest."""

    sentence: str


Report = Spawned | SpawnFailed | Exited | Gone | LeashExpired | WardenLost

_REPORTS: dict[str, type[Spawned | SpawnFailed | Exited | Gone | LeashExpired]] = {
    kind.__name__: kind for kind in (Spawned, SpawnFailed, Exited, Gone, LeashExpired)
}


class Warden:
    """The agent's handle on its warden."""

    def __init__(self, pid: int, channel: Channel) -> None:
        self.pid = pid
        self._channel = channel
        self._inbox: list[Report] = []
        self._status: int | None = None  # the warden's wait status, once reaped
        self._farewell: str | None = None  # why we gave the warden up, if we did
        self._is_over = False  # closed by us, or its loss was reported
        self._is_subreaper = False
        self._leash: float | None = None

    @classmethod
    def fork(cls) -> Warden:
        """Fork the warden: call it early, with one thread and little imported. Raises LauncherError.

        Descriptors other than 0, 1, 2 and the socket are closed in the warden, so workers never see them.
        """
        _open_standard_streams()
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited; the kernel would hide exit codes from us
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ours, theirs = socket.socketpair()
        # No signal may reach the warden before it has settled; it keeps most of them blocked for good.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            raise LauncherError(f"cannot fork the warden: {error.strerror}", "see ulimit -u") from error
        if pid == 0:
            _be_the_warden(ours, theirs)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return cls(pid, Channel(ours))

    def fileno(self) -> int:
        """Readable when reports() has something to give; stop polling it after WardenLost or close()."""
        return self._channel.fileno()

    def spawn(self, round: int, workers: Sequence[WorkerSpec]) -> None:
        """Start workers; each is answered by Spawned or SpawnFailed, all of them by LeashExpired if it ran out."""
        given: set[int] = set()
        try:
            for worker in workers:
                streams = (worker.stdout, worker.stderr)
                descriptors = tuple(stream for stream in streams if stream is not None)
                given.update(descriptors)
                affinity = None if worker.affinity is None else sorted(worker.affinity)
                presence = (worker.stdout is not None, worker.stderr is not None)
                fields = (worker.local_rank, worker.argv, dict(worker.env), worker.unset, *presence, affinity)
                self._order("spawn", round, fields, given=descriptors)
        finally:
            for descriptor in given:
                os.close(descriptor)
        if not self._is_subreaper:
            # The second line of defence, for when the warden is lost. Only now, so that importing ctypes delays no
            # worker. If the warden dies in the milliseconds before, its workers still die with it.
            from launcher.warden import kernel

            kernel.become_subreaper()
            self._is_subreaper = True

    def signal(self, round: int, signum: int) -> None:
        """Send a signal to the process group of every live worker of the round."""
        self._order("signal", round, int(signum))

    def sweep(self, round: int) -> None:
        """SIGKILL what is left of the round, orphans included, and report Gone; also of use after a clean end.

        Orphans are not told apart by round: sweep a round before the next one is started.
        """
        self._order("sweep", round)

    def extend_leash(self, until: float | None) -> None:
        """Let the workers live until `until`, in seconds of CLOCK_BOOTTIME; None, as at the start, is without end."""
        self._leash = until
        self._order("leash", until)

    def reports(self) -> list[Report]:
        """What the warden has said since the last call, in its order; never waits."""
        self._receive()
        reports, self._inbox = self._inbox, []
        if self._channel.ended and not self._is_over:
            self._is_over = True
            reports.append(WardenLost(self._loss()))
        return reports

    def reap(self, spare: Collection[int] = ()) -> None:
        """Reap whatever child of this process has ended, but for the spared: call it on SIGCHLD.

        As PID 1 of a container, or once the warden is lost, the agent is handed orphans it knows nothing of.
        `spare` holds processes that somebody else in the agent waits for.
        """
        if not spare:
            while self._wait_for(-1):
                pass
            return
        from launcher.warden import kernel

        for pid in kernel.children(os.getpid()):
            if pid not in spare:
                self._wait_for(pid)

    def kill_orphans(self, limit_s: float, spare: Collection[int] = ()) -> tuple[int, ...]:
        """Kill the warden, if it still lives, and every child of this process but the spared, until none is left.

        For use after WardenLost. Gives back who was still there after `limit_s`, normally nobody.
        """
        from launcher.warden import kernel

        start = time.monotonic()
        while True:
            accept_stuck = time.monotonic() - start > min(STUCK_PATIENCE_S, limit_s / 2)
            left = kernel.kill_children(spare, accept_stuck)
            self.reap(spare)
            if not left or time.monotonic() - start > limit_s:
                return tuple(left)
            time.sleep(0.005)

    def still_there(self) -> str:
        """Who keeps a sweep from its end, as words: what the warden cannot kill, or the warden if it does not run."""
        from launcher.warden import kernel

        children = [] if kernel.is_stopped(self.pid) else kernel.children(self.pid)
        return ", ".join(map(kernel.describe, children or [self.pid]))

    def close(self, limit_s: float) -> None:
        """End the warden in good order: it sweeps everything and exits. After `limit_s` it is killed, and the rest.

        What it reported meanwhile is left for reports().
        """
        self._is_over = True
        self._channel.finish()
        deadline = time.monotonic() + limit_s
        while not self._channel.ended and self._wait_readable(deadline):
            self._receive()
        while self._status is None and not self._wait_for(self.pid) and time.monotonic() < deadline:
            time.sleep(0.001)
        self._channel.close()
        if self._status is None:
            self.kill_orphans(limit_s)

    def _order(self, *order: object, given: tuple[int, ...] = ()) -> None:
        """Send an order. The warden never waits for us to read, so waiting for it to read cannot last."""
        if self._is_over or self._channel.ended or self._channel.send(order, given):
            return
        poll = select.poll()
        poll.register(self._channel, select.POLLOUT)
        deadline = time.monotonic() + ORDER_LIMIT_S
        while not self._channel.flush():
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._farewell = f"the warden (pid {self.pid}) took no order for {ORDER_LIMIT_S:g} s and was killed"
                if self._status is None:
                    os.kill(self.pid, signal.SIGKILL)
                self._channel.abandon()
                return

    def _receive(self) -> None:
        self._inbox += [_REPORTS[kind](*fields) for (kind, *fields), _ in self._channel.receive()]

    def _wait_readable(self, deadline: float) -> bool:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))

    def _wait_for(self, pid: int) -> bool:
        """Reap one ended child (-1: any); whether there was one."""
        try:
            reaped, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return False
        if reaped == self.pid:
            self._status = status
        return reaped != 0

    def _loss(self) -> str:
        """Why the warden has gone, as a sentence."""
        if self._farewell:
            return self._farewell
        deadline = time.monotonic() + 1.0  # its socket closes a moment before it can be reaped
        while self._status is None and not self._wait_for(self.pid) and time.monotonic() < deadline:
            time.sleep(0.001)
        if self._status is None:
            return f"the warden (pid {self.pid}) closed its socket"
        exit_code = os.waitstatus_to_exitcode(self._status)
        how = f"exited with code {exit_code}" if exit_code >= 0 else f"was killed by {signal.Signals(-exit_code).name}"
        late = self._leash is not None and time.clock_gettime(time.CLOCK_BOOTTIME) >= self._leash
        return f"the warden (pid {self.pid}) {how}{' after its leash had run out' if late else ''}"


def _open_standard_streams() -> None:
    """Put /dev/null where 0, 1 or 2 was closed, lest a socket of ours lands there and workers write into it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _be_the_warden(agents_end: socket.socket, own_end: socket.socket) -> NoReturn:
    """Live as the warden; never return into the agent's code, nor run its exit handlers or flush its buffers."""
    exit_code = EXIT_BUG
    try:
        agents_end.close()
        from launcher.warden.process import run

        run(own_end)
        exit_code = 0
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(exit_code)
