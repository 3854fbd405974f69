"""The agent's log of a job's rounds: when one begins, why it ends, and what the node waits for meanwhile.

On one machine little is logged: the user sees the job run. Where nodes come and go, every agent logs the same of
every round, so that any one log has the job's history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from launcher.config.config import Config
from launcher.model.console import log
from launcher.placement.adapter.description import NodeAssignment
from rendezvous.events import StartRound

STABLE_S = 0.5  # a reason to wait is logged once it has not changed for this long
SILENCE_MAX_S = 2.0  # by then something is logged in any case, also by a node without the leader's knowledge


class RoundLog:
    """`is_standalone`: the job has one machine only."""

    def __init__(self, *, is_standalone: bool, max_restarts: int) -> None:
        self._is_standalone = is_standalone
        self._max_restarts = max_restarts
        self._sentence = ""  # the agreement's last sentence, until it is logged
        self._awaited = "first"  # the awaited round, "" once its condition was logged
        self._noted_at: float | None = None  # when `log_waiting` first saw that sentence
        self._waiting_since: float | None = None  # or since something was logged
        self._is_leaving = False

    @property
    def wake_at(self) -> float:
        """When to call `log_waiting` again."""
        if self._waiting_since is None:
            return math.inf
        if self._sentence and self._noted_at is not None:
            return min(self._noted_at + STABLE_S, self._waiting_since + SILENCE_MAX_S)
        has_no_deadline = self._is_standalone or self._is_leaving or not self._awaited
        return math.inf if has_no_deadline else self._waiting_since + SILENCE_MAX_S

    def note(self, sentence: str, *, is_remark: bool = False, is_for_all: bool = False) -> None:
        """Log an event of the agreement at once, and its state when nothing runs here for long.

        `is_for_all`: an event that matters on one machine too.
        """
        if is_remark and (is_for_all or not self._is_standalone):
            log(sentence)
        elif not is_remark:
            self._sentence, self._noted_at = sentence, None

    def set_leaving(self) -> None:
        """Note that this node is leaving, and waits for no round any more."""
        self._is_leaving = True

    def log_waiting(self, now: float) -> None:
        """Log what this node waits for, if that lasts. Call it while nothing runs here."""
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        self._noted_at = now if self._noted_at is None else self._noted_at
        if now < self.wake_at:
            return
        if self._sentence:
            log(self._sentence)
        else:
            log(f"waiting for the {self._awaited} round: the agent that leads says what it waits for")
        self._sentence, self._awaited, self._waiting_since = "", "", now

    def end_waiting(self) -> None:
        """Note that a round begins here, so that nothing is awaited."""
        self._sentence, self._awaited, self._waiting_since = "", "next", None

    def log_start(self, start: StartRound, assignment: NodeAssignment) -> None:
        """Log that the workers of a round are about to be started."""
        self.end_waiting()
        used = f"{start.restart_count} of {self._max_restarts} restarts used"
        if self._is_standalone:
            if start.round > 1:
                log(f"round {start.round} starts with {format_workers(len(assignment.ranks))}, {used}")
            return
        budget = f"; {used}" if self._max_restarts and start.round > 1 else ""
        log(f"round {start.round}: {assignment.summary}{budget}; {_format_ranks(assignment.ranks)} here")

    def log_end(self, round: int, reason: str) -> None:
        """Log that the workers of a round are about to be stopped, on all nodes."""
        if not self._is_standalone:
            log(f"round {round} ends: {reason}")


def make_recorder(
    config: Config, host: str, run_id: str, find_error_file: Callable[[int, int, int], str]
) -> Callable[[object], None]:
    """The function that turns the agent's messages into events; a no-op without the option. Raises UsageError."""
    if config.event_log_handler == "null":
        return lambda message: None
    from launcher.logs.reports import events

    if config.event_log_handler in events.NULL_HANDLERS:
        return lambda message: None
    write = events.make_writer(config.event_log_handler, config.origins["event_log_handler"])
    return events.EventRecorder(config, host, run_id, find_error_file, write).take


def format_workers(count: int) -> str:
    """Format a number of workers."""
    return "1 worker" if count == 1 else f"{count} workers"


def format_pids(numbers: Sequence[int]) -> str:
    """Format process ids."""
    return ("pid " if len(numbers) == 1 else "pids ") + ", ".join(map(str, numbers))


def _format_ranks(ranks: tuple[int, ...]) -> str:
    """Format ranks in device order, so that a node's are rarely more than one range."""
    if len(ranks) > 1 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} " + ", ".join(map(str, ranks))
