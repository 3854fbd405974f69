"""The pool of warm workers: those that the fork server forks, instead of an exec.

    batched --begin--> waiting --the fork server is ready--> ordered --ready--> standby --spec--> runs
                          |                                     |
                          '------ the fork server is lost ------'--> started cold, by an exec

Workers beyond those that rounds need stay on standby, over the end of a round, so that the next one need not even fork.
spawn.py follows one that has been ordered; fork_server_client.py the process that forks.
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


# Fork servers in a row that died, or whose children did, before one worker was ready: the next would fail, too.
_FAILURES_MAX = 2
# By default these do nothing to a program, or stop or continue it.
_NON_FATAL_SIGNALS = {signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT, signal.SIGSTOP, signal.SIGTSTP}


class WarmPool:
    """The warm workers of a node and their fork server."""

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
        """Add a worker to the batch that begin() starts. Its streams are ours from here."""
        self._batch.append(SpawnRequest(round, spec))

    def begin(self) -> None:
        """Start the batch: standby workers get the first requests."""
        self._waiting += self._batch
        self._batch.clear()
        self._lacks_standby = self._server_spec.standby > 0
        for fork in sorted(self._forks, key=lambda fork: fork.pid == 0):
            if self._waiting and fork.request is None:
                fork.receive()  # it may have been killed meanwhile
                if fork in self._forks and not fork.is_lost:
                    fork.assign(self._waiting.pop(0))

    @property
    def wait_s(self) -> float:
        """The seconds until advance() has something to do, if nothing happens before."""
        limits = [fork.deadline for fork in self._forks if not fork.pid]
        limits += [self._server.lost_at] if self._server is not None else []
        return min(limits, default=math.inf) - time.monotonic()

    def advance(self, *, has_rounds: bool) -> None:
        """Do what has become due."""
        now = time.monotonic()
        if self._server is not None and now >= self._server.lost_at:
            self._server.handle_timeout()
        late = [fork for fork in self._forks if not fork.pid and now >= fork.deadline]
        if late and self._server is not None:
            is_lost = any(fork.is_lost for fork in late)
            lost, stuck = "has lost a worker before it was born", f"has forked no worker within {FORK_LIMIT_S:g} s"
            self._server.give_up(lost if is_lost else stuck)
        while self._waiting and self._server is None and self._may_start:
            self._start_server()
        if self._waiting:
            if self._server is None and not self._is_refused:
                self._start_cold(self._take_waiting())
            elif self._server is not None and self._server.is_ready:
                self._request_forks(self._take_waiting())
        elif self._lacks_standby and has_rounds and not any(fork.request for fork in self._forks):
            self._request_standby()

    def signal(self, round: int, signum: int, only: Collection[int] | None) -> None:
        """End workers that have no spec yet as the signal would end them in their first moment."""
        if signum in _NON_FATAL_SIGNALS:
            return
        for one in self._cancel(lambda one: one.round == round and (only is None or one.spec.local_rank in only)):
            self._loop.report(Exited(round, one.spec.local_rank, 0, -signum, time.time()))

    def sweep(self, rounds: Collection[int]) -> None:
        """Cancel the workers of these rounds that have no spec yet."""
        self._cancel(lambda request: request.round in rounds)

    def list_spared(self) -> set[int]:
        """The pids that a pass of a sweep spares. It may kill a worker that is not ready, which is no failure."""
        for fork in self._forks:
            fork.was_swept = fork.was_swept or not fork.pid
        standby = {fork.pid for fork in self._forks if not fork.has_spec}
        return standby if self._server is None else standby | {self._server.pid}

    def stop(self, reason: str = "") -> None:
        """Kill the fork server and the standby workers. With `reason` it is reported, and resume() starts it anew."""
        self._cancel(lambda job: True)
        for fork in [fork for fork in self._forks if not fork.has_spec]:
            fork.drop()
            if fork.pid:
                with suppress(ProcessLookupError):
                    os.kill(fork.pid, signal.SIGKILL)
        if self._server is not None:
            self._server.kill()
            if reason:
                self._loop.report(ForkServerLost(f"the fork server (pid {self._server.pid}) {reason}"))
            self._server = None
            self._is_ended = True

    def resume(self) -> None:
        """Start the fork server after a stop: have the import done before the next round."""
        if self._is_ended and self._server is None and self._may_start:
            self._start_server()
        self._is_ended = False

    def handle_exit(self, pid: int, exit_code: int) -> None:
        """Handle a reaped child that the loop does not know as a worker; it may have reported that it is ready."""
        if self._server is not None and pid == self._server.pid:
            self._server.handle_exit(exit_code)
            return
        for fork in self._forks.copy():
            if not fork.is_lost and fork.pid in (0, pid):
                fork.receive(pid)

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
        """Drop the fork server and the workers that are not ready. Standby workers stay."""
        self._server = None
        self._failure_count += 1
        pending = [fork for fork in self._forks if not fork.pid]
        requests = [fork.request for fork in pending if fork.request is not None]
        for fork in pending:
            fork.drop()
        if not self._may_start:
            requests += self._take_waiting()
            then = "workers are started without it from here on"
        elif requests:
            then = f"{len(requests)} {'worker is' if len(requests) == 1 else 'workers are'} started without it"
        elif self._waiting:
            then = "it is started once more"
        else:
            then = "the next round starts it once more"
        self._loop.report(ForkServerLost(f"{sentence}; {then}"))
        self._start_cold(requests)

    # Workers on their way

    def _request_forks(self, requests: Sequence[SpawnRequest | None]) -> None:
        """Have a worker forked for each of these; None is a standby worker."""
        assert self._server is not None
        ends = []
        for request in requests:
            try:
                ours, theirs = socket.socketpair()
            except OSError as error:
                if request is not None:
                    fail_request(self._loop, request, format_os_error(error), error.errno or 0)
                continue
            WarmFork(self._context, ours, request)
            self._loop.note_descriptors(theirs.fileno())
            ends.append(theirs)
        try:
            self._server.request_forks(ends)
        except OSError as error:  # too many descriptors are in flight
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
        """Cancel those of these that have no spec yet, and return them."""
        cancelled = []
        for queue in (self._batch, self._waiting):
            cancelled += [request for request in queue if is_cancelled(request)]
            queue[:] = [request for request in queue if not is_cancelled(request)]
        for fork in self._forks.copy():
            if fork.request is not None and not fork.has_spec and is_cancelled(fork.request):
                cancelled.append(fork.request)
                fork.drop()
        for request in cancelled:
            close_streams(request.spec)
        return cancelled

    def _take_waiting(self) -> list[SpawnRequest]:
        requests = self._waiting.copy()
        self._waiting.clear()
        return requests

    def _start_cold(self, requests: Sequence[SpawnRequest]) -> None:
        for request in requests:
            self._loop.spawn_cold(request.round, request.spec)
