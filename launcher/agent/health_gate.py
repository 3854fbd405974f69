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
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from launcher.agent.membership import read_clock
from launcher.agent.signals import Termination, Wakeup
from launcher.config.config import HealthOptions
from launcher.config.scrub import list_unset_variables
from launcher.model.console import PROGRAM, log, write_stderr
from launcher.model.errors import EarlyExitError, TemporaryError, UnfitError, describe
from launcher.parts.host import PartHost
from launcher.parts.part import Effect, Fact
from launcher.supervisor.handle import SWEEP_LIMIT_S, Supervisor
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

if TYPE_CHECKING:
    from launcher.agent.preload import ForkServerClient

TAIL_LINES = 10
LINE_CHARACTERS = 300
_TAIL_BYTES = 8192
_READ_BYTES = 1 << 16

_Examined = TypeVar("_Examined")


# docs/internals/decisions/0024-health-check-before-joining.md
class HealthGate(Struct, eq=False):
    """Holds this node back from its job until it is fit."""

    options: HealthOptions
    limit_s: float
    """For all checks."""
    supervisor: Supervisor
    termination: Termination
    wakeup: Wakeup
    parts: PartHost
    """Those that there are before the agent."""
    variables: Mapping[str, str]
    """Added to the check's environment."""
    fork_server: ForkServerClient | None = None
    """Imports meanwhile, None without --preload."""
    _deadline: float = 0.0
    _failure_count: int = 0
    _last_kind: tuple[str | int, ...] = ()  # of what was said last
    _check_number: int = 1  # rounds count from 1 upwards, checks from 0 downwards
    _needs_sweep: bool = False  # the end of the last check has not been confirmed
    _poll: select.poll = field(default_factory=select.poll)

    def __post_init__(self) -> None:
        self._deadline = read_clock() + self.limit_s
        self._poll.register(self.wakeup, select.POLLIN)
        self._poll.register(self.supervisor, select.POLLIN)
        self.parts.tell(Fact(Start(), 0, read_clock(), time.time()))  # no worker waits for what is made now

    @property
    def _origin(self) -> str:
        """The option that names the check."""
        return self.options.origins["health_check"]

    def wait_until_fit(self, examine: Callable[[], _Examined]) -> _Examined:
        """Return the result of `examine`, once it raises no UnfitError and the check passes.

        Raises TemporaryError when that takes too long, EarlyExitError when this node has to leave, UsageError if the
        fork server cannot start.
        """
        passed = ""
        while True:
            try:
                if self.options.health_check is not None:  # first: it has a limit, and a driver may block `examine`
                    passed = self._run_check(self.options.health_check)
                found = examine()
                break
            except UnfitError as error:
                self._wait_for_retry(error)
        if passed:
            log(passed)
        if self._last_kind:
            log("this node is fit now")
        return found

    def _wait_for_retry(self, error: UnfitError) -> None:
        """Log the reason, and wait for the next examination."""
        self._failure_count += 1
        pause_s = compute_pause_s(self._failure_count, self._deadline - read_clock())
        if pause_s is None:
            hint = error.hint or "set a longer --start-timeout to retry for longer"
            raise TemporaryError(f"this node was not fit to join within {self.limit_s:g} s: {error}", hint)
        if error.kind != self._last_kind:
            hint = f"\nhint: {error.hint}" if error.hint else ""
            again = (
                ""
                if self._last_kind
                else f"\n{PROGRAM}: retrying for {self.limit_s:g} s (--start-timeout), with pauses of 1 s to 60 s"
            )
            self._last_kind = error.kind
            write_stderr(f"{PROGRAM}: this node does not join yet: {error}{hint}{again}")
        until = read_clock() + pause_s
        while read_clock() < until:
            self._wait_for_reports(until)

    # --- the check ---

    def _run_check(self, command: str) -> str:
        """Run the check; return a sentence for the start. Raises UnfitError if it fails."""
        self._wait_for_sweep()
        self._check_number -= 1
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        kept_end = os.dup(write_end)  # a check that closes its output has not ended, and must not make us spin
        spec = WorkerSpec(
            local_rank=0,
            argv=("/bin/sh", "-c", f"exec </dev/null; {command}"),
            env=self.variables,
            unset=list_unset_variables(os.environ),
            stdout=write_end,
            stderr=write_end,
        )
        start, tail = read_clock(), bytearray()
        self._needs_sweep = True
        self.supervisor.spawn(self._check_number, [spec])
        try:
            end = self._wait_for_check(read_end, tail, start + self.options.health_timeout_s)
            self.supervisor.sweep(self._check_number)
            self._wait_for_sweep()
            _read_output(read_end, tail)
        finally:
            os.close(read_end)
            os.close(kept_end)
        match end:
            case Exited(exit_code=0):
                return f"{self._origin} passed after {read_clock() - start:.2g} s"
            case Exited(exit_code=number):
                how = describe_exit(number)
            case SpawnFailed(error_number=number):
                how = f"cannot be started: {os.strerror(number)}"
            case None:
                how, number = f"had not ended after {self.options.health_timeout_s:g} s and was killed", 0
        kind = ("check", type(end).__name__, number)
        raise UnfitError(f"{self._origin} {how}{_format_last_lines(tail)}", kind=kind)

    def _wait_for_check(self, read_end: int, tail: bytearray, until: float) -> Exited | SpawnFailed | None:
        """Return how it ended; None if it has not."""
        self._poll.register(read_end, select.POLLIN)
        try:
            while read_clock() < until:
                for report in self._wait_for_reports(until):
                    if isinstance(report, Exited | SpawnFailed) and report.round == self._check_number:
                        return report
                _read_output(read_end, tail)
        finally:
            self._poll.unregister(read_end)
        return None

    def _wait_for_sweep(self) -> None:
        """Wait until nothing is left of the last check. Raises UnfitError for processes that do not end."""
        until = read_clock() + SWEEP_LIMIT_S
        while self._needs_sweep:
            if read_clock() >= until:
                sentence = f"{self._origin} cannot be killed: waiting for {self.supervisor.describe_remaining()}"
                raise UnfitError(sentence, kind=("check", "stuck"))
            self._needs_sweep = not any(
                isinstance(one, RoundSwept) and one.round == self._check_number for one in self._wait_for_reports(until)
            )

    # --- other events ---

    def _wait_for_reports(self, until: float) -> list[Report]:
        """Wait for an event, or until this time; return the supervisor's reports."""
        wake_at = min(until, self.termination.wake_at, self.parts.wake_at)
        self._poll.poll(math.ceil(min(max(0.0, wake_at - read_clock()), POLL_LIMIT_S) * 1000))
        for signum in self.wakeup.take():
            if signum == signal.SIGCHLD:
                self.supervisor.reap()
            elif leave := self.termination.take_signal(signum):
                raise EarlyExitError(f"{describe(leave.reason)} before this node had joined", leave.exit_code)
        if leave := self.termination.check(read_clock()):
            _leave(leave)
        self.parts.run(_leave)
        reports = self.supervisor.read_reports()
        for report in reports:
            if isinstance(report, SupervisorLost):
                self.supervisor.kill_orphans(SWEEP_LIMIT_S)
                raise EarlyExitError(report.sentence, report.exit_code)
            if self.fork_server is not None and (refusal := self.fork_server.take(report, read_clock())):
                raise refusal
        return reports


def _leave(effect: Effect) -> None:
    """Raise EarlyExitError if a part, or the preemption file, has this node leave."""
    if isinstance(effect, LeaveRequest):
        raise EarlyExitError(f"{describe(effect.reason)}, and this node had not joined yet", effect.exit_code)


def _read_output(read_end: int, tail: bytearray) -> None:
    """Read the output of the check; its end is kept."""
    try:
        tail += os.read(read_end, _READ_BYTES)
    except BlockingIOError:
        return
    del tail[:-_TAIL_BYTES]


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
