"""This agent's part whenever the job's workers are looked at: what starts it, what this node sees, who is told.

Four things ask: a person (`meshctl why`, SIGQUIT), a worker's failure, and workers of all nodes that make no progress.
The leader has every agent of the round look at its workers (`local_examiner`), concludes when all have answered or the
limit is over (`collection`), and tells who asked, or all.

Nothing here waits. `advance` does what is due, and returns what has become known on this node.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from launcher.agent.diagnosis.collection import NO_MESH, Collection, split_pages
from launcher.agent.diagnosis.local_examiner import MARGIN_S, LocalExaminer
from launcher.agent.inspection.messages import Evidence, Examine, NodeSilence, Note, WorkerFailed, encode_note
from launcher.agent.inspection.reporter import Reporter
from launcher.diagnose.answer import Conclusion, Purpose
from launcher.diagnose.evidence import RankEvidence
from launcher.diagnose.request import ExamineReport, Target
from launcher.worker.grid import WorkerMesh
from rendezvous.events import TO_LEADER, TO_ROUND, Event, SendNote

LIMIT_S = 5.0
FAILURE_LIMIT_S = 0.25
"""A look at the survivors of a failure. The restart waits for it, for `lifecycle.VICTIM_WINDOW_S` at most."""
FAILURE_FOLDERS_MAX = 8
"""Folders of failures, of all that a job may have on a node: a job that restarts often may hang at last."""
NOTES_LIMIT_S = 1.0  # for the way of notes, and the start of the examiners, on top
ANSWER_LIMIT_S = LIMIT_S + 2 * NOTES_LIMIT_S + MARGIN_S  # until who asks the leader gives up
REPEAT_S = 30.0  # silence is reported again, in case another agent leads by now
_COUNTERS = "counters"


class _LocalRound(Struct, eq=False):
    """The round on this node."""

    number: int
    mesh: WorkerMesh
    """Of the whole world."""
    places: Sequence[Target]
    """By local rank, without pids."""
    targets: list[Target] = []
    """The workers that run."""
    exit_codes: dict[int, int] = {}
    """By rank, of the workers that have ended."""


class _Order(NamedTuple):
    """An order of the leader to look at the workers, and the round that it met here."""

    finish: Callable[[Evidence, str], object]
    purpose: Purpose
    round: int


# docs/internals/decisions/0048-an-examiner-process-and-one-who-concludes.md
class Examination:
    """`submit` hands an event to the agreement, `begin_survey` asks all nodes. `find_folder` returns a new incident
    folder of a round, or "". `keeps_failures`: whether a failure leaves one, too; not where nobody has named a
    directory for logs.
    """

    def __init__(
        self,
        examiner: LocalExaminer,
        submit: Callable[[Event], None],
        begin_survey: Callable[[Collection], None],
        reporter: Reporter,
        node: str,
        find_folder: Callable[[int], str],
        *,
        keeps_failures: bool = True,
    ) -> None:
        self._examiner = examiner
        self._submit = submit
        self._begin_survey = begin_survey
        self._reporter = reporter
        self._node = node
        self._find_folder = find_folder
        self._keeps_failures = keeps_failures
        self._round: _LocalRound | None = None
        self._collection: Collection | None = None
        self._news: deque[Conclusion] = deque()
        self._counters: dict[int, tuple[object, ...]] | None = None
        self._silence: NodeSilence | None = None
        self._repeat_at = math.inf
        self._silent: dict[str, NodeSilence] = {}  # by member, as the leader has heard
        self._failure_folders = 0

    # --- this node's round ---

    def begin(self, number: int, mesh: WorkerMesh, places: Sequence[Target]) -> None:
        """Examine this round from now on. `places`: by local rank, without pids, which `add_worker` brings."""
        self._round = _LocalRound(number, mesh, places)
        self._silence, self._silent, self._repeat_at, self._counters = None, {}, math.inf, None

    def add_worker(self, local_rank: int, pid: int) -> None:
        """Note that a worker runs its program."""
        if self._round is not None and local_rank < len(self._round.places):
            self._round.targets.append(replace(self._round.places[local_rank], pid=pid))

    def end_worker(self, local_rank: int, exit_code: int) -> None:
        """Note how a worker has ended."""
        if self._round is not None and local_rank < len(self._round.places):
            self._round.exit_codes[self._round.places[local_rank].rank] = exit_code

    def end(self) -> None:
        """The round is over: nothing is examined."""
        self._round = None

    @property
    def wake_at(self) -> float:
        return min(self._examiner.wake_at, self._repeat_at)

    # --- what this node reports ---

    def report_failure(self) -> None:
        """Have the leader look at the survivors of a failure."""
        self._send(TO_LEADER, WorkerFailed())

    def report_silence(self, now: float, *, is_silent: bool) -> None:
        """Tell the leader that no worker here makes progress, or that one does again."""
        if self._round is None:
            return
        ranks = tuple(target.rank for target in self._round.targets) if is_silent else ()
        size = self._round.mesh.world_size
        self._silence = NodeSilence(round=self._round.number, ranks=ranks, world_size=size)
        self._repeat_at = now + REPEAT_S if is_silent else math.inf
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

    def take_note(self, member_id: str, note: WorkerFailed | NodeSilence | Conclusion, now: float) -> None:
        """Handle a note of an agent."""
        match note:
            case WorkerFailed():
                self._look("failure", now).tells["failure"] = None
            case NodeSilence() as silence:
                self._take_silence(member_id, silence, now)
            case Conclusion() as conclusion:
                if conclusion.purpose == "silence":
                    self._repeat_at = math.inf
                self._news.append(conclusion)

    def advance(self, now: float) -> list[Conclusion]:
        """Do what is due; return what was concluded without a question of this node."""
        for key, report in self._examiner.take(now):
            if key == _COUNTERS:
                self._counters = {
                    one.rank: tuple((group.name, group.last) for group in one.groups)
                    for one in report.ranks
                    if one.groups is not None
                }
            elif isinstance(key, _Order):
                self._send_evidence(key, report)
        if self._silence is not None and now >= self._repeat_at:
            self._repeat_at = now + REPEAT_S
            self._send(TO_LEADER, self._silence)
        return [self._news.popleft() for _ in range(len(self._news))]

    def close(self) -> None:
        self._examiner.close()

    # --- the leader's part ---

    def diagnose(self, finish: Callable[[Conclusion | None, str], object], now: float) -> None:
        """Answer a person: `finish` takes what is concluded, or None and a sentence."""
        self._look("question", now).finishes.append(finish)

    def _look(self, purpose: Purpose, now: float) -> Collection:
        """Begin a collection, or let the one that is under way serve this purpose, too."""
        if self._collection is None:
            limit_s = FAILURE_LIMIT_S if purpose == "failure" else LIMIT_S
            until = now + limit_s + MARGIN_S + NOTES_LIMIT_S
            request = Examine(purpose=purpose, limit_s=limit_s)
            self._collection = Collection(request=request, until=until, takes=[self._conclude])
            self._begin_survey(self._collection)
        return self._collection

    def _take_silence(self, member_id: str, silence: NodeSilence, now: float) -> None:
        """Look at all workers once no node makes progress any more.

        A node that stays silent does not say so again: what it has said counts until it makes progress.
        """
        self._silent[member_id] = silence
        silent = {rank for one in self._silent.values() if one.round == silence.round for rank in one.ranks}
        if silence.ranks and len(silent) >= silence.world_size:
            self._look("silence", now).tells["silence"] = None

    def _conclude(self, collection: Collection) -> None:
        """Conclude in a thread, since thousands of ranks take a while."""
        self._collection = None
        self._reporter.submit("diagnosis", collection.conclude, partial(self._tell, collection))

    def _tell(self, collection: Collection, conclusion: Conclusion | None, problem: str) -> None:
        for finish in collection.finishes:
            finish(conclusion, problem)
        if conclusion is not None:
            for purpose in collection.tells:
                self._send(TO_ROUND, replace(conclusion, purpose=purpose))

    # --- every agent's part ---

    def examine(self, order: Examine, finish: Callable[[Evidence, str], object], now: float) -> None:
        """Look at the workers of this node; `finish` takes the evidence, page by page."""
        if self._round is None:
            finish(self._make_idle(), "")
            return
        key = _Order(finish, order.purpose, self._round.number)
        find_folder = partial(self._choose_folder, self._round.number, order.purpose)
        self._examiner.begin(key, self._round.targets, "all", find_folder, order.limit_s, now)

    def _choose_folder(self, round: int, purpose: Purpose) -> str:
        """Return the incident folder of a look, "" for none."""
        if purpose == "failure":
            if not self._keeps_failures or self._failure_folders >= FAILURE_FOLDERS_MAX:
                return ""
            self._failure_folders += 1
        return self._find_folder(round)

    def _send_evidence(self, order: _Order, report: ExamineReport) -> None:
        if self._round is None or self._round.number != order.round:  # it has ended meanwhile
            order.finish(self._make_idle(), "")
            return
        evidence = Evidence(
            node=self._node,
            round=self._round.number,
            mesh=self._round.mesh,
            ranks=tuple(self._add_end(one, order.purpose) for one in report.ranks),
            folder=report.folder,
            remarks=report.remarks,
        )
        for page in split_pages(evidence):
            order.finish(page, "")

    def _make_idle(self) -> Evidence:
        return Evidence(node=self._node, round=0, mesh=NO_MESH, ranks=())

    def _add_end(self, one: RankEvidence, purpose: Purpose) -> RankEvidence:
        """Add how a rank has ended. One that has failed, where victims are looked at, has given up or is about to."""
        assert self._round is not None
        if one.state != "ended":
            return one
        exit_code = self._round.exit_codes.get(one.rank)
        return replace(one, exit_code=exit_code, has_given_up=purpose == "failure" and exit_code != 0)

    def _send(self, to: str, note: Note) -> None:
        self._submit(SendNote(to, encode_note(note)))
