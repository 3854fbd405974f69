"""Warm workers: all that are not started by an exec, and where they come from.

    called --begin--> waiting --the fork server is ready--> ordered --born--> parked --spec--> runs
                         |                                     |
                         '------ the fork server is lost ------'--> started cold, by an exec

Those beyond what rounds ask for stay parked, over the end of a round, so that the next one need not even fork. What
becomes of one that has been ordered is seen in spawn.py; of the process that forks, in fork_server_client.py.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from launcher.supervisor.child import ProcessHost, close_streams
from launcher.supervisor.fork_server_client import ForkServer
from launcher.supervisor.messages import (
    Exited,
    ForkServerLost,
    Preloaded,
    Preloading,
    PreloadRefused,
    WorkerSpec,
    decode_fork_server_spec,
)
from launcher.supervisor.warm_fork import (
    FORK_LIMIT_S,
    SpawnContext,
    SpawnRequest,
    WarmFork,
    fail_request,
    format_os_error,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# Fork servers in a row that died, or whose children do, before one worker was born: the next would not fare better.
_FAILURES_MAX = 2
# What these do to a program that has not asked for them is nothing, or to stop it or let it go on.
_NON_FATAL_SIGNALS = {signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT, signal.SIGSTOP, signal.SIGTSTP}


class WarmPool:
    """What the supervisor's loop asks of it is above, what it hears of its fork server below."""

    def __init__(self, loop: ProcessHost, encoded_spec: list[Any]) -> None:
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in loop.environment.items()}
        self._loop = loop
        self._server_spec = decode_fork_server_spec(encoded_spec)
        self._server: ForkServer | None = None
        self._failure_count = 0
        self._is_refused = self._is_ended = False
        self._batch: list[SpawnRequest] = []
        self._waiting: list[SpawnRequest] = []
        self._forks: list[WarmFork] = []
        self._context = SpawnContext(loop, environment, self._forks, self._reset_failures, self._waiting.append)
        self._lacks_standby = False
        self._start_server()

    def spawn(self, round: int, spec: WorkerSpec) -> None:
        """A worker is wanted, with those that will have been called before begin(). Its streams are ours from here."""
        self._batch.append(SpawnRequest(round, spec))

    def begin(self) -> None:
        """Start all that have been called: parked ones are the first to be given their work."""
        self._waiting += self._batch
        self._batch.clear()
        self._lacks_standby = self._server_spec.standby > 0
        for birth in sorted(self._forks, key=lambda birth: birth.pid == 0):
            if self._waiting and birth.request is None:
                birth.receive()  # it may have been killed meanwhile
                if birth in self._forks and not birth.is_lost:
                    birth.assign(self._waiting.pop(0))

    @property
    def wait_s(self) -> float:
        """How long until settle() has something to do, if nothing happens before."""
        limits = [birth.deadline for birth in self._forks if not birth.pid]
        limits += [self._server.lost_at] if self._server is not None else []
        return min(limits, default=math.inf) - time.monotonic()

    def advance(self, *, has_rounds: bool) -> None:
        """Do what has become due."""
        now = time.monotonic()
        if self._server is not None and now >= self._server.lost_at:
            self._server.handle_timeout()
        late = [birth for birth in self._forks if not birth.pid and now >= birth.deadline]
        if late and self._server is not None:
            is_lost = any(birth.is_lost for birth in late)
            lost, stuck = "has lost a worker before it was born", f"has forked no worker within {FORK_LIMIT_S:g} s"
            self._server.give_up(lost if is_lost else stuck)
        while self._waiting and self._server is None and self._may_start:
            self._start_server()
        if self._waiting:
            if self._server is None and not self._is_refused:
                self._start_cold(self._take_waiting())
            elif self._server is not None and self._server.is_ready:
                self._request_forks(self._take_waiting())
        elif self._lacks_standby and has_rounds and not any(birth.request for birth in self._forks):
            self._request_standby()

    def signal(self, round: int, signum: int, only: Collection[int] | None) -> None:
        """End those who have no spec yet as the signal would end them in their first moment."""
        if signum in _NON_FATAL_SIGNALS:
            return
        for job in self._cancel(lambda job: job.round == round and (only is None or job.spec.local_rank in only)):
            self._loop.report(Exited(round, job.spec.local_rank, 0, -signum, time.time()))

    def sweep(self, rounds: Collection[int]) -> None:
        """Those of these rounds who have no spec yet will never get one."""
        self._cancel(lambda job: job.round in rounds)

    def list_spared(self) -> set[int]:
        """Whom a pass of a sweep leaves alone. Who is on the way may be killed by it; that is nobody's fault."""
        for birth in self._forks:
            birth.was_swept = birth.was_swept or not birth.pid
        parked = {birth.pid for birth in self._forks if not birth.has_spec}
        return parked if self._server is None else parked | {self._server.pid}

    def stop(self, reason: str = "") -> None:
        """Kill the fork server and who is parked. With `why` it is said, and resume() starts it anew."""
        self._cancel(lambda job: True)
        for birth in [birth for birth in self._forks if not birth.has_spec]:
            birth.drop()
            if birth.pid:
                with suppress(ProcessLookupError):
                    os.kill(birth.pid, signal.SIGKILL)
        if self._server is not None:
            self._server.kill()
            if reason:
                self._loop.report(ForkServerLost(f"the fork server (pid {self._server.pid}) {reason}"))
            self._server = None
            self._is_ended = True

    def resume(self) -> None:
        """Workers may live again, if they might not: have the import done before the next round."""
        if self._is_ended and self._server is None and self._may_start:
            self._start_server()
        self._is_ended = False

    def handle_exit(self, pid: int, exit_code: int) -> None:
        """A child has been reaped that is no worker the loop knows; it may have said that it is born."""
        if self._server is not None and pid == self._server.pid:
            self._server.handle_exit(exit_code)
            return
        for birth in self._forks.copy():
            if not birth.is_lost and birth.pid in (0, pid):
                birth.receive(pid)

    # The fork server

    @property
    def _may_start(self) -> bool:
        return not self._is_refused and self._failure_count < _FAILURES_MAX

    def _start_server(self) -> None:
        try:
            self._server = ForkServer(self._loop, self._server_spec, self)
        except OSError as error:
            self.on_lost(f"the fork server could not be started: {format_os_error(error)}")

    def on_started(self, pid: int) -> None:
        self._loop.report(Preloading(pid))

    def on_ready(self, pid: int, seconds: float, remarks: tuple[str, ...]) -> None:
        self._loop.report(Preloaded(pid, seconds, remarks))

    def on_refused(self, sentence: str, hint: str) -> None:
        self._server, self._is_refused = None, True
        self._loop.report(PreloadRefused(sentence, hint))

    def on_lost(self, sentence: str) -> None:
        """It is gone, with all who are on their way. Who is parked stays."""
        self._server = None
        self._failure_count += 1
        unborn = [birth for birth in self._forks if not birth.pid]
        jobs = [birth.request for birth in unborn if birth.request is not None]
        for birth in unborn:
            birth.drop()
        if not self._may_start:
            jobs += self._take_waiting()
            then = "workers are started without it from here on"
        elif jobs:
            then = f"{len(jobs)} {'worker is' if len(jobs) == 1 else 'workers are'} started without it"
        elif self._waiting:
            then = "it is started once more"
        else:
            then = "the next round starts it once more"
        self._loop.report(ForkServerLost(f"{sentence}; {then}"))
        self._start_cold(jobs)

    # Workers on their way

    def _request_forks(self, requests: Sequence[SpawnRequest | None]) -> None:
        """Have a worker forked for each of these, or to be parked."""
        assert self._server is not None
        ends = []
        for job in requests:
            try:
                ours, theirs = socket.socketpair()
            except OSError as error:
                if job is not None:
                    fail_request(self._loop, job, format_os_error(error), error.errno or 0)
                continue
            WarmFork(self._context, ours, job)
            self._loop.note_descriptors(theirs.fileno())
            ends.append(theirs)
        try:
            self._server.request_forks(ends)
        except OSError as error:  # too many descriptors are on their way
            self._server.give_up(f"could not be given an order ({format_os_error(error)})")

    def _request_standby(self) -> None:
        if self._server is None and self._may_start:
            self._start_server()
        elif self._server is None:
            self._lacks_standby = False
        elif self._server.is_ready:
            self._lacks_standby = False
            self._request_forks([None] * (self._server_spec.standby - len(self._forks)))

    def _reset_failures(self) -> None:
        self._failure_count = 0

    def _cancel(self, is_cancelled: Callable[[SpawnRequest], bool]) -> list[SpawnRequest]:
        """Start none of these that has no spec yet."""
        cancelled = []
        for jobs in (self._batch, self._waiting):
            cancelled += [job for job in jobs if is_cancelled(job)]
            jobs[:] = [job for job in jobs if not is_cancelled(job)]
        for birth in self._forks.copy():
            if birth.request is not None and not birth.has_spec and is_cancelled(birth.request):
                cancelled.append(birth.request)
                birth.drop()
        for job in cancelled:
            close_streams(job.spec)
        return cancelled

    def _take_waiting(self) -> list[SpawnRequest]:
        jobs = self._waiting.copy()
        self._waiting.clear()
        return jobs

    def _start_cold(self, requests: Sequence[SpawnRequest]) -> None:
        for job in requests:
            self._loop.spawn_cold(job.round, job.spec)
