"""The agent's handle on its supervisor: orders go out, reports come in, and a last kill if it does not answer.

The agent runs threads and network clients; forking from such a process is unsafe, and if it is killed or freezes,
its workers would live on and disturb the next round. So, as one of its first acts, the agent has this process forked,
which does nothing but fork, reap, signal and kill. When the agent's end of their socket closes, for any reason, the
supervisor kills every worker and all they left behind. It may also hold a watchdog: a time until which the workers may
live, which the agent extends as long as it can prove that this node still belongs to the job. Between the two is the
keeper, for what workers leave behind when both are stopped or killed together. Use the handle from one thread.
"""

from __future__ import annotations

import math
import os
import select
import time
from _socket import socketpair
from collections.abc import Sequence
from contextlib import suppress

from launcher.hardware.linux import kernel
from launcher.hardware.linux.kernel import signal
from launcher.supervisor import messages
from launcher.supervisor.channel import Channel
from launcher.supervisor.keeper import remove_leftovers
from launcher.supervisor.messages import ForkServerSpec, Report, WorkerSpec

# A supervisor that accepts no order for this long is stopped or stuck; waiting longer would freeze the agent with it.
ORDER_LIMIT_S = 30.0
SWEEP_LIMIT_S = 10.0  # a killed process may hang in a driver; after this the agent ends and says so
START_LIMIT_S = 10.0  # two forks take milliseconds, even on a very busy machine
# The supervisor kills at the watchdog's end and reports at once. One that has not by then is stopped or starved.
REPORT_DELAY_S = 0.1
LOSS_LIMIT_S = 1.0  # keeper or supervisor, when the other is lost, have killed the rest in milliseconds


class Supervisor:
    """The agent's handle on its supervisor, and on the keeper between them. Made of what `fork_keeper` returns."""

    def __init__(self, keeper_pid: int, channel: Channel) -> None:
        self.keeper_pid = keeper_pid
        self._pid = 0  # the supervisor's, once it has reported it
        self._channel = self._order_channel = channel  # the latter: to the keeper, which reads one order from it
        self._pending_reports: list[Report] = []
        self._keeper_status: int | None = None  # the keeper's wait status, once reaped; it exits as the supervisor has
        self._loss_reason: str | None = None  # why we gave the supervisor up, if we did
        self._is_over = False  # closed by us, or its loss was reported
        self._is_closed = False
        self._watchdog_deadline = math.inf
        self._rounds: set[int] = set()  # started and not reported as swept
        self.temporary_dirs: Sequence[str] = ()
        """Where the job's temporary files may be created: its sockets and empty directories are removed at the end."""
        self._spared_pids: set[int] = set()  # fork server and standby workers, which a sweep spares
        self.wake_at = math.inf
        """When to call read_reports() at the latest: by then the supervisor has reported the watchdog's expiry."""

    def start(self, keep: Sequence[int] = (), group: str = "", temporary_dirs: Sequence[str] = ()) -> None:
        """Have the keeper fork the supervisor, once.

        `keep`: descriptors that both get, and every worker, under the same numbers; they live until no process of any
        worker is left. `group`: a control group for both and all that they start. `temporary_dirs`: where to remove
        sockets and empty directories then; none of them need exist.
        """
        self.temporary_dirs = temporary_dirs
        ours, theirs = socketpair()
        descriptors = (theirs.fileno(), *keep)
        self._channel = Channel(ours)
        order = (list(keep), group, list(temporary_dirs))
        self._order_channel.send(order, descriptors)  # an empty socket takes it whole
        with suppress(ProcessLookupError):
            os.kill(self.keeper_pid, signal.SIGCONT)  # one that was stopped meanwhile would never start anything
        theirs.close()

    @property
    def pid(self) -> int:
        """The supervisor's pid, waited for while it is being forked; the keeper's if it never was."""
        deadline = time.monotonic() + START_LIMIT_S
        while not self._pid and not self._channel.has_ended and self._wait_for_event(select.POLLIN, deadline):
            self._receive()
        return self._pid or self.keeper_pid

    def fileno(self) -> int:
        """Readable when read_reports() has something; stop polling it after SupervisorLost or close()."""
        return self._channel.fileno()

    def preload(self, spec: ForkServerSpec) -> None:
        """Start the fork server, once for all rounds: workers whose spec sets `fork_argv` are forked from it.

        Preloading is reported at once, and later Preloaded, PreloadRefused or ForkServerLost.
        """
        self._send_order("preload", messages.encode_spec(spec))
        kernel.become_subreaper()

    def spawn(self, round: int, workers: Sequence[WorkerSpec]) -> None:
        """Start workers; each is answered by Spawned or SpawnFailed, all by WorkersFenced if the watchdog expired."""
        given: set[int] = set()
        self._rounds.add(round)
        self._update_due_time()
        try:
            for worker in workers:
                descriptors = tuple(stream for stream in (worker.stdout, worker.stderr) if stream is not None)
                given.update(descriptors)
                self._send_order("spawn", round, messages.encode_spec(worker), descriptors=descriptors)
            if any(worker.fork_argv for worker in workers):
                self._send_order("begin")  # so that all of them are forked together
        finally:
            for descriptor in given:
                os.close(descriptor)
        kernel.become_subreaper()

    def signal(self, round: int, signum: int, only: Sequence[int] | None = None) -> None:
        """Send a signal to the process group of every live worker of the round, or `only` of these local ranks."""
        self._send_order("signal", round, int(signum), *([] if only is None else [list(only)]))

    def examine(self, spec: WorkerSpec) -> None:
        """Fork a process that looks at the workers; nothing is reported of it, and any sweep ends it.

        `spec.argv` names a module and the words for its `main`. Its output is what tells: `spec.stdout`, which is
        closed here, ends with it.
        """
        assert spec.stdout is not None
        try:
            self._send_order("examine", messages.encode_spec(spec), descriptors=(spec.stdout,))
        finally:
            os.close(spec.stdout)

    def sweep(self, round: int) -> None:
        """SIGKILL what is left of the round, orphans included, and report RoundSwept; also useful after a clean end.

        Orphans are not distinguished by round: sweep a round before the next one is started.
        """
        self._send_order("sweep", round)

    def extend_watchdog(self, until: float | None) -> None:
        """Let the workers live until `until`, in seconds of CLOCK_BOOTTIME; None, as at the start, means no end."""
        self._watchdog_deadline = math.inf if until is None else until
        self._update_due_time()
        self._send_order("watchdog", until)

    def _update_due_time(self) -> None:
        has_workers = bool(self._rounds) and not self._is_over
        self.wake_at = self._watchdog_deadline + REPORT_DELAY_S if has_workers else math.inf

    def read_reports(self) -> list[Report]:
        """Return the supervisor's reports since the last call. Call it on SIGCHLD as well: the keeper may end.

        If the watchdog has expired and the supervisor does not report, its descendants are killed in its place. The
        kernel's timer ends such a supervisor a moment later.
        """
        self._receive()
        reports, self._pending_reports = self._pending_reports, []
        self._is_over |= any(isinstance(report, messages.SupervisorLost) for report in reports)
        if not self._is_over and (self._has_keeper_ended() or self._channel.has_ended):
            self._is_over = True
            self._wait_for_exit(time.monotonic() + LOSS_LIMIT_S)
            reports.append(self._find_refusal() or messages.SupervisorLost(self._describe_loss()))
        if not self._pid and not self._is_over:
            os.kill(self.keeper_pid, signal.SIGCONT)  # its stop before the fork brought a SIGCHLD, and us here
        for report in reports:
            if isinstance(report, messages.RoundSwept):
                self._rounds.discard(report.round)
            if isinstance(report, messages.WorkersFenced | messages.SupervisorLost) or not self._rounds:
                self.wake_at = math.inf
        if time.clock_gettime(time.CLOCK_BOOTTIME) >= self.wake_at:
            self.wake_at = time.clock_gettime(time.CLOCK_BOOTTIME) + REPORT_DELAY_S
            with suppress(OSError):  # no descriptor to list them: the kernel's timer kills the supervisor's workers
                kernel.kill_descendants(self._pid or self.keeper_pid)
        return reports

    def reap(self) -> None:
        """Reap every child of this process that has ended: call it on SIGCHLD.

        As PID 1 of a container, or once the supervisor is lost, the agent adopts orphans that it has not started.
        """
        while self._reap_one(-1):
            remove_leftovers(self.temporary_dirs)

    def kill_orphans(self, limit_s: float) -> tuple[int, ...]:
        """Kill keeper, supervisor and every child of this process, until none is left.

        A stopped keeper adopts children and kills none; once it is killed, this process adopts them.

        For use after SupervisorLost. Returns what was still alive after `limit_s`, normally nothing.
        """
        start = time.monotonic()
        while True:
            accept_stuck = time.monotonic() - start > min(messages.STUCK_LIMIT_S, limit_s / 2)
            try:
                left = kernel.kill_children((), accept_stuck)
            except OSError:  # no descriptor to list them with, for the moment
                left = [self.keeper_pid]
            self.reap()
            if not left or time.monotonic() - start > limit_s:
                return tuple(left)
            time.sleep(0.005)

    def list_left(self) -> set[int]:
        """List the supervisor's children that a sweep would not spare."""
        return {*kernel.list_children(self.pid)} - self._spared_pids

    def describe_remaining(self) -> str:
        """Describe what delays a sweep: processes that the supervisor cannot kill, or itself if it does not run."""
        children = set() if kernel.is_stopped(self.pid) else self.list_left()
        return ", ".join(map(kernel.describe_process, sorted(children) or [self.pid]))

    def wake(self) -> None:
        """Continue keeper and supervisor if both were stopped: what was ordered waits for them."""
        for pid in (self.keeper_pid, self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def close(self, limit_s: float = SWEEP_LIMIT_S) -> None:
        """Let the supervisor sweep everything and exit, or kill it after `limit_s`. Closing twice does nothing more.

        Its last reports are left for read_reports().
        """
        if self._is_closed:
            return
        self._is_over = self._is_closed = True
        self._channel.finish()
        self._order_channel.finish()  # a keeper that could not be sent its order waits for it
        deadline = time.monotonic() + limit_s
        self._wait_for_exit(deadline)
        self._channel.close()
        self._order_channel.close()
        if self._keeper_status != 0:
            self.kill_orphans(limit_s)
            remove_leftovers(self.temporary_dirs)

    def _send_order(self, *order: object, descriptors: tuple[int, ...] = ()) -> None:
        """Send an order. The supervisor never waits for us to read, so waiting for it to read ends."""
        if self._is_over or self._channel.has_ended or self._channel.send(order, descriptors):
            return
        deadline = time.monotonic() + ORDER_LIMIT_S
        while not self._channel.flush():
            if not self._wait_for_event(select.POLLOUT, deadline):
                who = f"the supervisor (pid {self._pid})"
                self._loss_reason = f"{who} accepted no order for {ORDER_LIMIT_S:g} s and was killed"
                if self._keeper_status is None:  # once the supervisor is our own child, kill_orphans() reaches it, too
                    os.kill(self.keeper_pid, signal.SIGKILL)
                self._channel.abandon()
                return

    def _receive(self) -> None:
        for (kind, *fields), _ in self._channel.receive():
            report = messages.REPORTS[kind](*fields)
            if isinstance(report, messages.SupervisorStarted):
                self._pid = report.pid
                self._order_channel.close()
                continue
            if isinstance(report, messages.Preloading | messages.StandbyReady):
                self._spared_pids.add(report.pid)
            elif isinstance(report, messages.Spawned):
                self._spared_pids.discard(report.pid)
            if not isinstance(report, messages.StandbyReady):
                self._pending_reports.append(report)

    def _wait_for_event(self, event: int, deadline: float) -> bool:
        poll = select.poll()
        poll.register(self._channel, event)
        return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))

    def _reap_one(self, pid: int) -> bool:
        """Reap one ended child (-1: any); whether there was one."""
        try:
            reaped, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return False
        if reaped == self.keeper_pid:
            self._keeper_status = status
        return reaped != 0

    def _has_keeper_ended(self) -> bool:
        return self._keeper_status is not None or self._reap_one(self.keeper_pid)

    def _wait_for_exit(self, deadline: float) -> None:
        """Wait until supervisor and keeper have ended and left no process, or the one to act is stopped.

        When one of them is lost the other kills the rest. If it were killed at once, and this process next, none would.
        """
        while time.monotonic() < deadline:
            self._receive()
            if self._channel.has_ended and self._has_keeper_ended():
                return
            if kernel.is_stopped(self.keeper_pid if self._channel.has_ended or not self._pid else self._pid):
                return
            time.sleep(0.001)

    def _find_refusal(self) -> messages.SupervisorLost | None:
        """Return why a keeper that has ended could not read its order; None if it could."""
        for (_, *fields), _descriptors in self._order_channel.receive():
            return messages.SupervisorLost(*fields)
        return None

    def _describe_loss(self) -> str:
        """Return the reason of the supervisor's loss, as a sentence."""
        if self._loss_reason:
            return self._loss_reason
        who = f"the supervisor (pid {self._pid})" if self._pid else "the supervisor"
        if self._keeper_status is None:
            return f"{who} closed its socket"
        exit_code = os.waitstatus_to_exitcode(self._keeper_status)
        if exit_code < 0:
            who = f"the keeper (pid {self.keeper_pid})"
        how = messages.describe_exit(128 - exit_code if exit_code > 128 else exit_code)
        is_late = time.clock_gettime(time.CLOCK_BOOTTIME) >= self._watchdog_deadline
        return f"{who} {how}{' after its watchdog expired' if is_late else ''}"
