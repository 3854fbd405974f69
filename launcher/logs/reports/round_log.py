"""The agent's log of a job's rounds: when one begins, why it ends, and what the node waits for meanwhile.

On one machine little is logged: the user sees the job run. Where nodes come and go, every agent logs the same of
every round, so that any one log has the job's history.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from launcher.config.options.table import ROWS
from launcher.model.console import log
from launcher.model.errors import describe
from launcher.model.node import format_workers
from launcher.placement.adapter.description import NodeAssignment
from rendezvous.events import Log, StartRound
from rendezvous.reasons import Reason
from rendezvous.settings import Settings

STABLE_S = 0.5  # a reason to wait is logged once it has not changed for this long
SILENCE_MAX_S = 2.0  # by then something is logged in any case, also by a node without the leader's knowledge


class RoundLog:
    """`is_standalone`: the job has one machine only. `settings`: how long the agreement waits for what."""

    def __init__(self, *, is_standalone: bool, settings: Settings) -> None:
        self._is_standalone = is_standalone
        self._settings = settings
        self._status: Log | None = None  # the agreement's last one, until it is logged
        self._is_awaited = True  # the next round, and nobody has said what for
        self._noted_at: float | None = None  # when `advance` first saw that status
        self._waiting_since: float | None = None  # or since something was logged
        self._runs = False  # a round, here
        self._is_leaving = False
        self._growth: Log | None = None  # of the running round, until it is logged
        self._growth_at = math.inf

    @property
    def wake_at(self) -> float:
        """When to call `advance` again."""
        return min(self._find_waiting_wake(), self._growth_at)

    def _find_waiting_wake(self) -> float:
        if self._runs or self._waiting_since is None:
            return math.inf
        if self._status is not None and self._noted_at is not None:
            return min(self._noted_at + STABLE_S, self._waiting_since + SILENCE_MAX_S)
        has_no_deadline = self._is_standalone or self._is_leaving or not self._is_awaited
        return math.inf if has_no_deadline else self._waiting_since + SILENCE_MAX_S

    def note(self, entry: Log, now: float) -> None:
        """Log an event of the agreement at once, and its state when nothing runs here for long.

        That a running round could grow is said, too. On one machine few events matter.
        """
        if entry.is_remark:
            if entry.reason.kind == "same-failure" or not self._is_standalone:
                log(self._describe(entry, now))
        elif entry.setting in ("grow", "grow_delay_s"):
            self._growth, self._growth_at = entry, now + STABLE_S  # more nodes may be about to join
        else:
            is_told = entry.reason.kind == "sealed"  # by the line of the round that is about to start
            self._status, self._noted_at = None if is_told else entry, None
            self._growth, self._growth_at = None, math.inf

    def _describe(self, entry: Log, now: float) -> str:
        """Return the sentence, with how long that may take, and by which option."""
        setting, settings, left_s = entry.setting, self._settings, math.ceil(max(0.0, min(entry.until - now, 1e9)))
        match setting:
            case "spare" if settings.grow == "delay":
                delay = f"{settings.grow_delay_s:g} s after the last node has joined"
                end = f"; if a larger world is possible, it starts {delay} ({_find_flag('grow')})"
            case "spare":
                end = f" ({_find_flag('grow')} {settings.grow})"
            case "grow":
                end = f"; the job then restarts with that size ({_find_flag(setting)} {settings.grow})"
            case "grow_delay_s":
                end = f"; the job restarts with that size in {left_s} s ({_find_flag(setting)})"
            case "on_finished":
                flag, kept = _find_flag(setting), f"for {settings.keep_finished_s:g} s after its end"
                end = f"; {kept} nothing is run ({flag} {settings.on_finished}); set {flag} rerun to start again"
            case "outage_limit_s":
                end = f", for up to {left_s} s"
            case "backoff_first_s":
                end = f" for {left_s} s"
            case "rejoin_timeout_s" if any(other.kind == "giving-up" for other in entry.reason.also):  # it says when
                end = f" ({_find_flag(setting)})"
            case _ if setting and entry.until < math.inf:
                flag = _find_flag(setting)
                end = f"; up to {left_s} s more" + (f" ({flag})" if flag else "")
            case _:
                end = ""
        return describe(entry.reason) + end

    def advance(self, now: float) -> bool:
        """Log what this node waits for, if that lasts, and that the round could grow.

        Return whether to ask now what this node waits for: only the leader knows.
        """
        is_unexplained = not self._runs and self._log_waiting(now)
        if self._growth is not None and now >= self._growth_at:
            log(self._describe(self._growth, now))
            self._growth, self._growth_at = None, math.inf
        return is_unexplained

    def _log_waiting(self, now: float) -> bool:
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        self._noted_at = now if self._noted_at is None else self._noted_at
        if now < self._find_waiting_wake():
            return False
        is_unexplained = self._status is None
        if self._status is not None:
            log(self._describe(self._status, now))
        self._status, self._is_awaited, self._waiting_since = None, False, now
        return is_unexplained

    def set_leaving(self) -> None:
        """Note that this node is leaving, and waits for no round any more."""
        self._is_leaving = True

    def begin_round(self) -> None:
        """Note that a round begins here, so that nothing is awaited."""
        self._status, self._is_awaited, self._waiting_since, self._runs = None, True, None, True
        self._end_running()

    def end_round(self) -> None:
        """Note that nothing runs here any more."""
        self._runs = False

    def _end_running(self) -> None:
        self._growth, self._growth_at = None, math.inf

    def log_start(self, start: StartRound, assignment: NodeAssignment) -> None:
        """Log that the workers of a round are about to be started."""
        self.begin_round()
        used = f"{start.restart_count} of {self._settings.max_restarts} restarts used"
        if self._is_standalone:
            if start.round > 1:
                log(f"round {start.round} starts with {format_workers(len(assignment.ranks))}, {used}")
            return
        budget = f"; {used}" if self._settings.max_restarts and start.round > 1 else ""
        log(f"round {start.round}: {describe(assignment.summary)}{budget}; {_format_ranks(assignment.ranks)} here")

    def log_end(self, round: int, reason: Reason) -> None:
        """Log that the workers of a round are about to be stopped, on all nodes."""
        self._end_running()
        if not self._is_standalone:
            log(f"round {round} ends: {describe(reason)}")


def _find_flag(setting: str) -> str:
    """Return the option that sets a field of Settings; "" if none does."""
    name = "grow" if setting == "grow_delay_s" else setting
    return next((option.flag for option in ROWS if option.field_name == name), "")


def format_pids(numbers: Sequence[int]) -> str:
    """Format process ids."""
    return ("pid " if len(numbers) == 1 else "pids ") + ", ".join(map(str, numbers))


def _format_ranks(ranks: tuple[int, ...]) -> str:
    """Format ranks in device order, so that a node's are rarely more than one range."""
    if len(ranks) > 1 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} " + ", ".join(map(str, ranks))
