"""A kernel, a keeper and an agent for the supervisor's loop, on a clock that only the test moves.

`play` reads a transcript: a line that begins with ">" is what happens, each other one what the supervisor does then.
It plays the former and returns all of them, so a transcript that is right comes back as it was. After ">":

    pool                         first of all: the supervisor has a pool of warm workers
    pool waits SECONDS           until then it has nothing to do
    pool takes SECONDS           the next time it has
    is forked                    it begins as a process of its own
    spawn 1/0 1/1*               the agent orders workers, ROUND/LOCAL RANK; * may be forked by the fork server
    signal ROUND NUMBER [LOCAL RANK ...], sweep ROUND, watchdog SECONDS, watchdog none, examine, begin
    reads nothing, reads         the agent's end of the socket is full, or has room again
    closes                       the agent closes it
    keeper ends
    runs PID, cannot run PID     what was forked has run its program, or cannot
    quietly runs PID, quietly cannot run PID     the same, but the supervisor does not notice yet
    ends PID [EXIT CODE]
    starts PID PID               a process starts another, which the supervisor adopts when the first ends
    hangs PID, awakes PID        SIGKILL does not end this process, as in a driver; then it does
    no forks, forks, no timers   what the kernel refuses
    wait SECONDS                 each thing that is done meanwhile comes with the time since then
    timeout                      how long the supervisor would wait now
"""

from __future__ import annotations

import errno
import math
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, cast

import pytest

from launcher.supervisor.channel import Channel
from launcher.supervisor.child import ProcessHost, Worker, close_streams
from launcher.supervisor.loop import SupervisorLoop
from launcher.supervisor.messages import WorkerSpec, encode_spec
from launcher.supervisor.warm import WarmPool

KEEPER_PID, SUPERVISOR_PID, SERVER_PID = 10, 11, 90
CHANNEL, FIRST_STREAM = 7, 700  # descriptors
TURNS_MAX = 50  # of the loop, until it rests


class SimulatedKernel(ProcessHost):
    """What a ProcessHost asks the kernel, answered here; what it does with the answers is its own."""

    def __init__(self, lines: list[str], channel: _Channel, adopted: Sequence[int]) -> None:
        self.lines = lines
        self._channel = channel
        self._wants_to_write = False
        self.workers = {}
        self.now = 0.0
        self.refused: set[str] = set()
        self.parent_pid = KEEPER_PID
        self.timeout_ms: int | None = None
        self.is_at_rest = False
        self.ready: list[int] = []
        self.results: dict[int, list[Any]] = {}  # of forked processes, until they are read
        self.hanging: set[int] = set()
        self._own = list(adopted)  # living children
        self._others: defaultdict[int, list[int]] = defaultdict(list)  # children of others, by parent
        self._killed: set[int] = set()
        self._ended: list[tuple[int, int]] = []  # not reaped yet
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._next_pid = 101

    # What the loop asks

    def begin(self) -> None:
        self.pid = SUPERVISOR_PID

    def read_clock(self) -> float:  # type: ignore[override]  # it is static there
        return self.now

    def pause(self, duration_s: float) -> None:  # type: ignore[override]
        self.now += duration_s

    def read_parent_pid(self) -> int:  # type: ignore[override]
        return self.parent_pid

    def make_timer(self) -> Any:  # type: ignore[override]
        if "timers" in self.refused:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.lines.append("makes a timer")
        return _Timer(self.lines)

    def watch(self, descriptor: int, callback: Callable[[], object], *, until_writable: bool = False) -> None:
        self._callbacks[descriptor] = callback
        if descriptor == CHANNEL:
            self._wants_to_write = until_writable

    def unwatch(self, descriptor: int) -> None:
        del self._callbacks[descriptor]

    def note_descriptors(self, *descriptors: int) -> None:
        pass

    def wait(self, timeout_ms: int | None) -> None:
        channel = self._channel
        if channel.inbox or channel.has_ended or (self._wants_to_write and channel.has_room):
            self.ready.append(CHANNEL)
        ready = [descriptor for descriptor in self.ready if descriptor in self._callbacks]
        self.ready.clear()
        self.timeout_ms = None if timeout_ms is None or timeout_ms < 0 else timeout_ms  # as poll() has it
        self.is_at_rest = not ready and not self._ended and timeout_ms != 0
        for descriptor in ready:
            self._callbacks[descriptor]()

    def start(
        self,
        spec: WorkerSpec,
        name: str,
        on_started: Callable[[list[Any]], None],
        inherit: tuple[int, ...] = (),
        run: Callable[[Sequence[str]], object] | None = None,
    ) -> tuple[int, Callable[[], None]]:
        if "forks" in self.refused:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        pid, self._next_pid = self._next_pid, self._next_pid + 1
        self._own.append(pid)
        self.lines.append(f"forks {pid}, {name.replace('worker of local rank', 'worker')}")

        def poll_result() -> None:
            assert pid in self._callbacks, "it has been read before"
            if pid in self.results:
                self.unwatch(pid)
                on_started(self.results.pop(pid))

        self.watch(pid, poll_result)
        return pid, poll_result

    def send_signal(self, worker: Worker, signum: int) -> None:
        self.lines.append(f"sends signal {signum} to {worker.pid}")

    def reap(self) -> tuple[int, int]:
        if self._ended:
            return self._ended.pop(0)
        if not self._own:
            raise ChildProcessError
        return 0, 0

    def kill_children(self, spare: Collection[int], accept_stuck: bool) -> list[int]:  # type: ignore[override]
        found = [pid for pid in self._own if pid not in spare]
        new = [str(pid) for pid in found if pid not in self._killed]
        if new:
            self.lines.append(f"kills {' '.join(new)}")
        self._killed.update(found)
        for pid in found:
            if pid not in self.hanging:
                self.end(pid, -9)
        return [pid for pid in found if pid not in self.hanging or not accept_stuck]

    # What happens

    def start_child(self, parent: int, child: int) -> None:
        self._others[parent].append(child)

    def end(self, pid: int, exit_code: int) -> None:
        self._own.remove(pid)
        self._own += self._others.pop(pid, [])
        self._ended.append((pid, exit_code))


class _Timer:
    """The kernel's timer."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0.0

    def arm(self, at: float) -> None:
        self._set(at)

    def disarm(self) -> None:
        self._set(0.0)

    def _set(self, at: float) -> None:
        if at != self._at:
            self._lines.append(f"sets the timer to {at:g}" if at else "stops the timer")
        self._at = at


class _Channel:
    """The socket to an agent that reads, or does not."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._unsent: list[str] = []
        self.inbox: list[tuple[Sequence[Any], list[int]]] = []
        self.has_room = True
        self.has_ended = False

    def fileno(self) -> int:
        return CHANNEL

    def send(self, message: Sequence[Any]) -> bool:
        kind, *fields = message
        fields = fields[:-1] if kind == "Exited" else fields  # less the time
        self._unsent.append(" ".join(["says", kind, *map(str, fields)]))
        return self.flush()

    def flush(self) -> bool:
        if self.has_room:
            self._lines += self._unsent
            self._unsent.clear()
        return not self._unsent

    def receive(self) -> Iterator[tuple[Sequence[Any], list[int]]]:
        while self.inbox:
            yield self.inbox.pop(0)


class _Pool:
    """A pool of warm workers that says what it is told. It has a fork server, which is spared."""

    def __init__(self, kernel: SimulatedKernel) -> None:
        self._kernel = kernel
        self._has_rounds = False
        self.due_at = math.inf
        self.takes_s = 0.0

    @property
    def wait_s(self) -> float:
        return self.due_at - self._kernel.now

    def spawn(self, worker: Worker) -> None:
        self._say(f"spawn {worker.round}/{worker.local_rank}")
        close_streams(worker.spec)

    def begin(self) -> None:
        self._say("begin")

    def advance(self, *, has_rounds: bool) -> None:
        if self._kernel.now >= self.due_at:
            self.due_at = math.inf
            self._say("it is time")
        self._kernel.now, self.takes_s = self._kernel.now + self.takes_s, 0.0
        if has_rounds != self._has_rounds:
            self._has_rounds = has_rounds
            self._say("there are rounds" if has_rounds else "there is no round, or a sweep")

    def signal(self, round: int, signum: int, only: Collection[int] | None) -> None:
        self._say(f"signal {signum} to round {round}" + ("" if only is None else f", only {only}"))

    def sweep(self, rounds: Collection[int]) -> None:
        self._say(f"sweep {sorted(rounds)}")

    def stop(self, *, is_reported: bool) -> None:
        self._say("stop, reported" if is_reported else "stop")

    def resume(self) -> None:
        self._say("resume")

    def handle_exit(self, pid: int, exit_code: int) -> None:
        self._say(f"{pid} ended with {exit_code}")

    def list_spared(self) -> set[int]:
        return {SERVER_PID}

    def _say(self, what: str) -> None:
        self._kernel.lines.append(f"to the pool: {what}")


def play(transcript: str) -> str:
    """Play what happens in a transcript; return that with all that the supervisor does."""
    happening = [line for line in transcript.splitlines() if line.startswith(">")]
    player = _Player(has_pool="> pool" in happening)
    for line in happening:
        player.do(line)
    player.require_closed_streams()
    return "\n".join(player.lines)


class _Player:
    """One supervisor, and what happens to it."""

    def __init__(self, has_pool: bool) -> None:
        self.lines: list[str] = []
        self._channel = _Channel(self.lines)
        self._kernel = SimulatedKernel(self.lines, self._channel, [SERVER_PID] if has_pool else [])
        self._streams: list[int] = []
        self._pool = _Pool(self._kernel) if has_pool else None
        pool = cast("WarmPool | None", self._pool)
        self._loop = SupervisorLoop(cast("Channel", self._channel), self._kernel, KEEPER_PID, pool)
        self._is_over = False

    def do(self, line: str) -> None:
        """Let it happen, and give the loop turns until it rests."""
        self.lines.append(line)
        verb, *words = line.removeprefix(">").split()
        if verb == "timeout":
            limit_ms = self._kernel.timeout_ms
            self.lines.append("waits" if limit_ms is None else f"waits {limit_ms / 1000:g} s")
        elif verb == "wait":
            self._wait(float(words[0]))
        else:
            self._happen(verb, words)
            self._settle()

    def require_closed_streams(self) -> None:
        """Every stream that came with an order has been closed, as soon as a process has it or none will."""
        for stream in self._streams:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.close(stream)

    def _settle(self) -> None:
        for _ in range(TURNS_MAX):
            if self._is_over:
                return
            if not self._loop.advance():
                since, self._is_over = self._kernel.now, True
                self._loop.run()
                took_s = self._kernel.now - since
                self.lines.append(f"ends after {took_s:.1f} s" if took_s else "ends")
            elif self._kernel.is_at_rest:
                return
        raise AssertionError("it never comes to rest: " + " | ".join(self.lines))

    def _wait(self, duration_s: float) -> None:
        kernel = self._kernel
        since = kernel.now
        while not self._is_over and kernel.timeout_ms is not None:
            due = kernel.now + kernel.timeout_ms / 1000
            if due > since + duration_s:
                break
            kernel.now, count = due, len(self.lines)
            self._settle()
            self.lines[count:] = [f"{due - since:.1f} s: {line}" for line in self.lines[count:]]
        kernel.now = since + duration_s

    def _happen(self, verb: str, words: list[str]) -> None:
        kernel, channel = self._kernel, self._channel
        match verb, *words:
            case "spawn", *workers:
                for word in workers:
                    round, rank = word.rstrip("*").split("/")
                    self._order("spawn", int(round), spec=self._make_spec(int(rank), can_fork=word.endswith("*")))
            case ("pool",):
                pass
            case "pool", "waits", seconds if self._pool is not None:
                self._pool.due_at = kernel.now + float(seconds)
            case "pool", "takes", seconds if self._pool is not None:
                self._pool.takes_s = float(seconds)
            case "is", "forked":
                self._loop.begin()
            case ("examine",):
                self._order("examine", spec=self._make_spec(0))
            case "signal", round, signum, *ranks:
                self._order("signal", int(round), int(signum), *([[*map(int, ranks)]] if ranks else []))
            case "watchdog", until:
                self._order("watchdog", None if until == "none" else float(until))
            case (("sweep" | "begin"), *rounds):
                self._order(verb, *map(int, rounds))
            case "reads", *nothing:
                channel.has_room = not nothing
            case ("closes",):
                channel.has_ended = True
            case "keeper", "ends":
                kernel.parent_pid = 1
            case (("runs" | "cannot" | "quietly"), *_, pid):
                kernel.results[int(pid)] = ["cannot run it", 2] if "cannot" in (verb, *words) else []
                kernel.ready += [int(pid)] if verb != "quietly" else []
            case "ends", pid, *code:
                kernel.end(int(pid), int(code[0]) if code else 0)
            case "starts", parent, child:
                kernel.start_child(int(parent), int(child))
            case "hangs", pid:
                kernel.hanging.add(int(pid))
            case "awakes", pid:
                kernel.hanging.remove(int(pid))
                kernel.end(int(pid), -9)
            case "no", what:
                kernel.refused.add(what)
            case ("forks",):
                kernel.refused.remove(verb)
            case _:
                raise AssertionError(f"unknown: {verb} {words}")

    def _order(self, *order: object, spec: WorkerSpec | None = None) -> None:
        streams = [] if spec is None else [cast("int", spec.stdout)]
        self._channel.inbox.append(((*order, *([] if spec is None else [encode_spec(spec)])), streams))

    def _make_spec(self, rank: int, *, can_fork: bool = False) -> WorkerSpec:
        """A worker with one stream of its own, whose number nobody else gets."""
        stream = FIRST_STREAM + len(self._streams)
        with open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), stream)
        self._streams.append(stream)
        return WorkerSpec(rank, ["x"], {}, (), stream, None, fork_argv=["script", "x"] if can_fork else ())
