"""One worker that is forked from the image, from the order to fork it until it runs.

There is a socket for it. One end travels to the fork server with the order, and the worker that is forked for it says
there that it is born: by then it is the warden's own child, as a cold one is. It waits for its spec, and closes its
end as it begins to run. So whatever happens before, it is enough to close ours: a worker without a spec ends by
itself and has run nothing, wherever it was on its way.

It runs other people's code, so nothing that it says is believed unseen, and the warden never waits for it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial

from launcher.warden.channel import Channel
from launcher.warden.child import Worker, close_streams
from launcher.warden.words import Parked, WorkerSpec, written
from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.warden.process import Loop

# A fork server that is ready forks in milliseconds. One that has not within this time is stopped or stuck.
BIRTH_LIMIT_S = 10.0
# A worker that is lost before it is born was lost with its fork server, if that is reaped within this time.
LOST_LIMIT_S = 1.0


class Job(NamedTuple):
    """A worker of a round. Its streams are open here until it has been sent its spec."""

    round: int
    spec: WorkerSpec


class Ward(NamedTuple):
    """What those who are on their way have in common."""

    loop: Loop
    environment: Mapping[str, str]
    """The agent's, as workers without a spec of their own would have it."""
    births: list[Birth]
    born: Callable[[], None]
    again: Callable[[Job], None]
    """For a job whose worker was lost, and nobody is to blame."""


class Birth:
    """One that is ordered without a job is parked when it is born, until it is given one."""

    def __init__(self, ward: Ward, end: socket.socket, job: Job | None) -> None:
        self.limit = time.monotonic() + BIRTH_LIMIT_S
        self.job = job
        self.pid = 0  # once it is born
        self.is_lost = False  # it will not be born; whose fault it is is seen at the limit
        self.was_swept = False  # a pass of a sweep may have killed it while it was nobody that we knew
        self._ward = ward
        self._channel = Channel(end)
        self._worker: Worker | None = None
        self._is_sent = False
        ward.births.append(self)
        ward.loop.watch(end.fileno(), self.hear)

    @property
    def has_spec(self) -> bool:
        """Whether its spec is on the way to it, so that it may run."""
        return self._worker is not None

    def give(self, job: Job) -> None:
        """Let it run this, as soon as it is born."""
        self.job = job
        if not self.pid:
            return
        loop, spec = self._ward.loop, job.spec
        self._worker = worker = Worker(job.round, spec.local_rank)
        worker.pid, worker.hear = self.pid, partial(self.hear, self.pid)
        loop.workers[worker.pid] = worker
        environment = {name: value for name, value in self._ward.environment.items() if name not in spec.unset}
        environment.update(spec.env)
        streams = 1 if spec.stdout is None else spec.stdout, 2 if spec.stderr is None else spec.stderr
        whole = spec._replace(env=environment, unset=(), stdout=streams[0], stderr=streams[1])
        try:
            self._channel.send(written(whole), streams)
            self._flush()
        except OSError as error:  # too many descriptors are on their way
            self._failed(f"cannot start {worker.name}: {why(error)}", error.errno or 0)

    def _flush(self) -> None:
        """Send what the socket takes of a spec; its streams are needed until all of it has gone."""
        if self._worker is None or self._is_sent:
            return
        is_sent = self._channel.flush()
        if is_sent:
            self._sent()
        self._ward.loop.watch(self._channel.fileno(), self.hear, until_writable=not is_sent)

    def _sent(self) -> None:
        if self.job is not None and not self._is_sent:
            self._is_sent = True
            close_streams(self.job.spec)

    def hear(self, reaped: int = 0) -> None:
        """Read what it says. `reaped`: the pid of a child that has just been; if it is this one, that is all."""
        failure: tuple[str, int] | None = None
        try:
            self._flush()
            for (verb, *words), descriptors in self._channel.receive():
                for descriptor in descriptors:
                    os.close(descriptor)
                if verb == "born" and not self.pid:
                    self._born(int(words[0]), reaped)
                elif verb == "failed":
                    failure = str(words[0]), int(words[1])
                else:
                    raise ValueError(f"{verb!r}"[:80])
        except (ValueError, TypeError, IndexError, OSError) as error:
            failure = f"it could not be understood ({error})", 0
        if self.is_lost or self not in self._ward.births:
            return
        if failure is not None:
            self._failed(*failure)
        elif self._channel.ended or (self.pid and self.pid == reaped):
            self._closed()

    def _born(self, pid: int, reaped: int) -> None:
        if pid != reaped and not _is_child(pid):  # of another pid namespace: nobody we could signal or spare
            self._lose()
            return
        if self.was_swept and (pid == reaped or self._ward.loop.is_killed(pid)):  # before we heard of it
            self._begin_again()
            return
        self.pid = pid
        self._ward.born()
        if self.job is not None:
            self.give(self.job)
        else:
            self._ward.loop.report(Parked(pid))

    def _failed(self, sentence: str, error_number: int) -> None:
        """It, or the fork server in its place, has said why it cannot run."""
        self.drop()
        if self._worker is not None:
            self._ward.loop.failed(self._worker, sentence, error_number)
        elif self.job is not None:
            fail(self._ward.loop, self.job, os.strerror(error_number) if error_number else sentence, error_number)

    def _closed(self) -> None:
        """Its end is closed: it runs, or it has ended."""
        if self._worker is not None:
            self.drop()
            self._ward.loop.runs(self._worker)
        elif self.pid:
            self.drop()
        elif self.was_swept:
            self._begin_again()
        else:
            self._lose()

    def _begin_again(self) -> None:
        """A sweep of another round has hit it: its job is another one's."""
        self.drop()
        if self.job is not None:
            self._ward.again(self.job)

    def _lose(self) -> None:
        self.is_lost = True
        self.limit = min(self.limit, time.monotonic() + LOST_LIMIT_S)
        self._ward.loop.forget(self._channel.fileno())

    def drop(self) -> None:
        """Have no more to do with it: without a spec it ends by itself. A job not sent yet is the caller's."""
        self._ward.births.remove(self)
        if self._worker is not None:
            self._sent()
        if not self.is_lost:
            self._ward.loop.forget(self._channel.fileno())
        self._channel.close()


def fail(loop: Loop, job: Job, reason: str, error_number: int) -> None:
    """Report that a job's worker cannot be started."""
    close_streams(job.spec)
    worker = Worker(job.round, job.spec.local_rank)
    loop.failed(worker, f"cannot start {worker.name}: {reason}", error_number)


def why(error: OSError) -> str:
    return error.strerror or str(error)


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
