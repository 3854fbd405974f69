"""Warm workers: those that a fork server forks, with everything imported, instead of an exec.

    batched --begin--> waiting --the fork server is ready--> ordered --ready--> standby --spec--> runs
                          |                                     |
                          '------ the fork server is lost ------'--> started cold, by an exec

Workers beyond those that rounds need stay on standby, over the end of a round, so that the next one need not even fork.

The fork server is started like a worker, by an exec, and may import for minutes. It communicates over a socket whose
number is in its environment, and each worker that it forks over a socket of its own: one end travels to the fork server
with the order, and the worker that is forked for it reports there that it is ready. By then it is the supervisor's own
child, like a cold one. It waits for its spec, and closes its end as it begins to run. So at any point before that,
closing our end is enough: a worker without a spec ends by itself and has run nothing.

Both run foreign code, so everything that they send is validated, the supervisor never waits for them, and it kills a
fork server that is useless.
"""

from __future__ import annotations

import math
import os
import signal
import time
from _socket import socket, socketpair
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

from launcher.hardware.linux import kernel
from launcher.supervisor import messages
from launcher.supervisor.channel import DESCRIPTORS_MAX
from launcher.supervisor.child import ProcessHost, Worker, close_streams
from launcher.supervisor.fork_server.json_channel import JsonChannel
from launcher.supervisor.messages import ForkServerSpec, WorkerSpec

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    from typing import Any

SOCKET_VARIABLE = "LAUNCHER_FORK_SERVER"
# A ready fork server forks in milliseconds. One that has not within this time is stopped or stuck.
FORK_LIMIT_S = 10.0
# A worker that is lost before it is ready was lost with its fork server, if that is reaped within this time: its socket
# closes a moment before.
LOST_LIMIT_S = 1.0
# Fork servers in a row that died, or whose children did, before one worker was ready: the next would fail, too.
_FAILURES_MAX = 2
# By default these do nothing to a program, or stop or continue it.
_NON_FATAL_SIGNALS = {signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT, signal.SIGSTOP, signal.SIGTSTP}


class WarmPool:
    """The warm workers of a node and their fork server. `is_killed`: whether a sweep has killed a child, which has not
    been reaped yet.
    """

    def __init__(self, host: ProcessHost, encoded_spec: list[Any], is_killed: Callable[[int], bool]) -> None:
        self.host = host
        self.environment = {os.fsdecode(name): os.fsdecode(value) for name, value in host.environment.items()}
        """The agent's, on which every worker's own is based."""
        self.is_killed = is_killed
        self.forks: list[WarmFork] = []
        self._server_spec = ForkServerSpec(*encoded_spec)
        self._server: ForkServer | None = None
        self._failure_count = 0
        self._is_refused = self._is_ended = False
        self._batch: list[Worker] = []
        self._waiting: list[Worker] = []
        self._lacks_standby = False
        self._start_server()

    def spawn(self, worker: Worker) -> None:
        """Add a worker to the batch that begin() starts."""
        self._batch.append(worker)

    def begin(self) -> None:
        """Start the batch: processes on standby become its first workers."""
        self._waiting += self._batch
        self._batch.clear()
        self._lacks_standby = self._server_spec.standby > 0
        for fork in sorted(self.forks, key=lambda fork: fork.pid == 0):
            if self._waiting and fork.worker is None:
                fork.receive()  # it may have been killed meanwhile
                if fork in self.forks and not fork.is_lost:
                    fork.assign(self._waiting.pop(0))

    @property
    def wait_s(self) -> float:
        """The seconds until advance() has something to do, if nothing happens before."""
        limits = [fork.deadline for fork in self.forks if not fork.pid]
        limits += [self._server.lost_at] if self._server is not None else []
        return min(limits, default=math.inf) - time.monotonic()

    def advance(self, *, has_rounds: bool) -> None:
        """Do what has become due."""
        now = time.monotonic()
        if self._server is not None and now >= self._server.lost_at:
            self._server.give_up("closed its socket")
        late = [fork for fork in self.forks if not fork.pid and now >= fork.deadline]
        if late and self._server is not None:
            is_lost = any(fork.is_lost for fork in late)
            lost, stuck = "lost a worker before it was ready", f"forked no worker within {FORK_LIMIT_S:g} s"
            self._server.give_up(lost if is_lost else stuck)
        while self._waiting and self._server is None and self._may_start:
            self._start_server()
        if self._waiting:
            if self._server is None and not self._is_refused:
                self._start_cold(self._take_waiting())
            elif self._server is not None and self._server.is_ready:
                self._request_forks(self._take_waiting())
        elif self._lacks_standby and has_rounds and not any(fork.worker for fork in self.forks):
            self._request_standby()

    def signal(self, round: int, signum: int, only: Collection[int] | None) -> None:
        """End workers that have no spec yet as the signal would end them in their first moment."""
        if signum in _NON_FATAL_SIGNALS:
            return
        for one in self._cancel(lambda one: one.round == round and (only is None or one.local_rank in only)):
            self.host.report(messages.Exited(round, one.local_rank, 0, -signum, time.time()))

    def sweep(self, rounds: Collection[int]) -> None:
        """Cancel the workers of these rounds that have no spec yet."""
        self._cancel(lambda worker: worker.round in rounds)

    def list_spared(self) -> set[int]:
        """The pids that a pass of a sweep spares. It may kill a worker that is not ready, which is no failure."""
        for fork in self.forks:
            fork.was_swept = fork.was_swept or not fork.pid
        standby = {fork.pid for fork in self.forks if not fork.has_spec}
        return standby if self._server is None else standby | {self._server.pid}

    def stop(self, *, is_reported: bool) -> None:
        """Kill the fork server and the standby workers. One whose end is reported is started again by resume()."""
        self._cancel(lambda worker: True)
        for fork in [fork for fork in self.forks if not fork.has_spec]:
            fork.drop()
            if fork.pid:
                with suppress(ProcessLookupError):
                    os.kill(fork.pid, signal.SIGKILL)
        if self._server is not None:
            self._server.kill()
            if is_reported:
                sentence = f"the fork server (pid {self._server.pid}) was killed: the watchdog expired"
                self.host.report(messages.ForkServerLost(sentence))
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
        for fork in self.forks.copy():
            if not fork.is_lost and fork.pid in (0, pid):
                fork.receive(pid)

    def note_ready(self) -> None:
        """Note that a fork has become ready: the fork server works."""
        self._failure_count = 0

    def retry(self, worker: Worker) -> None:
        """Start a worker again whose process was lost to a sweep, which is not its failure."""
        self._waiting.append(worker)

    # The fork server

    @property
    def _may_start(self) -> bool:
        return not self._is_refused and self._failure_count < _FAILURES_MAX

    def _start_server(self) -> None:
        try:
            self._server = ForkServer(self.host, self._server_spec, self._handle_refusal, self._handle_loss)
        except OSError as error:
            self._handle_loss(f"the fork server could not be started: {format_os_error(error)}")

    def _handle_refusal(self, sentence: str, hint: str) -> None:
        self._server, self._is_refused = None, True
        self.host.report(messages.PreloadRefused(sentence, hint))

    def _handle_loss(self, sentence: str) -> None:
        """Drop the fork server and the workers that are not ready. Standby workers stay."""
        self._server = None
        self._failure_count += 1
        pending = [fork for fork in self.forks if not fork.pid]
        workers = [fork.worker for fork in pending if fork.worker is not None]
        for fork in pending:
            fork.drop()
        if not self._may_start:
            workers += self._take_waiting()
            then = "workers are now started without it"
        elif workers:
            then = f"{len(workers)} {'worker is' if len(workers) == 1 else 'workers are'} started without it"
        elif self._waiting:
            then = "restarting it"
        else:
            then = "the next round restarts it"
        self.host.report(messages.ForkServerLost(f"{sentence}; {then}"))
        self._start_cold(workers)

    # Workers on their way

    def _request_forks(self, workers: Sequence[Worker | None]) -> None:
        """Have a process forked for each of these; None is a standby worker."""
        assert self._server is not None
        ends = []
        for worker in workers:
            try:
                ours, theirs = socketpair()
            except OSError as error:
                if worker is not None:
                    self.host.report_unstarted(worker, format_os_error(error), error.errno or 0)
                continue
            WarmFork(self, ours, worker)
            self.host.note_descriptors(theirs.fileno())
            ends.append(theirs)
        try:
            self._server.request_forks(ends)
        except OSError as error:  # too many descriptors are in flight
            self._server.give_up(f"did not accept an order ({format_os_error(error)})")

    def _request_standby(self) -> None:
        if self._server is None and self._may_start:
            self._start_server()
        elif self._server is None:
            self._lacks_standby = False
        elif self._server.is_ready:
            self._lacks_standby = False
            self._request_forks([None] * (self._server_spec.standby - len(self.forks)))

    def _cancel(self, is_cancelled: Callable[[Worker], bool]) -> list[Worker]:
        """Cancel those of these that have no spec yet, and return them."""
        cancelled = []
        for queue in (self._batch, self._waiting):
            cancelled += [worker for worker in queue if is_cancelled(worker)]
            queue[:] = [worker for worker in queue if not is_cancelled(worker)]
        for fork in self.forks.copy():
            if fork.worker is not None and not fork.has_spec and is_cancelled(fork.worker):
                cancelled.append(fork.worker)
                fork.drop()
        for worker in cancelled:
            close_streams(worker.spec)
        return cancelled

    def _take_waiting(self) -> list[Worker]:
        taken, self._waiting = self._waiting, []
        return taken

    def _start_cold(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            self.host.spawn_cold(worker)


# docs/internals/decisions/0034-fork-server-beside-the-supervisor.md
class ForkServer:
    """One process, from its fork to its end. Raises OSError if it cannot be forked."""

    def __init__(
        self,
        host: ProcessHost,
        server_spec: ForkServerSpec,
        on_refused: Callable[[str, str], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._host = host
        self._server_spec = server_spec
        self._on_refused = on_refused
        self._on_lost = on_lost
        self.is_ready = False
        self._is_started = self._is_over = False
        self.lost_at = math.inf
        """When to give it up: its socket is closed, and it should have been reaped by then."""
        ours, theirs = socketpair()
        try:
            env = {**server_spec.env, SOCKET_VARIABLE: str(theirs.fileno())}
            # Its stdout is the agent's stderr, since stdout belongs to the workers.
            spec = WorkerSpec(-1, server_spec.argv, env, server_spec.unset, 2, None, server_spec.affinity)
            self._host.note_descriptors(ours.fileno(), theirs.fileno())
            self.pid, self._poll_start = host.start(
                spec, "the fork server", self._handle_start, inherit=(theirs.fileno(),)
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._channel = JsonChannel(ours)
        self._unsent: list[socket] = []  # ends of workers in orders that the socket has not accepted yet
        host.watch(self._channel.fileno(), self._receive)
        self._channel.send(["preload", server_spec.modules, host.pid, host.kept_descriptors])

    def _handle_start(self, failure: list[Any]) -> None:
        if self._is_over:
            return
        self._is_started = True
        if failure:
            self._handle_loss(f"the fork server could not be started: {failure[0]}")
        else:
            self._host.report(messages.Preloading(self.pid))

    def request_forks(self, ends: Collection[socket]) -> None:
        """Have a worker forked for each of these sockets, which are closed here. Raises OSError."""
        waiting, is_sent = list(ends), True
        self._unsent += waiting
        while waiting:
            batch, waiting = waiting[:DESCRIPTORS_MAX], waiting[DESCRIPTORS_MAX:]
            is_sent = self._channel.send(["fork"], tuple(end.fileno() for end in batch))
        if is_sent:
            self._close_unsent()
        else:
            self._host.watch(self._channel.fileno(), self._receive, until_writable=True)

    def _close_unsent(self) -> None:
        for end in self._unsent:
            end.close()
        self._unsent.clear()

    def _receive(self) -> None:
        try:
            if self._channel.flush() and self._unsent:
                self._close_unsent()
                self._host.watch(self._channel.fileno(), self._receive)
            for (verb, *words), descriptors in self._channel.receive():
                for descriptor in descriptors:
                    os.close(descriptor)
                self._take(verb, *words)
        except (ValueError, TypeError, OSError) as error:
            self.give_up(f"sent an invalid message ({error})")
        if self._channel.has_ended and not self._is_over:
            self._stop_listening()
            if kernel.is_past_user_code(self.pid):
                self.lost_at = time.monotonic() + LOST_LIMIT_S
            else:  # an import has restarted Python, by an exec: kill it at once, before it runs the script
                self.give_up("closed its socket")

    def _take(self, verb: str, *words: Any) -> None:
        if self._is_over:  # sent after its last message
            return
        if verb == "ready" and not self.is_ready:
            seconds, remarks = words
            self.is_ready = True
            self._host.report(messages.Preloaded(self.pid, float(seconds), tuple(map(str, remarks))))
        elif verb == "refused" and not self.is_ready:
            sentence, hint = map(str, words)
            self.kill()
            self._on_refused(sentence, hint)
        else:
            raise ValueError(f"{verb!r}"[:80])

    def handle_exit(self, exit_code: int) -> None:
        """Handle its end, once it has been reaped."""
        if not self._is_started:
            self._poll_start()
        if not self._is_over:
            how = messages.describe_exit(exit_code)
            self._handle_loss(f"the fork server (pid {self.pid}) {how}{self._describe_phase()}")

    def give_up(self, reason: str) -> None:
        """Kill it: `reason` continues the sentence that `on_lost` gets."""
        during = self._describe_phase()
        self.kill()
        self._on_lost(f"the fork server (pid {self.pid}) {reason}{during} and was killed")

    def kill(self) -> None:
        """Kill it and its intermediate processes, and ignore further events."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):  # forked, and not yet the leader of its group
            os.killpg(self.pid, signal.SIGKILL)
        self._is_over = True
        self._stop_listening()

    def _handle_loss(self, sentence: str) -> None:
        self._is_over = True
        self._stop_listening()
        self._on_lost(sentence)

    def _stop_listening(self) -> None:
        if self._channel.fileno() != -1:
            self._host.unwatch(self._channel.fileno())
            self._channel.close()
        self._close_unsent()
        self.lost_at = math.inf

    def _describe_phase(self) -> str:
        return "" if self.is_ready else f" while importing {', '.join(self._server_spec.modules)}"


class WarmFork:
    """One forked process. Without a worker to become it is on standby when it is ready, until it gets one."""

    def __init__(self, pool: WarmPool, end: socket, worker: Worker | None) -> None:
        self.deadline = time.monotonic() + FORK_LIMIT_S
        self.worker = worker
        self.pid = 0  # set once it is ready
        self.has_spec = False  # its spec is being sent, so that it may run
        self.is_lost = False  # it will not become ready; the cause is determined at the deadline
        self.was_swept = False  # a pass of a sweep may have killed it while its pid was unknown
        self._pool = pool
        self._channel = JsonChannel(end)
        self._is_sent = False
        pool.forks.append(self)
        pool.host.watch(end.fileno(), self.receive)

    def assign(self, worker: Worker) -> None:
        """Let it become this worker, as soon as it is ready."""
        self.worker = worker
        if not self.pid:
            return
        self.has_spec = True
        spec = worker.spec
        worker.pid, worker.poll_start = self.pid, partial(self.receive, self.pid)
        self._pool.host.workers[worker.pid] = worker
        environment = {name: value for name, value in self._pool.environment.items() if name not in spec.unset}
        environment.update(spec.env)
        streams = 1 if spec.stdout is None else spec.stdout, 2 if spec.stderr is None else spec.stderr
        full_spec = spec.replace(env=environment, unset=(), stdout=streams[0], stderr=streams[1])
        try:
            self._channel.send(messages.encode_spec(full_spec), streams)
            self._flush()
        except OSError as error:  # too many descriptors are in flight
            self._handle_failure(f"cannot start {worker.name}: {format_os_error(error)}", error.errno or 0)

    def _flush(self) -> None:
        """Send what the socket accepts of a spec; its streams stay open until all of it has been sent."""
        if not self.has_spec or self._is_sent:
            return
        is_sent = self._channel.flush()
        if is_sent:
            self._mark_sent()
        self._pool.host.watch(self._channel.fileno(), self.receive, until_writable=not is_sent)

    def _mark_sent(self) -> None:
        if self.worker is not None and not self._is_sent:
            self._is_sent = True
            close_streams(self.worker.spec)

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
            failure = f"it sent an invalid message ({error})", 0
        if self.is_lost or self not in self._pool.forks:
            return
        if failure is not None:
            self._handle_failure(*failure)
        elif self._channel.has_ended or (self.pid and self.pid == reaped):
            self._handle_close()

    def _handle_ready(self, pid: int, reaped: int) -> None:
        if pid != reaped and not _is_child(pid):  # of another pid namespace: it cannot be signalled or spared
            self._mark_lost()
            return
        if self.was_swept and (pid == reaped or self._pool.is_killed(pid)):  # before it reported
            self._retry()
            return
        self.pid = pid
        self._pool.note_ready()
        if self.worker is not None:
            self.assign(self.worker)
        else:
            self._pool.host.report(messages.StandbyReady(pid))

    def _handle_failure(self, sentence: str, error_number: int) -> None:
        """Handle the reason, from it or from the fork server, why it cannot run."""
        self.drop()
        host, worker = self._pool.host, self.worker
        if worker is not None and self.has_spec:
            host.report_spawn_failure(worker, sentence, error_number)
        elif worker is not None:
            host.report_unstarted(worker, os.strerror(error_number) if error_number else sentence, error_number)

    def _handle_close(self) -> None:
        """Handle that its end is closed: it runs, or it has ended."""
        if self.worker is not None and self.has_spec:
            self.drop()
            self._pool.host.report_running(self.worker)
        elif self.pid:
            self.drop()
        elif self.was_swept:
            self._retry()
        else:
            self._mark_lost()

    def _retry(self) -> None:
        """Return its worker after a sweep of another round has killed it."""
        self.drop()
        if self.worker is not None:
            self._pool.retry(self.worker)

    def _mark_lost(self) -> None:
        self.is_lost = True
        self.deadline = min(self.deadline, time.monotonic() + LOST_LIMIT_S)
        self._pool.host.unwatch(self._channel.fileno())

    def drop(self) -> None:
        """Close its connection: without a spec it ends by itself. A worker that was not sent is left to the caller."""
        self._pool.forks.remove(self)
        if self.has_spec:
            self._mark_sent()
        if not self.is_lost:
            self._pool.host.unwatch(self._channel.fileno())
        self._channel.close()


def format_os_error(error: OSError) -> str:
    return error.strerror or str(error)


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
