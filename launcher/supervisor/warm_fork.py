"""One worker that the fork server forks, from the order until it runs.

There is a socket for it. One end travels to the fork server with the order, and the worker that is forked for it
reports there that it is ready: by then it is the supervisor's own child, like a cold one. It waits for its spec, and
closes its end as it begins to run. So at any point before that, closing our end is enough: a worker without a spec ends
by itself and has run nothing.

It runs foreign code, so everything that it sends is validated, and the supervisor never waits for it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial

from launcher.supervisor.channel import Channel
from launcher.supervisor.child import ProcessHost, Worker, close_streams
from launcher.supervisor.messages import StandbyReady, WorkerSpec, encode_worker_spec
from rendezvous.values import NamedTuple

# A ready fork server forks in milliseconds. One that has not within this time is stopped or stuck.
FORK_LIMIT_S = 10.0
# A worker that is lost before it is ready was lost with its fork server, if that is reaped within this time.
LOST_LIMIT_S = 1.0


class SpawnRequest(NamedTuple):
    """A worker of a round. Its streams are open here until its spec has been sent."""

    round: int
    spec: WorkerSpec


class SpawnContext(NamedTuple):
    """What all forks in progress have in common."""

    loop: ProcessHost
    environment: Mapping[str, str]
    """The agent's, on which every worker's own is based."""
    forks: list[WarmFork]
    on_ready: Callable[[], None]
    retry: Callable[[SpawnRequest], None]
    """For a request whose worker was lost to a sweep, which is not its failure."""


class WarmFork:
    """One forked worker. Without a request it is on standby when it is ready, until it gets one."""

    def __init__(self, context: SpawnContext, end: socket.socket, request: SpawnRequest | None) -> None:
        self.deadline = time.monotonic() + FORK_LIMIT_S
        self.request = request
        self.pid = 0  # set once it is ready
        self.is_lost = False  # it will not become ready; the cause is determined at the deadline
        self.was_swept = False  # a pass of a sweep may have killed it while its pid was unknown
        self._context = context
        self._channel = Channel(end)
        self._worker: Worker | None = None
        self._is_sent = False
        context.forks.append(self)
        context.loop.watch(end.fileno(), self.receive)

    @property
    def has_spec(self) -> bool:
        """Whether its spec is being sent, so that it may run."""
        return self._worker is not None

    def assign(self, request: SpawnRequest) -> None:
        """Let it run this request, as soon as it is ready."""
        self.request = request
        if not self.pid:
            return
        loop, spec = self._context.loop, request.spec
        self._worker = worker = Worker(request.round, spec.local_rank)
        worker.pid, worker.poll_start = self.pid, partial(self.receive, self.pid)
        loop.workers[worker.pid] = worker
        environment = {name: value for name, value in self._context.environment.items() if name not in spec.unset}
        environment.update(spec.env)
        streams = 1 if spec.stdout is None else spec.stdout, 2 if spec.stderr is None else spec.stderr
        full_spec = spec._replace(env=environment, unset=(), stdout=streams[0], stderr=streams[1])
        try:
            self._channel.send(encode_worker_spec(full_spec), streams)
            self._flush()
        except OSError as error:  # too many descriptors are in flight
            self._handle_failure(f"cannot start {worker.name}: {format_os_error(error)}", error.errno or 0)

    def _flush(self) -> None:
        """Send what the socket accepts of a spec; its streams stay open until all of it has been sent."""
        if self._worker is None or self._is_sent:
            return
        is_sent = self._channel.flush()
        if is_sent:
            self._mark_sent()
        self._context.loop.watch(self._channel.fileno(), self.receive, until_writable=not is_sent)

    def _mark_sent(self) -> None:
        if self.request is not None and not self._is_sent:
            self._is_sent = True
            close_streams(self.request.spec)

    def receive(self, reaped: int = 0) -> None:
        """Read its messages. `reaped`: the pid of a child that was just reaped; if it is this one, no more follow."""
        failure: tuple[str, int] | None = None
        try:
            self._flush()
            for (verb, *words), descriptors in self._channel.receive():
                for descriptor in descriptors:
                    os.close(descriptor)
                if verb == "born" and not self.pid:
                    self._handle_ready(int(words[0]), reaped)
                elif verb == "failed":
                    failure = str(words[0]), int(words[1])
                else:
                    raise ValueError(f"{verb!r}"[:80])
        except (ValueError, TypeError, IndexError, OSError) as error:
            failure = f"it could not be understood ({error})", 0
        if self.is_lost or self not in self._context.forks:
            return
        if failure is not None:
            self._handle_failure(*failure)
        elif self._channel.has_ended or (self.pid and self.pid == reaped):
            self._handle_close()

    def _handle_ready(self, pid: int, reaped: int) -> None:
        if pid != reaped and not _is_child(pid):  # of another pid namespace: it cannot be signalled or spared
            self._mark_lost()
            return
        if self.was_swept and (pid == reaped or self._context.loop.is_killed(pid)):  # before it reported
            self._retry()
            return
        self.pid = pid
        self._context.on_ready()
        if self.request is not None:
            self.assign(self.request)
        else:
            self._context.loop.report(StandbyReady(pid))

    def _handle_failure(self, sentence: str, error_number: int) -> None:
        """Handle the reason, from it or from the fork server, why it cannot run."""
        self.drop()
        if self._worker is not None:
            self._context.loop.report_spawn_failure(self._worker, sentence, error_number)
        elif self.request is not None:
            fail_request(
                self._context.loop, self.request, os.strerror(error_number) if error_number else sentence, error_number
            )

    def _handle_close(self) -> None:
        """Handle that its end is closed: it runs, or it has ended."""
        if self._worker is not None:
            self.drop()
            self._context.loop.report_running(self._worker)
        elif self.pid:
            self.drop()
        elif self.was_swept:
            self._retry()
        else:
            self._mark_lost()

    def _retry(self) -> None:
        """Return its request after a sweep of another round has killed it."""
        self.drop()
        if self.request is not None:
            self._context.retry(self.request)

    def _mark_lost(self) -> None:
        self.is_lost = True
        self.deadline = min(self.deadline, time.monotonic() + LOST_LIMIT_S)
        self._context.loop.unwatch(self._channel.fileno())

    def drop(self) -> None:
        """Close its connection: without a spec it ends by itself. A request that was not sent is left to the caller."""
        self._context.forks.remove(self)
        if self._worker is not None:
            self._mark_sent()
        if not self.is_lost:
            self._context.loop.unwatch(self._channel.fileno())
        self._channel.close()


def fail_request(loop: ProcessHost, request: SpawnRequest, reason: str, error_number: int) -> None:
    """Report that a request's worker cannot be started."""
    close_streams(request.spec)
    worker = Worker(request.round, request.spec.local_rank)
    loop.report_spawn_failure(worker, f"cannot start {worker.name}: {reason}", error_number)


def format_os_error(error: OSError) -> str:
    return error.strerror or str(error)


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
