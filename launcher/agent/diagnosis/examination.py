"""Asks, examines, concludes, tells: this agent's part whenever the job's workers are looked at.

Four things ask: a person (`meshctl why`, SIGQUIT), a worker's failure, and workers of all nodes that make no progress.
The leader has every agent of the round look at its workers (`local_examiner`), concludes when all have answered or the
limit is over (`collection`), and tells who asked, or all. An agent that does not lead, and the leader of a job of one
machine, do the same: its notes come back to it.

Nothing here waits. `advance` does what is due, and returns what has become known on this node.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from launcher.agent.diagnosis.collection import NO_MESH, Collection, split_pages
from launcher.agent.diagnosis.local_examiner import MARGIN_S, LocalExaminer
from launcher.agent.diagnosis.local_round import LocalRound
from launcher.agent.diagnosis.messages import (
    Ask,
    Conclusion,
    Evidence,
    Examine,
    Message,
    NodeSilence,
    Purpose,
    encode_message,
)
from launcher.diagnose.evidence import RankEvidence
from launcher.diagnose.request import ExamineReport
from launcher.model.concurrency import start_thread
from rendezvous.events import TO_ALL, TO_LEADER, TO_ROUND, Event, SendNote

LIMIT_S = 5.0
FAILURE_LIMIT_S = 0.25
"""A look at the survivors of a failure. The restart waits for it, for `lifecycle.VICTIM_WINDOW_S` at most."""
FAILURE_FOLDERS_MAX = 8
"""Folders of failures, of all that a job may have on a node: a job that restarts often may hang at last."""
NOTES_LIMIT_S = 1.0  # for the way of notes, and the start of the examiners, on top
REPEAT_S = 30.0  # silence is reported again, in case another agent leads by now
_COUNTERS = "counters"


class _Order(NamedTuple):
    """An order of the leader to look at the workers, and the round that it met here."""

    member_id: str
    order: Examine
    round: int


class _Asker(NamedTuple):
    """Whom to tell what is concluded, and under which question of its own; "" for all, who have not asked."""

    to: str
    id: str
    purpose: Purpose


# docs/internals/decisions/0048-an-examiner-process-and-one-who-concludes.md
class Examination:
    """`submit` hands an event to the agreement. `find_folder` returns a new incident folder of a round, or "".
    `keeps_failures`: whether a failure leaves one, too; not where nobody has named a directory for logs.
    `count_members`: of the job, as far as this agent knows; 0 if it does not lead.

    `wake` may be called from any thread.
    """

    def __init__(
        self,
        examiner: LocalExaminer,
        submit: Callable[[Event], None],
        wake: Callable[[], None],
        node: str,
        find_folder: Callable[[int], str],
        count_members: Callable[[], int],
        *,
        keeps_failures: bool = True,
    ) -> None:
        self._examiner = examiner
        self._submit = submit
        self._wake = wake
        self._node = node
        self._find_folder = find_folder
        self._count_members = count_members
        self._keeps_failures = keeps_failures
        self._round: LocalRound | None = None
        self._asked: dict[str, float] = {}  # own questions, and when they are given up
        self._collection: Collection | None = None
        self._askers: list[_Asker] = []
        self._concluded: deque[tuple[Conclusion, list[_Asker]]] = deque()
        self._news: deque[Conclusion] = deque()
        self._counters: dict[int, tuple[object, ...]] | None = None
        self._silence: NodeSilence | None = None
        self._repeat_at = math.inf
        self._silent: dict[str, NodeSilence] = {}  # by member, as the leader has heard
        self._failure_folders = 0

    # --- this node's round ---

    def begin(self, local_round: LocalRound) -> None:
        """Examine this round from now on."""
        self._round = local_round
        self._silence, self._silent, self._repeat_at, self._counters = None, {}, math.inf, None

    def update(self, local_round: LocalRound) -> None:
        """The same round, of which more runs by now."""
        self._round = local_round

    def end(self) -> None:
        """The round is over: nothing is examined."""
        self._round = None

    @property
    def wake_at(self) -> float:
        until = self._collection.until if self._collection is not None else math.inf
        return min(self._examiner.wake_at, until, self._repeat_at, *self._asked.values())

    # --- questions of this node ---

    def ask(self, purpose: Purpose, now: float) -> str:
        """Ask the leader; `advance` returns the answer, under this id, or one that says why there is none."""
        id = os.urandom(8).hex()
        if purpose == "question":
            self._asked[id] = now + LIMIT_S + 2 * NOTES_LIMIT_S + MARGIN_S
        self._send(TO_LEADER, Ask(id=id, purpose=purpose))
        return id

    def report_silence(self, sentence: str, now: float) -> None:
        """Tell the leader that no worker here makes progress; "" that one does again."""
        if self._round is None:
            return
        ranks = tuple(target.rank for target in self._round.targets) if sentence else ()
        size = self._round.mesh.world_size
        self._silence = NodeSilence(id="", round=self._round.number, ranks=ranks, world_size=size, sentence=sentence)
        self._repeat_at = now + REPEAT_S if sentence else math.inf
        self._send(TO_LEADER, self._silence)

    def count_calls(self, now: float) -> None:
        """Have the workers' recorders read; `take_counters` returns how far each rank's groups have come."""
        if self._round is not None:
            self._examiner.begin(_COUNTERS, self._round.targets, "recorder", lambda: "", LIMIT_S, now)

    def take_counters(self) -> dict[int, tuple[object, ...]] | None:
        """Return what `count_calls` has found, once."""
        found, self._counters = self._counters, None
        return found

    # --- what happens ---

    def take_note(self, member_id: str, note: Message, now: float) -> None:
        """Handle a note of an agent."""
        match note:
            case Ask(id=id, purpose=purpose):
                self._take_question(member_id, id, purpose, now)
            case NodeSilence() as silence:
                self._take_silence(member_id, silence, now)
            case Examine() as order:
                self._examine(member_id, order, now)
            case Evidence() as evidence:
                if self._collection is not None and evidence.id == self._collection.id:
                    self._collection.add(member_id, evidence)
            case Conclusion() as conclusion:
                if conclusion.purpose == "silence":
                    self._repeat_at = math.inf
                if self._asked.pop(conclusion.id, None) is not None or conclusion.purpose != "question":
                    self._news.append(conclusion)

    def advance(self, now: float) -> list[Conclusion]:
        """Do what is due; return what was concluded for this node. An answer of kind "" says that there is none."""
        for key, report in self._examiner.take(now):
            if key == _COUNTERS:
                self._counters = {
                    one.rank: tuple((group.name, group.last) for group in one.groups)
                    for one in report.ranks
                    if one.groups is not None
                }
            elif isinstance(key, _Order):
                self._send_evidence(key, report)
        if self._collection is not None and (self._collection.is_complete or now >= self._collection.until):
            self._conclude(self._collection, self._askers)
            self._collection, self._askers = None, []
        while self._concluded:
            self._send_answer(*self._concluded.popleft())
        if self._silence is not None and now >= self._repeat_at:
            self._repeat_at = now + REPEAT_S
            self._send(TO_LEADER, self._silence)
        return [self._news.popleft() for _ in range(len(self._news))]

    def list_given_up(self, now: float) -> list[str]:
        """Return the own questions that nobody has answered in time."""
        found = [id for id, until in self._asked.items() if now >= until]
        for id in found:
            del self._asked[id]
        return found

    def close(self) -> None:
        self._examiner.close()

    # --- the leader's part ---

    def _take_question(self, member_id: str, id: str, purpose: Purpose, now: float) -> None:
        """Begin a collection, or let the one that is under way answer this question, too."""
        if self._collection is None:
            limit_s = FAILURE_LIMIT_S if purpose == "failure" else LIMIT_S
            until = now + limit_s + MARGIN_S + NOTES_LIMIT_S
            self._collection = Collection(os.urandom(8).hex(), purpose, until, self._count_members())
            self._send(TO_ALL, Examine(id=self._collection.id, purpose=purpose, limit_s=limit_s))
        is_question = purpose == "question"
        self._askers.append(_Asker(member_id if is_question else TO_ROUND, id if is_question else "", purpose))

    def _take_silence(self, member_id: str, silence: NodeSilence, now: float) -> None:
        """Look at all workers once no node makes progress any more.

        A node that stays silent does not say so again: what it has said counts until it makes progress.
        """
        self._silent[member_id] = silence
        silent = {rank for one in self._silent.values() if one.round == silence.round for rank in one.ranks}
        if silence.ranks and len(silent) >= silence.world_size:
            self._take_question(member_id, silence.id, "silence", now)

    def _conclude(self, collection: Collection, askers: list[_Asker]) -> None:
        """Conclude in a thread, since thousands of ranks take a while; here, where no thread is to be had."""

        def work() -> None:
            self._concluded.append((collection.conclude(), askers))
            self._wake()

        if start_thread(work, "diagnosis") is None:
            work()

    def _send_answer(self, conclusion: Conclusion, askers: list[_Asker]) -> None:
        for one in dict.fromkeys(askers):
            self._send(one.to, replace(conclusion, id=one.id, purpose=one.purpose))

    # --- every agent's part ---

    def _examine(self, member_id: str, order: Examine, now: float) -> None:
        if self._round is None:
            self._send_idle(member_id, order)
            return
        key = _Order(member_id, order, self._round.number)
        find_folder = partial(self._choose_folder, self._round.number, order.purpose)
        self._examiner.begin(key, self._round.targets, "all", find_folder, order.limit_s, now)

    def _choose_folder(self, round: int, purpose: Purpose) -> str:
        """Return the incident folder of a look, "" for none."""
        if purpose == "failure":
            if not self._keeps_failures or self._failure_folders >= FAILURE_FOLDERS_MAX:
                return ""
            self._failure_folders += 1
        return self._find_folder(round)

    def _send_evidence(self, by: _Order, report: ExamineReport) -> None:
        if self._round is None or self._round.number != by.round:  # it has ended meanwhile
            self._send_idle(by.member_id, by.order)
            return
        ranks = tuple(self._add_end(one, by.order.purpose) for one in report.ranks)
        evidence = Evidence(
            id=by.order.id,
            node=self._node,
            round=self._round.number,
            mesh=self._round.mesh,
            ranks=ranks,
            folder=report.folder,
            remarks=report.remarks,
        )
        for page in split_pages(evidence):
            self._send(by.member_id, page)

    def _send_idle(self, to: str, order: Examine) -> None:
        self._send(to, Evidence(id=order.id, node=self._node, round=0, mesh=NO_MESH, ranks=()))

    def _add_end(self, one: RankEvidence, purpose: Purpose) -> RankEvidence:
        """Add how a rank has ended. One that has failed, where victims are looked at, has given up or is about to."""
        assert self._round is not None
        if one.state != "ended":
            return one
        exit_code = self._round.exit_codes.get(one.rank)
        return replace(one, exit_code=exit_code, has_given_up=purpose == "failure" and exit_code != 0)

    def _send(self, to: str, message: Message) -> None:
        self._submit(SendNote(to, encode_message(message)))
