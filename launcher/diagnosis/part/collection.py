"""What the leader makes of the evidence of all nodes: pure, so it can be tested with a thousand ranks.

Every node sends what it has seen of its own ranks. When all ranks are there, or the limit is over, the leader concludes
once. Ranks that are missing by then are told as unknown: their agent may be lost, or busy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import field
from msgspec.structs import replace

from launcher.diagnosis.answer import Conclusion, Gap, HangAnswer, make_answer
from launcher.diagnosis.evidence import RankEvidence
from launcher.diagnosis.part.messages import Evidence
from launcher.diagnosis.stack_groups import render_stacks
from launcher.diagnosis.stragglers import describe_straggler, find_stragglers
from launcher.diagnosis.verdict import diagnose
from launcher.views.questions.messages import Purpose, is_sendable
from launcher.views.questions.survey import Survey
from launcher.worker.grid import WorkerMesh

PAGE_RANKS = 16
"""Ranks in one message: some two kilobytes each, with room for what JSON within JSON adds."""
WORLD_MAX = 1 << 20
STACKS_MAX = 30_000
"""Characters of all stacks in an answer; the folders have the rest."""
GAPS_MAX = 32
"""Reasons in an answer that would be too long for a note with all of them."""
NO_MESH = WorkerMesh(axes=("dp",), shape=(1,), rank=0, group_names=("dp",))
_NO_ROUND = "no round is running, so there are no workers to examine"
_NO_ANSWER = "no agent with workers has answered: the job may be between two rounds"
_SEE_LEADER = "check what the leader waits for, in its output or with meshctl status"


class Collection(Survey, kw_only=True, eq=False):
    """A look at all workers of a round, and who is told of it. It is complete with all ranks."""

    finishes: list[Callable[[Conclusion | None, str], object]] = field(default_factory=list)
    """Of those that have asked: each takes the conclusion, or None and a sentence."""
    tells: dict[Purpose, None] = field(default_factory=dict)
    """For what all of the round are told, who have not asked."""
    _idle: set[str] = field(default_factory=set)
    """Members on which no round runs."""
    _round: int = 0
    _mesh: WorkerMesh = NO_MESH
    _ranks: dict[int, RankEvidence] = field(default_factory=dict)
    _nodes: dict[int, str] = field(default_factory=dict)
    _folders: dict[str, str] = field(default_factory=dict)
    _remarks: dict[str, str] = field(default_factory=dict)

    def add(self, member_id: str, answer: object) -> None:
        """Add what a node has seen. The first one says which round it is; what does not belong to it is left out."""
        if not isinstance(answer, Evidence):
            return
        if answer.round == 0:
            self._idle.add(member_id)
            return
        if not self._round and _is_sound(answer):
            self._round, self._mesh = answer.round, answer.mesh
        if answer.round != self._round:
            return
        for one in answer.ranks:
            if 0 <= one.rank < self._mesh.world_size:
                self._ranks[one.rank], self._nodes[one.rank] = one, answer.node
        if answer.folder:
            self._folders[answer.node] = answer.folder
        self._remarks.update((remark, answer.node) for remark in answer.remarks)

    @property
    def is_complete(self) -> bool:
        return self._is_idle or (self._round > 0 and len(self._ranks) == self._mesh.world_size)

    @property
    def _is_idle(self) -> bool:
        """Whether no agent runs a round."""
        return self.members is not None and self.members.keys() <= self._idle

    def conclude(self) -> Conclusion:
        """Name the ranks that the others wait for."""
        if not self._round:
            sentence = _NO_ROUND if self._is_idle else _NO_ANSWER
            answer = HangAnswer(kind="unclear", sentences=(sentence,), hint=_SEE_LEADER)
            return Conclusion(round=0, answer=answer, is_news=False)
        ranks = [self._ranks[rank] for rank in sorted(self._ranks)]
        late = tuple(describe_straggler(one, ranks, self._mesh) for one in find_stragglers(ranks, self._nodes))
        folders = tuple(f"{node}:{folder}" for node, folder in self._folders.items())
        diagnosis = diagnose(ranks, self._mesh)
        answer = make_answer(diagnosis, ranks, self._mesh)
        answer = replace(answer, gaps=(*self._list_gaps(), *answer.gaps), stragglers=late, folders=folders)
        stacks = render_stacks(ranks, self._mesh)
        if len(stacks) > STACKS_MAX:
            stacks = f"{stacks[:STACKS_MAX].rpartition(chr(10))[0]}\n... the rest is in the folders\n"
        conclusion = Conclusion(
            round=self._round,
            answer=answer,
            stacks=stacks,
            is_news=any(self._ranks[rank].state != "ended" for rank in answer.culprits if rank in self._ranks),
            to_end=self._choose_to_end(answer),
            is_sure=diagnosis.is_sure,
        )
        return _shorten_conclusion(conclusion)

    def _choose_to_end(self, answer: HangAnswer) -> tuple[int, ...]:
        """Return the ranks whose end makes all restart: those that the others wait for, or else the first that lives.

        A rank that has ended cannot be ended: one that has left with exit code 0 is why the others hang.
        """
        live = [rank for rank in sorted(self._ranks) if self._ranks[rank].state not in ("ended", "unknown")]
        is_sure = answer.kind not in ("unknown", "unclear")
        return tuple(rank for rank in answer.culprits if rank in live and is_sure) or tuple(live[:1])

    def _list_gaps(self) -> Iterator[Gap]:
        missing = tuple(rank for rank in range(self._mesh.world_size) if rank not in self._ranks)
        if missing:
            yield Gap(ranks=missing, reason="their agent has not answered in time")
        for remark, node in self._remarks.items():
            ranks = tuple(rank for rank, its in self._nodes.items() if its == node)
            yield Gap(ranks=ranks or missing, reason=f"{node}: {remark}")


def _is_sound(evidence: Evidence) -> bool:
    """Whether its mesh can be one: it comes from another agent."""
    axes, shape = evidence.mesh.axes, evidence.mesh.shape
    return len(axes) == len(shape) > 0 and min(shape) > 0 and evidence.mesh.world_size <= WORLD_MAX


def _shorten_conclusion(conclusion: Conclusion) -> Conclusion:
    """Shorten what no note can hold: each of many ranks may have a reason of its own for what is not known of it."""
    found = conclusion
    for gap_count in (GAPS_MAX, 0):
        if is_sendable(found):
            break
        answer = replace(found.answer, places=(), gaps=found.answer.gaps[:gap_count])
        found = replace(conclusion, stacks="", answer=answer)
    return found


def split_pages(evidence: Evidence) -> Iterator[Evidence]:
    """Split what a node has seen into messages that fit into a note."""
    for first in range(0, max(1, len(evidence.ranks)), PAGE_RANKS):
        yield replace(evidence, ranks=evidence.ranks[first : first + PAGE_RANKS])
