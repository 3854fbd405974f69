"""Ranks that have ended while others of the job still run: who says so, of whom, and when nobody does."""

from __future__ import annotations

import msgspec
import pytest

from launcher.diagnosis.part.early_ends import COLLECT_S, EarlyEnd, EarlyEnds
from launcher.parts.part import Fact, RunningRound
from launcher.placement.adapter.description import NodeAssignment
from launcher.supervisor.messages import Exited
from rendezvous.events import TO_LEADER, NoteReceived, SendNote
from rendezvous.reasons import Reason

LIMIT_S = 60.0


class Job:
    """Nodes of two ranks each in one round, of which the first leads; each has an `EarlyEnds`."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.said: list[tuple[str, str]] = []
        self.parts: dict[str, EarlyEnds] = {}
        self.lost: set[str] = set()  # nodes whose notes get lost
        for index, name in enumerate(names):
            ranks = (2 * index, 2 * index + 1)
            running = RunningRound(has_workers=True, number=3)
            running.share = NodeAssignment(
                ranks=ranks,
                world_size=2 * len(names),
                shape=(2 * len(names),),
                group_rank=index,
                group_world_size=len(names),
                role_ranks=ranks,
                role_world_size=2 * len(names),
                master_addr="h",
            )
            self.parts[name] = EarlyEnds(name, running, LIMIT_S, lambda text, name=name: self.said.append((name, text)))

    def end(self, rank: int, at: float, exit_code: int = 0) -> None:
        part = self.parts[self.names[rank // 2]]
        part.take(Fact(Exited(3, rank % 2, 1, exit_code, 0.0), 3, at, 0.0))
        part.running.exit_codes[rank % 2] = exit_code

    def run(self, until: float) -> None:
        while (now := min(part.wake_at for part in self.parts.values())) <= until:
            self.now = max(now, getattr(self, "now", 0.0))
            for name, part in self.parts.items():
                if part.wake_at <= self.now:
                    for effect in part.advance(self.now):
                        assert isinstance(effect, SendNote)
                        self._deliver(name, effect)
        self.now = until

    def _deliver(self, sender: str, note: SendNote) -> None:
        if sender in self.lost:
            return
        for name in self.names[:1] if note.to == TO_LEADER else self.names:
            self.parts[name].take(Fact(NoteReceived(f"id of {sender}", note.text), 3, self.now, 0.0))

    def take_said(self) -> dict[str, list[str]]:
        found = {name: [text for who, text in self.said if who == name] for name in self.names}
        self.said.clear()
        return found


@pytest.mark.parametrize(
    ("ended", "here", "others", "do"),
    [
        ([0], "rank 0 on a", "ranks 1-3 on a, b still run", "they do"),
        ([2, 3], "ranks 2-3 on b", "ranks 0-1 on a still run", "they do"),
        ([1, 2, 3], "ranks 1-3 on a, b", "rank 0 on a still runs", "it does"),
    ],
)
def test_every_node_says_once_which_ranks_ended_and_which_still_run(
    ended: list[int], here: str, others: str, do: str
) -> None:
    job = Job("a", "b")
    for rank in ended:
        job.end(rank, 0.0)
    job.run(LIMIT_S + COLLECT_S - 0.1)
    assert job.take_said() == {"a": [], "b": []}
    job.run(10 * LIMIT_S)
    sentence = f"{here} ended at least 60 s ago, but {others}: `meshctl why` shows what {do}"
    assert job.take_said() == {"a": [sentence], "b": [sentence]}


def test_nothing_is_said_while_workers_end_one_after_another_on_any_node() -> None:
    job = Job("a", "b", "c")
    for rank in range(6):
        job.run(50.0 * rank)
        job.end(rank, 50.0 * rank)
    job.run(1000.0)
    assert job.take_said() == {"a": [], "b": [], "c": []}


def test_on_one_machine_no_node_is_named() -> None:
    job = Job("a")
    job.end(1, 0.0)
    job.run(LIMIT_S + COLLECT_S)
    assert job.take_said() == {
        "a": ["rank 1 ended at least 60 s ago, but rank 0 still runs: `meshctl why` shows what it does"]
    }
    job.end(0, 100.0)
    job.run(1000.0)
    assert job.take_said() == {"a": []}


def test_a_round_that_is_stopped_or_over_is_not_spoken_of() -> None:
    job = Job("a", "b")
    job.end(0, 0.0)
    job.parts["a"].running.is_stopping = True
    job.run(1000.0)
    job.parts["a"].running.is_stopping = False
    job.end(1, 1000.0)
    job.parts["a"].running.begin(4, job.parts["a"].running.share)  # type: ignore[arg-type]
    job.run(2000.0)
    assert job.take_said() == {"a": [], "b": []}


def test_a_lost_note_is_sent_again() -> None:
    job = Job("a", "b")
    job.lost = {"b"}
    job.end(2, 0.0)
    job.run(LIMIT_S + 10)
    job.lost = set()
    job.run(2 * LIMIT_S + 10)
    assert [len(said) for said in job.take_said().values()] == [1, 1]


@pytest.mark.parametrize(
    ("number", "has_workers", "is_stopping", "is_said"),
    [(3, True, False, True), (3, True, True, False), (3, False, False, False), (4, True, False, False),
     (2, False, False, True), (0, False, False, True)],
    ids=["runs", "is stopping", "has ended", "the next one runs", "of others, after one", "of others"],
)  # fmt: skip
def test_a_conclusion_about_a_round_that_is_over_here_is_not_logged(
    number: int, has_workers: bool, is_stopping: bool, is_said: bool
) -> None:
    said: list[str] = []
    part = EarlyEnds(
        "a", RunningRound(number=number, has_workers=has_workers, is_stopping=is_stopping), 9.0, said.append
    )
    values = {"ended": "rank 0", "for_s": 9, "live": "rank 1", "is_one": True}
    note = msgspec.json.encode(EarlyEnd(round=3, reason=Reason.of("diagnosis/early-end", **values)))
    part.take(Fact(NoteReceived("m", note.decode()), number, 0.0, 0.0))
    assert list(part.advance(0.0)) == []
    assert bool(said) is is_said
