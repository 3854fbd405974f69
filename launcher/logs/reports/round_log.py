"""What the agent says of a job's rounds: when one begins, why it ends, and what is waited for meanwhile.

On one machine little is said: who started the job sees it run. Where nodes come and go, every agent says the same of
every round, so that any one log tells the job's story.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from launcher.config.config import Config
from launcher.model.console import log
from launcher.placement.adapter.description import NodeAssignment
from rendezvous.events import StartRound

STABLE_S = 0.5  # what is waited for is told once it has not changed for so long
SILENCE_MAX_S = 2.0  # by then something is told all the same, also by a node that does not know what the leader knows


class RoundLog:
    """`is_alone`: one machine is all there is."""

    def __init__(self, *, is_standalone: bool, max_restarts: int) -> None:
        self._is_standalone = is_standalone
        self._max_restarts = max_restarts
        self._sentence = ""  # what the agreement said last, until it is told
        self._awaited = "first"  # which round is waited for, "" once it was said what that depends on
        self._noted_at: float | None = None  # when `waits` first saw that sentence
        self._waiting_since: float | None = None  # or since something was told
        self._is_leaving = False

    @property
    def wake_at(self) -> float:
        """When to call `log_waiting` again."""
        if self._waiting_since is None:
            return math.inf
        if self._sentence and self._noted_at is not None:
            return min(self._noted_at + STABLE_S, self._waiting_since + SILENCE_MAX_S)
        is_told = self._is_standalone or self._is_leaving or not self._awaited
        return math.inf if is_told else self._waiting_since + SILENCE_MAX_S

    def note(self, sentence: str, *, is_remark: bool = False) -> None:
        """The agreement said this: what happened is told at once, how things stand when nothing runs here for long."""
        if is_remark and not self._is_standalone:
            log(sentence)
        elif not is_remark:
            self._sentence, self._noted_at = sentence, None

    def set_leaving(self) -> None:
        """This node was told to go, and waits for no round any more."""
        self._is_leaving = True

    def log_waiting(self, now: float) -> None:
        """Nothing runs here: whoever looks at it is told what is waited for, if it lasts."""
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
        """A round begins here, so nothing is waited for."""
        self._sentence, self._awaited, self._waiting_since = "", "next", None

    def log_start(self, start: StartRound, assignment: NodeAssignment) -> None:
        """The workers of a round are about to be started."""
        self.end_waiting()
        used = f"{start.restart_count} of {self._max_restarts} restarts used"
        if self._is_standalone:
            if start.round > 1:
                log(f"round {start.round} starts with {format_workers(len(assignment.ranks))}, {used}")
            return
        budget = f"; {used}" if self._max_restarts and start.round > 1 else ""
        log(f"round {start.round}: {assignment.summary}{budget}; {_format_ranks(assignment.ranks)} here")

    def log_end(self, round: int, reason: str) -> None:
        """The workers of a round are about to be stopped, on all nodes."""
        if not self._is_standalone:
            log(f"round {round} ends: {reason}")


def make_recorder(
    config: Config, host: str, run_id: str, find_error_file: Callable[[int, int, int], str]
) -> Callable[[object], None]:
    """What makes events for other programs of the agent's messages; nothing unless asked for. Raises UsageError."""
    if config.event_log_handler == "null":
        return lambda message: None
    from launcher.logs.reports import events

    if config.event_log_handler in events.NULL_HANDLERS:
        return lambda message: None
    write = events.make_writer(config.event_log_handler, config.origins["event_log_handler"])
    return events.EventRecorder(config, host, run_id, find_error_file, write).take


def format_workers(count: int) -> str:
    """A number of workers, as words."""
    return "1 worker" if count == 1 else f"{count} workers"


def format_pids(numbers: Sequence[int]) -> str:
    """Processes, as words."""
    return ("pid " if len(numbers) == 1 else "pids ") + ", ".join(map(str, numbers))


def _format_ranks(ranks: tuple[int, ...]) -> str:
    """In device order, so a node's ranks are seldom more than one stretch."""
    if len(ranks) > 1 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} " + ", ".join(map(str, ranks))
