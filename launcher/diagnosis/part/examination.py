"""This agent's part whenever the job's workers are looked at: what starts it, what this node sees, who is told.

Four things ask: a person (`meshctl why`, SIGQUIT), a worker's failure, and workers of all nodes that make no progress.
The leader has every agent of the round look at its workers (`local_examiner`), concludes when all have answered or the
limit is over (`collection`), and tells who asked, or all.

Nothing here waits. `advance` does what is due, and returns what has become known on this node.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from launcher.diagnosis.answer import Conclusion
from launcher.diagnosis.evidence import RankEvidence
from launcher.diagnosis.part.collection import NO_MESH, Collection, split_pages
from launcher.diagnosis.part.local_examiner import MARGIN_S, LocalExaminer
from launcher.diagnosis.part.messages import Evidence, NodeFailure, NodeSilence
from launcher.diagnosis.request import ExamineReport, ExamineRequest, LocalRound
from launcher.views.questions.messages import Diagnose, Examine, Purpose
from launcher.views.questions.reporter import Reporter
from launcher.views.questions.survey import Surveys
from rendezvous.events import TO_LEADER, TO_ROUND

LIMIT_S = 5.0
FAILURE_LIMIT_S = 0.25
"""A look at the survivors of a failure. The restart waits for it, for `lifecycle.VICTIM_WINDOW_S` at most."""
FAILURE_FOLDERS_MAX = 8
"""Folders of failures, of all that a job may have on a node: a job that restarts often may hang at last."""
NOTES_LIMIT_S = 1.0  # for the way of notes, and the start of the examiners, on top
ANSWER_LIMIT_S = LIMIT_S + 2 * NOTES_LIMIT_S + MARGIN_S  # until who asks the leader gives up
REPEAT_S = 30.0  # silence is reported again, in case another agent leads by now


# docs/internals/decisions/0048-an-examiner-process-and-one-who-concludes.md
class Examination(Struct, eq=False):
    """What this agent does when workers are looked at, and the leader's part in it."""

    examiner: LocalExaminer
    surveys: Surveys
    """Ask all nodes."""
    reporter: Reporter
    read_round: Callable[[], LocalRound | None]
    """Returns what runs here."""
    node: str
    find_folder: Callable[[int], str]
    """Returns a new incident folder of a round, or ""."""
    keeps_failures: bool = True
    """Whether a failure leaves one, too; not where nobody has named a directory for logs."""

    _collection: Collection | None = None
    _news: deque[Conclusion] = field(default_factory=deque)
    _silence: NodeSilence | None = None
    _repeat_at: float = math.inf
    _silent: dict[str, NodeSilence] = field(default_factory=dict)  # by member, as the leader has heard
    _failure_folders: int = 0

    @property
    def wake_at(self) -> float:
        return min(self.examiner.wake_at, self._repeat_at)

    # --- what this node reports ---

    def report_failure(self) -> None:
        """Have the leader look at the survivors of a failure."""
        self.surveys.send(TO_LEADER, NodeFailure())

    def report_silence(self, now: float, *, is_silent: bool) -> None:
        """Tell the leader that no worker here makes progress, or that one does again."""
        if (round := self.read_round()) is None:
            return
        ranks = tuple(target.rank for target in round.targets) if is_silent else ()
        self._silence = NodeSilence(round=round.number, ranks=ranks, world_size=round.mesh.world_size)
        self._repeat_at = now + REPEAT_S if is_silent else math.inf
        self.surveys.send(TO_LEADER, self._silence)

    def count_calls(self, take: Callable[[dict[int, object]], object], now: float) -> None:
        """Have the workers' recorders read; `take` gets how far the groups of each rank have come."""

        def finish(report: ExamineReport) -> None:
            ranks = [one for one in report.ranks if one.groups is not None]
            take({one.rank: tuple((group.name, group.last) for group in one.groups or ()) for one in ranks})

        if (round := self.read_round()) is not None:
            request = ExamineRequest(targets=round.targets, limit_s=LIMIT_S, levels="recorder")
            self.examiner.begin(finish, request, lambda: "", now)

    # --- what happens ---

    def take_note(self, member_id: str, note: NodeFailure | NodeSilence | Conclusion, now: float) -> None:
        """Handle a note of an agent."""
        match note:
            case NodeFailure():
                self._look("failure", now).tells["failure"] = None
            case NodeSilence() as silence:
                self._take_silence(member_id, silence, now)
            case Conclusion(purpose="failure" | "silence" as purpose) as conclusion:
                if purpose == "silence":
                    self._repeat_at = math.inf
                self._news.append(conclusion)

    def advance(self, now: float) -> list[Conclusion]:
        """Do what is due; return what was concluded without a question of this node."""
        self.examiner.advance(now)
        if self._silence is not None and now >= self._repeat_at:
            self._repeat_at = math.inf
            round = self.read_round()
            if round is not None and round.number == self._silence.round:
                self._repeat_at = now + REPEAT_S
                self.surveys.send(TO_LEADER, self._silence)
        return [self._news.popleft() for _ in range(len(self._news))]

    def close(self) -> None:
        self.examiner.close()

    # --- the leader's part ---

    def diagnose(self, request: Diagnose, finish: Callable[[Conclusion | None, str], object], now: float) -> None:
        """Answer a person: `finish` takes what is concluded, or None and a sentence."""
        self._look("question", now).finishes.append(finish)

    def _look(self, purpose: Purpose, now: float) -> Collection:
        """Begin a collection, or let the one that is under way serve this purpose, too."""
        if self._collection is None:
            limit_s = FAILURE_LIMIT_S if purpose == "failure" else LIMIT_S
            until = now + limit_s + MARGIN_S + NOTES_LIMIT_S
            request = Examine(purpose=purpose, limit_s=limit_s)
            collection = Collection(request=request, answer_kind=Evidence, until=until, takes=[self._conclude])
            self.surveys.begin(collection)
            self._collection = collection  # not before it has begun: nothing would end it
        return self._collection

    def _take_silence(self, member_id: str, silence: NodeSilence, now: float) -> None:
        """Look at all workers once no node makes progress any more.

        A node that stays silent does not say so again: what it has said counts until it makes progress.
        """
        self._silent = {one: its for one, its in self._silent.items() if its.round >= silence.round}
        self._silent[member_id] = silence
        silent = {rank for one in self._silent.values() if one.round == silence.round for rank in one.ranks}
        if silence.ranks and len(silent) >= silence.world_size:
            self._look("silence", now).tells["silence"] = None

    def _conclude(self, collection: Collection) -> None:
        """Conclude in a thread, since thousands of ranks take a while."""
        self._collection = None
        self.reporter.submit("diagnosis", collection.conclude, partial(self._tell, collection))

    def _tell(self, collection: Collection, conclusion: Conclusion | None, problem: str) -> None:
        for finish in collection.finishes:
            finish(conclusion, problem)
        if conclusion is not None:
            for purpose in collection.tells:
                self.surveys.send(TO_ROUND, replace(conclusion, purpose=purpose))

    # --- every agent's part ---

    def examine(self, order: Examine, finish: Callable[[Evidence, str], object], now: float) -> None:
        """Look at the workers of this node; `finish` takes the evidence, page by page."""
        if (round := self.read_round()) is None:
            finish(self._make_idle(), "")
            return
        find_folder = partial(self._choose_folder, round.number, order.purpose)
        look = partial(self._finish_evidence, finish, order.purpose, round.number)
        self.examiner.begin(look, ExamineRequest(targets=round.targets, limit_s=order.limit_s), find_folder, now)

    def _choose_folder(self, round: int, purpose: Purpose) -> str:
        """Return the incident folder of a look, "" for none."""
        if purpose == "failure":
            if not self.keeps_failures or self._failure_folders >= FAILURE_FOLDERS_MAX:
                return ""
            self._failure_folders += 1
        return self.find_folder(round)

    def _finish_evidence(
        self, finish: Callable[[Evidence, str], object], purpose: Purpose, number: int, report: ExamineReport
    ) -> None:
        round = self.read_round()
        if round is None or round.number != number:  # it has ended meanwhile
            finish(self._make_idle(), "")
            return
        evidence = Evidence(
            node=self.node,
            round=number,
            mesh=round.mesh,
            ranks=tuple(_add_end(one, round.exit_codes, purpose) for one in report.ranks),
            folder=report.folder,
            remarks=report.remarks,
        )
        for page in split_pages(evidence):
            finish(page, "")

    def _make_idle(self) -> Evidence:
        return Evidence(node=self.node, round=0, mesh=NO_MESH, ranks=())


def _add_end(one: RankEvidence, exit_codes: Mapping[int, int], purpose: Purpose) -> RankEvidence:
    """Add how a rank has ended. One that has failed, where victims are looked at, has given up or is about to."""
    if one.state != "ended":
        return one
    exit_code = exit_codes.get(one.rank)
    return replace(one, exit_code=exit_code, has_given_up=purpose == "failure" and exit_code != 0)
