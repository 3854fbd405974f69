"""What the agent says of a job's rounds: when one begins, why it ends, and what is waited for meanwhile.

On one machine little is said: who started the job sees it run. Where nodes come and go, every agent says the same of
every round, so that any one log tells the job's story.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from launcher.config import Config
from launcher.console import tell
from launcher.roster.description import Share
from rendezvous.events import StartRound

STANDING_S = 0.5  # what is waited for is told once it has not changed for so long
SILENCE_MAX_S = 2.0  # by then something is told all the same, also by a node that does not know what the leader knows


class Narrator:
    """`is_alone`: one machine is all there is."""

    def __init__(self, *, is_alone: bool, max_restarts: int) -> None:
        self._is_alone = is_alone
        self._max_restarts = max_restarts
        self._sentence = ""  # what the agreement said last, until it is told
        self._awaited = "first"  # which round is waited for, "" once it was said what that depends on
        self._noted_at: float | None = None  # when `waits` first saw that sentence
        self._waits_since: float | None = None  # or since something was told
        self._is_leaving = False

    @property
    def wake_at(self) -> float:
        """When to call `waits` again."""
        if self._waits_since is None:
            return math.inf
        if self._sentence and self._noted_at is not None:
            return min(self._noted_at + STANDING_S, self._waits_since + SILENCE_MAX_S)
        is_told = self._is_alone or self._is_leaving or not self._awaited
        return math.inf if is_told else self._waits_since + SILENCE_MAX_S

    def note(self, sentence: str, *, is_remark: bool = False) -> None:
        """The agreement said this: what happened is told at once, how things stand when nothing runs here for long."""
        if is_remark and not self._is_alone:
            tell(sentence)
        elif not is_remark:
            self._sentence, self._noted_at = sentence, None

    def leaves(self) -> None:
        """This node was told to go, and waits for no round any more."""
        self._is_leaving = True

    def waits(self, now: float) -> None:
        """Nothing runs here: whoever looks at it is told what is waited for, if it lasts."""
        self._waits_since = now if self._waits_since is None else self._waits_since
        self._noted_at = now if self._noted_at is None else self._noted_at
        if now < self.wake_at:
            return
        if self._sentence:
            tell(self._sentence)
        else:
            tell(f"waiting for the {self._awaited} round: the agent that leads says what it waits for")
        self._sentence, self._awaited, self._waits_since = "", "", now

    def runs(self) -> None:
        """A round begins here, so nothing is waited for."""
        self._sentence, self._awaited, self._waits_since = "", "next", None

    def begins(self, start: StartRound, share: Share) -> None:
        """The workers of a round are about to be started."""
        self.runs()
        used = f"{start.restart_count} of {self._max_restarts} restarts used"
        if self._is_alone:
            if start.round > 1:
                tell(f"round {start.round} starts with {workers(len(share.ranks))}, {used}")
            return
        budget = f"; {used}" if self._max_restarts and start.round > 1 else ""
        tell(f"round {start.round}: {share.summary}{budget}; {_ranks(share.ranks)} here")

    def ends(self, round: int, reason: str) -> None:
        """The workers of a round are about to be stopped, on all nodes."""
        if not self._is_alone:
            tell(f"round {round} ends: {reason}")


def recorder(
    config: Config, host: str, run_id: str, error_file: Callable[[int, int, int], str]
) -> Callable[[object], None]:
    """What makes events for other programs of the agent's messages; nothing unless asked for. Raises UsageError."""
    if config.event_log_handler == "null":
        return lambda message: None
    from launcher.reporting import events

    if config.event_log_handler in events.SILENT:
        return lambda message: None
    write = events.write_by(config.event_log_handler, config.origins["event_log_handler"])
    return events.Events(config, host, run_id, error_file, write).take


def workers(count: int) -> str:
    """A number of workers, as words."""
    return "1 worker" if count == 1 else f"{count} workers"


def pids(numbers: Sequence[int]) -> str:
    """Processes, as words."""
    return ("pid " if len(numbers) == 1 else "pids ") + ", ".join(map(str, numbers))


def _ranks(ranks: tuple[int, ...]) -> str:
    """In device order, so a node's ranks are seldom more than one stretch."""
    if len(ranks) > 1 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} " + ", ".join(map(str, ranks))
