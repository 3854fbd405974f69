"""The wait of a node until it is fit: the user's --health-check, pauses, and the signals that end both at once.

The supervisor runs the check like a worker, so that nothing of it outlives its time: in a session of its own, swept
with all its children when it has ended or its time is over, and killed if the agent is. The check's output is read
here and shown when it has failed, so stdout stays the workers'.

The pauses are those between rounds without progress, 1 s and then twice as long each time up to 60 s: a device that
returns soon is used soon, and a check that occupies the whole machine does not run all the time.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct, field

from launcher.agent.membership import NodeContext, read_clock
from launcher.config.scrub import list_unset_variables
from launcher.model.console import PROGRAM, log, write_stderr
from launcher.model.errors import EarlyExitError, TemporaryError, UnfitError, describe
from launcher.parts.part import Effect, Fact
from launcher.supervisor.handle import SWEEP_LIMIT_S
from launcher.supervisor.messages import (
    POLL_LIMIT_S,
    Exited,
    Report,
    RoundSwept,
    SpawnFailed,
    SupervisorLost,
    WorkerSpec,
    describe_exit,
)
from rendezvous.events import LeaveRequest, Start
from rendezvous.settings import DEFAULTS

TAIL_LINES = 10
LINE_CHARACTERS = 300
_TAIL_BYTES = 8192
_READ_BYTES = 1 << 16

_Examined = TypeVar("_Examined")
_Awaited = TypeVar("_Awaited", bound=Exited | SpawnFailed | RoundSwept)


# docs/internals/decisions/0024-health-check-before-joining.md
class HealthGate(Struct, eq=False):
    """Holds this node back from its job until it is fit."""

    node: NodeContext
    _check_number: int = 1  # rounds count from 1 upwards, checks from 0 downwards
    _needs_sweep: bool = False  # the end of the last check has not been confirmed
    _output: tuple[int, int] = (-1, -1)  # the pipe of all checks: read and write end
    _tail: bytearray = field(default_factory=bytearray)  # of the last check's output

    def wait_until_fit(self, examine: Callable[[], _Examined]) -> _Examined:
        """Return the result of `examine`, once it raises no UnfitError and the check passes.

        Raises TemporaryError when that takes too long, EarlyExitError when this node has to leave, UsageError if the
        fork server cannot start.
        """
        limit_s, poll = self.node.config.rendezvous.start_timeout_s, self.node.parts.poll
        deadline, failure_count = read_clock() + limit_s, 0
        last_kind: tuple[str | int, ...] = ()  # of what was said last
        self.node.parts.tell(Fact(Start(), 0, read_clock(), time.time()))  # no worker waits for what is made now
        self._output = read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        poll.register(read_end, select.POLLIN)
        try:
            while True:
                try:
                    passed = self._run_check()  # first: it has a limit, and a driver may block `examine`
                    found = examine()
                    break
                except UnfitError as error:
                    failure_count += 1
                    pause_s = compute_pause_s(failure_count, deadline - read_clock())
                    if pause_s is None:
                        hint = error.hint or "set a longer --start-timeout to retry for longer"
                        sentence = f"this node was not fit to join within {limit_s:g} s: {error}"
                        raise TemporaryError(sentence, hint) from None
                    if error.kind != last_kind:
                        _log_fault(error, limit_s, is_first=not last_kind)
                        last_kind = error.kind
                    self._wait_for((), read_clock() + pause_s)
        finally:
            poll.unregister(read_end)
            os.close(read_end)
            os.close(write_end)
        if passed:
            log(passed)
        if last_kind:
            log("this node is fit now")
        return found

    # --- the check ---

    def _run_check(self) -> str:
        """Run the check, if there is one; return a sentence for the start. Raises UnfitError if it fails."""
        options, supervisor = self.node.config.health, self.node.supervisor
        if options.health_check is None:
            return ""
        origin = options.origins["health_check"]
        self._wait_for_sweep(origin)
        self._check_number -= 1
        self._needs_sweep = True
        self._tail.clear()
        # The write end is kept: a check that closes its output has not ended, and must not make us spin.
        stream = os.dup(self._output[1])
        spec = WorkerSpec(
            local_rank=0,
            argv=("/bin/sh", "-c", f"exec </dev/null; {options.health_check}"),
            env=self.node.marker,
            unset=list_unset_variables(os.environ),
            stdout=stream,
            stderr=stream,
        )
        start = read_clock()
        supervisor.spawn(self._check_number, [spec])
        end = self._wait_for((Exited, SpawnFailed), start + options.health_timeout_s)
        supervisor.sweep(self._check_number)
        self._wait_for_sweep(origin)
        match end:
            case Exited(exit_code=0):
                return f"{origin} passed after {read_clock() - start:.2g} s"
            case Exited(exit_code=number):
                how = describe_exit(number)
            case SpawnFailed(error_number=number):
                how = f"cannot be started: {os.strerror(number)}"
            case None:
                how, number = f"had not ended after {options.health_timeout_s:g} s and was killed", 0
        kind = ("check", type(end).__name__, number)
        raise UnfitError(f"{origin} {how}{_format_last_lines(self._tail)}", kind=kind)

    def _wait_for_sweep(self, origin: str) -> None:
        """Wait until nothing is left of the last check. Raises UnfitError for processes that do not end."""
        if self._needs_sweep and self._wait_for((RoundSwept,), read_clock() + SWEEP_LIMIT_S) is None:
            sentence = f"{origin} cannot be killed: waiting for {self.node.supervisor.describe_remaining()}"
            raise UnfitError(sentence, kind=("check", "stuck"))
        self._needs_sweep = False

    # --- other events ---

    def _wait_for(self, kinds: tuple[type[_Awaited], ...], until: float) -> _Awaited | None:
        """Wait for such a report of the check; None if none has come by then."""
        while read_clock() < until:
            reports = self._wait_for_reports(until)
            self._read_output()
            for report in reports:
                if isinstance(report, kinds) and report.round == self._check_number:
                    return report
        return None

    def _wait_for_reports(self, until: float) -> list[Report]:
        """Wait for an event, or until this time; return the supervisor's reports."""
        node = self.node
        wake_at = min(until, node.termination.wake_at, node.parts.wake_at)
        ready = node.parts.poll.poll(math.ceil(min(max(0.0, wake_at - read_clock()), POLL_LIMIT_S) * 1000))
        node.parts.tell_ready([descriptor for descriptor, _ in ready], Fact(None, 0, read_clock(), time.time()))
        for signum in node.wakeup.take():
            if signum == signal.SIGCHLD:
                node.supervisor.reap()
            elif leave := node.termination.take_signal(signum):
                raise EarlyExitError(f"{describe(leave.reason)} before this node had joined", leave.exit_code)
        if leave := node.termination.check(read_clock()):
            _leave(leave)
        node.parts.run(_leave)
        reports = node.supervisor.read_reports()
        for report in reports:
            if isinstance(report, SupervisorLost):
                node.supervisor.kill_orphans(SWEEP_LIMIT_S)
                raise EarlyExitError(report.sentence, report.exit_code)
            if node.fork_server is not None and (refusal := node.fork_server.take(report, read_clock())):
                raise refusal
        return reports

    def _read_output(self) -> None:
        """Read the output of the check; its end is kept."""
        with suppress(BlockingIOError):
            self._tail += os.read(self._output[0], _READ_BYTES)
            del self._tail[:-_TAIL_BYTES]


def _log_fault(error: UnfitError, limit_s: float, *, is_first: bool) -> None:
    hint = f"\nhint: {error.hint}" if error.hint else ""
    again = ""
    if is_first:
        again = f"\n{PROGRAM}: retrying for {limit_s:g} s (--start-timeout), with pauses of 1 s to 60 s"
    write_stderr(f"{PROGRAM}: this node does not join yet: {error}{hint}{again}")


def _leave(effect: Effect) -> None:
    """Raise EarlyExitError if a part, or the preemption file, has this node leave."""
    if isinstance(effect, LeaveRequest):
        raise EarlyExitError(f"{describe(effect.reason)}, and this node had not joined yet", effect.exit_code)


def _format_last_lines(tail: bytearray) -> str:
    lines = [line.rstrip() for line in tail.decode(errors="backslashreplace").replace("\r", "\n").split("\n")]
    lines = [line for line in lines if line][-TAIL_LINES:]
    if not lines:
        return ", and printed nothing"
    shown = (line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]}..." for line in lines)
    return "; its last lines:" + "".join(f"\n  | {line}" for line in shown)


def compute_pause_s(failure_count: int, left_s: float) -> float | None:
    """Return the pause in seconds after so many failed examinations; None for no more. The last one is at the limit."""
    return min(DEFAULTS.compute_backoff_s(failure_count + 1), left_s) if left_s > 0 else None
