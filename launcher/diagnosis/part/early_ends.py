"""The part that says which ranks have ended while others of the job still run: those may wait for them in a collective.

    any node   -- RankStates -->     the leader    some time after the last worker that has ended well here
    the leader -- AskRankStates -->  the round
    each node  -- RankStates -->     the leader
    the leader -- EarlyEnd -->       all           each node logs it

Workers that end one after another are no news, so nothing is said until none has ended for that time, on any node: the
node on which one has ended since begins anew when its own time is over. Notes may be lost; who hears of no conclusion
asks again. Until the time is over after a first worker has ended, all of this costs nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct, field

from launcher.model.errors import describe
from launcher.model.ranges import format_ranges
from launcher.parts.part import Effect, Fact, RunningRound
from launcher.supervisor.messages import Exited
from rendezvous import codec
from rendezvous.events import TO_ALL, TO_LEADER, TO_ROUND, NoteReceived, SendNote
from rendezvous.reasons import Reason

COLLECT_S = 1.0
"""For the answers of the round's nodes."""
NODES_MAX = 4
"""Names of nodes in a sentence; more are counted."""


class _Note(Struct, frozen=True, kw_only=True, tag_field="note"):
    round: int


class AskRankStates(_Note, frozen=True, kw_only=True, tag="ask-rank-states"):
    """Each node of the round answers with its RankStates."""


class RankStates(_Note, frozen=True, kw_only=True, tag="rank-states"):
    """What one node knows of its ranks."""

    node: str
    ended: tuple[int, ...]
    """Those that have ended with 0."""
    live: tuple[int, ...]
    quiet_s: float
    """Since the last of them has ended; 1e9 if none has, since JSON has no infinity."""
    is_answer: bool = False


class EarlyEnd(_Note, frozen=True, kw_only=True, tag="early-end"):
    """What the leader concludes."""

    reason: Reason


Note = AskRankStates | RankStates | EarlyEnd


class EarlyEnds(Struct, eq=False):
    """Watches one round after another."""

    node: str
    running: RunningRound
    limit_s: float
    """Without a further worker that ends well."""
    log: Callable[[str], object]

    _ended_at: float = -math.inf  # the last success of `_round`
    _round: int = 0
    _due_at: float = math.inf
    _notes: deque[NoteReceived] = field(default_factory=deque)
    _collected: dict[str, RankStates] = field(default_factory=dict)  # by member id, while this node leads
    _collect_until: float = math.inf

    @property
    def wake_at(self) -> float:
        return -math.inf if self._notes else min(self._due_at, self._collect_until)

    def take(self, fact: Fact) -> None:
        match fact.what:
            case Exited(round, exit_code=0):
                self._round, self._ended_at, self._due_at = round, fact.at, fact.at + self.limit_s
            case NoteReceived():
                self._notes.append(fact.what)

    def advance(self, now: float) -> Iterable[Effect]:
        while self._notes:
            yield from self._take_note(self._notes.popleft(), now)
        if now >= self._due_at:
            self._due_at = now + self.limit_s  # in case a note is lost
            states, share = self._read_states(now), self.running.share
            has_other_nodes = share is not None and share.group_world_size > 1
            if states is None or self._round != states.round or not (states.live or has_other_nodes):
                self._due_at = math.inf
            else:
                yield _send(TO_LEADER, states)
        if now >= self._collect_until:
            self._collect_until = math.inf
            yield from self._conclude()

    def close(self) -> None:
        """Nothing is open."""

    def _read_states(self, now: float, *, is_answer: bool = False) -> RankStates | None:
        running, share = self.running, self.running.share
        if share is None or not running.has_workers or running.is_stopping:
            return None
        codes = {rank: running.exit_codes.get(local_rank) for local_rank, rank in enumerate(share.ranks)}
        return RankStates(
            round=running.number,
            node=self.node,
            ended=tuple(sorted(rank for rank, code in codes.items() if code == 0)),
            live=tuple(sorted(rank for rank, code in codes.items() if code is None)),
            quiet_s=now - self._ended_at if self._round == running.number else 1e9,
            is_answer=is_answer,
        )

    def _take_note(self, received: NoteReceived, now: float) -> Iterable[Effect]:
        try:
            note: Note = codec.find_decoder(Note).decode(received.text)  # type: ignore[arg-type]
        except msgspec.MsgspecError:  # of another part
            return
        match note:
            case AskRankStates(round=round):
                states = self._read_states(now, is_answer=True)
                if states is not None and states.round == round:
                    yield _send(TO_LEADER, states)
            case RankStates(is_answer=True):
                self._collected[received.member_id] = note
            case RankStates(round=round) if self._collect_until == math.inf:  # only the leader gets one
                self._collected, self._collect_until = {}, now + COLLECT_S
                yield _send(TO_ROUND, AskRankStates(round=round))
            case EarlyEnd(round=round, reason=reason):
                if not self._is_over(round):
                    self.log(describe(reason))
                if round == self._round and now - self._ended_at >= self.limit_s:
                    self._due_at = math.inf

    def _is_over(self, round: int) -> bool:
        """Whether this node knows that the round has ended; of one that runs on other nodes alone it does not."""
        running = self.running
        is_live = running.has_workers and not running.is_stopping
        return round < running.number or (round == running.number and not is_live)

    def _conclude(self) -> Iterable[Effect]:
        """Say it, if no worker has ended in the meantime: else the node on which it has asks later."""
        newest = max((states.round for states in self._collected.values()), default=0)
        found = [states for states in self._collected.values() if states.round == newest]
        quiet_s = min((states.quiet_s for states in found if states.ended), default=0.0)
        live = [(states.node, states.live) for states in found if states.live]
        if quiet_s >= self.limit_s and live:
            ended = [(states.node, states.ended) for states in found if states.ended]
            is_alone = len(found) == 1
            reason = Reason.of(
                "diagnosis/early-end",
                ended=_format_ranks(ended, is_alone=is_alone),
                for_s=round(quiet_s),
                live=_format_ranks(live, is_alone=is_alone),
                is_one=sum(len(ranks) for _, ranks in live) == 1,
            )
            yield _send(TO_ALL, EarlyEnd(round=newest, reason=reason))


def _send(to: str, note: _Note) -> SendNote:
    return SendNote(to, msgspec.json.encode(note).decode())


def _format_ranks(found: Sequence[tuple[str, Sequence[int]]], *, is_alone: bool) -> str:
    """Format ranks by node: "ranks 0-3 on a, b"; "ranks 0-3" where the round has one node."""
    ranks = sorted(rank for _, each in found for rank in each)
    text = f"rank{'s' * (len(ranks) > 1)} {format_ranges(ranks)}"
    nodes = sorted(node for node, _ in found)
    if is_alone:
        return text
    return f"{text} on {', '.join(nodes) if len(nodes) <= NODES_MAX else f'{len(nodes)} nodes'}"
