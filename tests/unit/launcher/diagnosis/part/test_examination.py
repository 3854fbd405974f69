"""Agents that look at their workers together: who is asked, who answers, what is told, and to whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec import Raw, field

from launcher.diagnosis.answer import Conclusion
from launcher.diagnosis.evidence import Frame, GroupCalls, RankEvidence, State
from launcher.diagnosis.part.examination import FAILURE_LIMIT_S, REPEAT_S, Examination
from launcher.diagnosis.part.inquiries import Inquiries
from launcher.diagnosis.part.messages import Evidence, NodeFailure, NodeSilence
from launcher.diagnosis.request import ExamineReport, ExamineRequest, LocalRound, Target
from launcher.parts.part import RunningRound
from launcher.views.questions.messages import Reply, encode_note
from launcher.views.questions.question_server import QuestionServer
from launcher.views.questions.reporter import Reporter
from launcher.views.questions.survey import Surveys
from launcher.worker.grid import WorkerMesh
from rendezvous.codec import encode
from rendezvous.events import TO_LEADER, TO_ROUND, SendNote
from tests.support.threads import no_threads

AT = 100.0
LOADER = (Frame(function="read", file="/home/me/loader.py", line=31),)
WAITING = (Frame(function="all_reduce", file="/lib/torch/distributed/distributed_c10d.py", line=3),)
MESH = WorkerMesh(axes=("dp",), shape=(4,), rank=0, group_names=("dp",))


class FakeExaminer:
    """Reports when it is told to; rank 3 reads a file, the others wait for it."""

    wake_at = float("inf")

    def __init__(self) -> None:
        self.is_stuck = False
        self.states: dict[int, State] = {}
        self.groups: tuple[GroupCalls, ...] | None = None
        self.remarks: tuple[str, ...] = ()
        self.begun: list[tuple[Callable[[ExamineReport], object], Sequence[Target], str, float]] = []
        self.folders: list[str] = []

    def begin(
        self,
        finish: Callable[[ExamineReport], object],
        request: ExamineRequest,
        find_folder: Callable[[], str],
        now: float,
    ) -> None:
        self.begun.append((finish, request.targets, request.levels, request.limit_s))
        self.folders.append(find_folder())

    def advance(self, now: float) -> None:
        if self.is_stuck:
            return
        done, self.begun = self.begun, []
        for finish, targets, _, _ in done:
            ranks = [
                RankEvidence(
                    rank=one.rank,
                    state=self.states.get(one.rank, "sleeps"),
                    stack=LOADER if one.rank == 3 else WAITING,
                    groups=self.groups,
                )
                for one in targets
            ]
            finish(ExamineReport(ranks=tuple(ranks), remarks=self.remarks))

    def close(self) -> None:
        pass


class Told(Inquiries):
    """What is concluded without a question, in a list."""

    told: list[Conclusion] = field(default_factory=list)

    def _take_conclusion(self, conclusion: Conclusion) -> tuple[()]:
        self.told.append(conclusion)
        return ()


class Agents:
    """Agents on one bus. The first leads. Each has two ranks, unless it is a spare."""

    def __init__(self, *names: str, spare: str = "", keeps_failures: bool = True) -> None:
        self.keeps_failures = keeps_failures
        self.now = AT
        self.told: dict[str, list[Conclusion]] = {name: [] for name in names}
        self.unanswered: list[str] = []
        self.lost: set[str] = set()
        self.notes: list[tuple[str, str, str]] = []
        self.conclusion_count = 0
        self.examiners = {name: FakeExaminer() for name in names}
        self.agents: dict[str, Examination] = {}
        self.rounds: dict[str, LocalRound] = {}
        self.inquiries = {name: self._make(name) for name in names}
        self.leader, first = names[0], 0
        for name in names:
            if name != spare:
                targets = [Target(rank=first + index, pid=1) for index in range(2)]
                self.begin(name, 1, targets)
                first += 2
        self.round = [name for name in names if name != spare]

    def _make(self, name: str) -> Inquiries:
        def submit(event: Any) -> None:
            assert isinstance(event, SendNote)
            self.conclusion_count += '"culprits"' in event.text
            to = {TO_LEADER: [self.leader], TO_ROUND: self.round}.get(event.to, [event.to])
            self.notes += [(name, one, event.text) for one in to]

        def list_members() -> dict[str, str]:
            return {one: one for one in self.agents} if name == self.leader else {}

        examiner: Any = self.examiners[name]
        member: Any = SimpleNamespace(member_id=name, list_members=list_members)
        answers: Any = None
        surveys, reporter = Surveys(member, submit), Reporter(lambda: None)
        self.agents[name] = Examination(
            examiner, surveys, reporter, lambda: self.rounds.get(name), name,
            lambda round: f"/log/{round}", keeps_failures=self.keeps_failures,
        )  # fmt: skip
        made = Told(
            QuestionServer(surveys, reporter, answers, {}, None), self.agents[name], RunningRound(), deque(), "report"
        )
        made.told = self.told[name]
        return made

    def begin(self, name: str, number: int, targets: Sequence[Target]) -> None:
        self.rounds[name] = LocalRound(number=number, mesh=MESH, targets=tuple(targets), exit_codes={})

    def ask(self, name: str) -> None:
        """Ask as this agent, which is told the answer, or nothing and counted in `unanswered`."""

        def take(conclusion: Conclusion | None) -> None:
            if conclusion is None:
                self.unanswered.append(name)
            else:
                self.told[name].append(conclusion)

        self.inquiries[name].ask_why(take, self.now)

    def advance(self, name: str, now: float) -> None:
        with no_threads():
            self.inquiries[name].advance(now)
            self.inquiries[name].advance(now)  # what it has concluded in the first turn

    def run(self, until: float = AT) -> None:
        """Deliver every note, and let all do what is due, until nothing happens any more."""
        self.now = max(self.now, until)
        while True:
            notes, self.notes = self.notes, []
            for sender, to, text in notes:
                if to not in self.lost and sender not in self.lost:
                    self.inquiries[to].take_note(sender, text, self.now)
            for name in self.agents:
                if name not in self.lost:
                    self.advance(name, self.now)
            if not self.notes:
                return


@pytest.mark.parametrize("asker", ["a", "b"], ids=["the leader", "another agent"])
def test_who_asks_is_told_which_rank_the_others_wait_for(asker: str) -> None:
    agents = Agents("a", "b")
    agents.ask(asker)
    agents.run()
    (conclusion,) = agents.told[asker]
    assert (conclusion.round, conclusion.answer.culprits) == (1, (3,))
    assert "read" in conclusion.stacks
    assert [name for name, found in agents.told.items() if found] == [asker]


def test_names_that_are_no_text_travel_and_a_leader_without_ranks_concludes() -> None:
    agents = Agents("a", "b")
    agents.examiners["b"].remarks = ("no /log\udcff",)
    agents.ask("a")
    agents.run()
    assert [gap.reason for gap in agents.told["a"][0].answer.gaps] == ["b: no /log?"]
    agents = Agents("spare", "a", "b", spare="spare")
    agents.ask("spare")
    agents.run()
    assert agents.told["spare"][0].answer.culprits == (3,)


def test_two_questions_are_one_examination_and_silent_agents_are_not_known() -> None:
    agents = Agents("a", "b")
    agents.examiners["b"].is_stuck = True
    for name in ("a", "b"):
        agents.ask(name)
    agents.run()
    assert len(agents.examiners["b"].begun) == 1
    agents.examiners["b"].is_stuck = False
    agents.run()
    assert {name: len(found) for name, found in agents.told.items()} == {"a": 1, "b": 1}
    agents = Agents("a", "b")
    agents.lost.add("b")
    agents.ask("a")
    agents.run()
    assert not agents.told["a"], "it waits for the other agent"
    agents.run(agents.inquiries["a"].wake_at)
    (conclusion,) = agents.told["a"]
    assert conclusion.answer.gaps[0].ranks == (2, 3)


def test_between_rounds_and_without_a_leader_a_question_has_an_end() -> None:
    agents = Agents("a", "b")
    agents.rounds.clear()
    agents.ask("b")
    agents.run()
    assert agents.told["b"][0].round == 0
    assert agents.told["b"][0].answer.sentences == ("no round is running, so there are no workers to examine",)
    agents = Agents("a", "b")
    agents.lost.add("a")
    agents.ask("b")
    agents.run(AT + 1)
    assert agents.unanswered == []
    agents.run(agents.inquiries["b"].wake_at)
    assert agents.unanswered == ["b"]
    agents.run(AT + 100)
    assert agents.unanswered == ["b"]


def test_a_round_that_ends_while_it_is_looked_at_is_not_waited_for() -> None:
    agents = Agents("a", "b")
    agents.ask("a")
    for examiner in agents.examiners.values():
        examiner.is_stuck = True
    agents.run()
    agents.rounds.clear()
    for examiner in agents.examiners.values():
        examiner.is_stuck = False
    agents.begin("b", 2, [Target(rank=0, pid=1)])  # what it has seen is of round 1
    agents.run()
    assert agents.told["a"][0].round == 0


def test_survivors_of_a_failure_are_all_told_and_of_an_end_the_exit_code() -> None:
    agents = Agents("a", "b")
    agents.examiners["b"].is_stuck = True
    agents.agents["b"].report_failure()
    agents.run()
    assert agents.examiners["b"].begun[0][3] == FAILURE_LIMIT_S
    assert not agents.told["b"]
    agents.examiners["b"].is_stuck = False
    agents.run()
    assert [(one.purpose, one.round) for found in agents.told.values() for one in found] == [("failure", 1)] * 2
    agents = Agents("a", "b")
    agents.examiners["b"].states[3] = "ended"
    agents.rounds["b"].exit_codes[3] = 7
    agents.ask("a")
    agents.run()
    assert "rank 3 has ended with exit code 7" in agents.told["a"][0].answer.sentences


def test_a_look_that_could_not_begin_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = Agents("a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(Surveys, "begin", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            agents.agents["a"].take_note("b", NodeFailure(), AT)
    agents.ask("b")
    agents.run()
    assert len(agents.told["b"]) == 1


def test_an_answer_that_is_too_late_or_of_an_earlier_look_is_told_nobody() -> None:
    agents = Agents("a", "b")
    agents.examiners["b"].is_stuck = True
    agents.ask("a")
    agents.run()
    ranks = tuple(RankEvidence(rank=rank, state="ended") for rank in (2, 3))
    answer = Raw(encode(Evidence(node="b", round=1, mesh=MESH, ranks=ranks)))
    late = Reply(id="earlier", asker="a", member_id="b", answer=answer)
    agents.inquiries["a"].take_note("b", encode_note(late), AT)
    agents.run()
    assert not agents.told["a"]
    agents = Agents("a", "b")
    agents.examiners["b"].is_stuck = True
    agents.ask("b")
    agents.run()
    agents.advance("b", AT + 100)
    assert agents.unanswered == ["b"]
    agents.examiners["b"].is_stuck = False
    agents.run()
    assert not agents.told["b"]


@pytest.mark.parametrize(
    ("exit_code", "purpose", "culprits"), [(1, "failure", (3,)), (0, "failure", (2,)), (1, "question", (2,))]
)
def test_of_a_failure_who_gave_up_is_not_named(exit_code: int, purpose: Any, culprits: tuple[int, ...]) -> None:
    agents = Agents("a", "b")
    agents.examiners["b"].states[2] = "ended"
    agents.rounds["b"].exit_codes[2] = exit_code
    agents.ask("b") if purpose == "question" else agents.agents["b"].report_failure()
    agents.run()
    assert agents.told["b"][0].answer.culprits == culprits


def test_each_question_and_a_failure_on_many_nodes_are_answered_once() -> None:
    agents = Agents("a", "b")
    for _ in range(3):
        agents.ask("a")
        agents.run()
    assert agents.conclusion_count == 3
    agents = Agents("a", "b")
    for name in ("a", "b"):
        agents.agents[name].report_failure()
    agents.run()
    assert {name: len(found) for name, found in agents.told.items()} == {"a": 1, "b": 1}


def test_failures_leave_folders_where_a_directory_is_named() -> None:
    agents = Agents("a", "b")
    for number in range(1, 20):
        agents.begin("a", number, [Target(rank=0, pid=1)])
        agents.agents["a"].report_failure()
        agents.run()
        agents.run(agents.now + 10)  # the other agent is in another round
    assert [folder for folder in agents.examiners["a"].folders if folder] == [f"/log/{at}" for at in range(1, 9)]
    agents.ask("a")
    agents.run()
    assert agents.examiners["a"].folders[-1] == "/log/19"
    agents = Agents("a", "b", keeps_failures=False)
    agents.agents["a"].report_failure()
    agents.run()
    agents.ask("a")
    agents.run()
    assert agents.examiners["a"].folders == ["", "/log/1"]


def test_what_joins_a_question_and_what_is_concluded_for_one_is_its_own() -> None:
    agents = Agents("a", "b")
    agents.ask("b")
    agents.agents["a"].report_failure()
    agents.run()
    assert [one.purpose for one in agents.told["a"]] == ["failure"]
    assert sorted(one.purpose for one in agents.told["b"]) == ["failure", "question"]
    # On a hang of its own purpose an agent may end its workers.
    agents = Agents("a", "b")
    agents.ask("a")
    agents.run()
    (found,) = agents.told["a"]
    agents.inquiries["b"].take_note("a", encode_note(found), AT)
    agents.run()
    assert agents.told["b"] == []


def test_all_are_told_once_no_node_makes_progress() -> None:
    agents = Agents("a", "b")
    agents.agents["a"].report_silence(AT, is_silent=True)
    agents.run()
    assert not agents.told["a"], "the other node works"
    agents.agents["a"].report_silence(AT, is_silent=False)
    agents.agents["b"].report_silence(AT, is_silent=True)
    agents.run()
    assert not agents.told["a"], "one works at any time"
    agents.agents["a"].report_silence(AT, is_silent=True)
    agents.run()
    assert [(conclusion.purpose, conclusion.answer.culprits) for conclusion in agents.told["b"]] == [("silence", (3,))]
    agents.run(AT + 2 * REPEAT_S)
    assert len(agents.told["a"]) == 1, "once"


def test_a_silence_is_told_to_all_also_while_a_question_is_answered_or_to_a_later_leader() -> None:
    agents = Agents("a", "b")
    agents.ask("a")
    for name in ("a", "b"):
        agents.agents[name].report_silence(AT, is_silent=True)
    agents.run()
    assert [conclusion.purpose for conclusion in agents.told["b"]] == ["silence"]
    assert {conclusion.purpose for conclusion in agents.told["a"]} == {"question", "silence"}
    agents = Agents("a", "b")
    agents.leader = "b"
    for name in ("a", "b"):
        agents.agents[name].report_silence(AT, is_silent=True)
    agents.notes.clear()  # they went to a leader that is lost
    agents.run(AT + REPEAT_S)
    assert len(agents.told["a"]) == 1


def test_a_silence_is_of_one_round_and_told_again_beside_one_that_stayed() -> None:
    agents = Agents("a", "b")
    agents.agents["a"].report_silence(AT, is_silent=True)
    old = NodeSilence(round=0, ranks=(2, 3), world_size=4)
    agents.agents["a"].take_note("b", old, AT)
    agents.run()
    assert not agents.told["a"]
    agents = Agents("a", "b")
    for is_silent in (True, False, True):
        agents.agents["a"].report_silence(AT, is_silent=is_silent)
        if not agents.told["b"]:
            agents.agents["b"].report_silence(AT, is_silent=True)
        agents.run()
    assert len(agents.told["b"]) == 2


def test_nothing_is_repeated_after_progress_or_in_another_round() -> None:
    agents = Agents("a", "b")
    agents.agents["a"].report_silence(AT, is_silent=True)
    assert agents.agents["a"].wake_at == AT + REPEAT_S
    agents.agents["a"].report_silence(AT, is_silent=False)
    assert agents.agents["a"].wake_at == float("inf")
    agents.agents["a"].report_silence(AT, is_silent=True)
    agents.begin("a", 2, [Target(rank=0, pid=1)])
    agents.notes.clear()
    agents.advance("a", AT + REPEAT_S)
    assert agents.notes == []
    assert agents.agents["a"].wake_at == float("inf")


def test_how_far_each_group_has_come_is_counted() -> None:
    agents = Agents("a", "b")
    counted: list[dict[int, object]] = []
    agents.agents["b"].count_calls(counted.append, AT)
    assert agents.examiners["b"].begun[0][2] == "recorder"
    agents.run()
    assert counted == [{}], "no recorder has answered"
    agents.examiners["b"].groups = ()
    agents.agents["b"].count_calls(counted.append, AT)
    agents.run()
    assert counted[1:] == [{2: (), 3: ()}], "they have called nothing"
