"""A request of a person at a machine of the run: handed in by its agent, for which no address is needed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.views.questions import stored_request, submitter
from launcher.views.questions.messages import RefusedQuestion, Submit
from launcher.views.questions.stored_request import JobAddress
from launcher.views.questions.submitter import Submitter
from rendezvous.errors import EXIT_STOPPED
from rendezvous.events import LeaveRequest
from rendezvous.reasons import Reason
from rendezvous.records import Command, Keys
from rendezvous.stores.memory.store import MemoryStore
from tests.support.reasons import because
from tests.support.stores.stored_job import StoredJob


class AtOnce:
    """A reporter whose thread is this one. `before_work`: as what else happens then."""

    def submit(self, kind: str, work: Callable[[], Any], take: Callable[[Any, str], object]) -> None:
        assert kind == "requests"
        take(work(), "")


def ask(
    find_job: Callable[[], JobAddress | None], kind: str, target: str = "", limit_s: float = 0.1
) -> tuple[Any, str, list[object]]:
    """The answer to a request, or why there is none, and what was asked of the kernel."""
    effects: list[object] = []
    answers: list[tuple[Any, str]] = []
    job = find_job()
    driver = SimpleNamespace(store=job and job.store, machine=SimpleNamespace(joined_root=job and job.keys.root))
    secret = None if job is None else job.secret
    answerer = Submitter(driver, secret, "exp", AtOnce(), effects.append)  # type: ignore[arg-type]
    request = Submit(command=Command(kind=kind, target=target, by="ada@h0"), limit_s=limit_s)
    answerer.answer(request, lambda answer, problem: answers.append((answer, problem)), 0.0)
    ((answer, problem),) = answers
    return answer, problem, effects


def test_the_only_node_of_a_job_leaves_to_stop_it_and_cannot_be_drained() -> None:
    answer, problem, effects = ask(lambda: None, "stop")
    assert effects == [LeaveRequest(Reason.of("stop-requested", by="ada@h0"), EXIT_STOPPED)]
    assert (answer.is_answered, problem) == (False, "")
    for kind in ("drain", "undrain"):
        answer, _, effects = ask(lambda: None, kind, "h0")
        assert (answer.refused.kind, effects) == ("views/one-machine", [])
    assert ask(lambda: None, "takeover") == (None, "an agent takes stop, drain, undrain, not takeover", [])


@pytest.fixture
def job() -> StoredJob:
    job = StoredJob(MemoryStore(clock=lambda: 0.0), "exp")
    job.join(0)
    job.seal(1, 0)
    job.lead(0)
    return job


def test_a_request_is_written_for_the_leader_whose_answer_comes_back(
    job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Command] = []
    refusal, times = because("2 nodes are called h1"), iter((0.0, -1.0, -1.0))

    def lead(_: float) -> None:
        (item,) = job.store.get(job.keys.commands, prefix=True).items
        written.append(Command(kind="drain", target="h1", by="ada@h0"))
        job.put(item.key, Command(kind="drain", target="h1", refused=refusal))

    monkeypatch.setattr(stored_request, "time", SimpleNamespace(sleep=lead, monotonic=lambda: next(times)))
    answer, _, _ = ask(lambda: job.jobs.locate("exp"), "drain", "h1")
    assert answer.refused == refusal
    assert written
    assert not job.store.get(job.keys.commands, prefix=True).items


def test_what_prevents_it_is_a_sentence(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count(7.0, 1e-4)
    monkeypatch.setattr(submitter, "time", SimpleNamespace(monotonic=lambda: next(times)))
    address = job.jobs.locate("exp")
    late, *_ = ask(lambda: address, "stop")
    assert late == RefusedQuestion(error="h0, the leader of run exp, has not responded for 0.1 s")
    job.end("failure", 1, "all used up")
    over, *_ = ask(lambda: address, "stop")
    assert over == RefusedQuestion(error="run exp has already ended: all used up")
    outside, *_ = ask(lambda: address._replace(keys=Keys("")), "stop")
    assert outside == RefusedQuestion(error="this agent has not joined the run yet")
    replaced, *_ = ask(lambda: address._replace(keys=Keys("/meshrun/exp/other")), "stop")
    assert replaced == RefusedQuestion(error="run exp has just been replaced by another job")


@pytest.mark.parametrize(("asked_s", "given_s"), [(1e9, 60.0), (60.5, 60.0), (5.0, 5.0), (0.0, None), (-1.0, None)])
def test_a_request_keeps_the_thread_for_its_limit_and_a_minute_at_most(
    asked_s: float, given_s: float | None, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    monkeypatch.setattr(submitter, "time", SimpleNamespace(monotonic=lambda: 7.0))
    monkeypatch.setattr(submitter, "hand_in", lambda job, command, limit_s, is_left: given.append(limit_s))
    answer, *_ = ask(lambda: job.jobs.locate("exp"), "stop", limit_s=asked_s)
    assert given == ([] if given_s is None else [given_s])
    assert isinstance(answer, RefusedQuestion) == (given_s is None)


def test_a_request_that_has_waited_for_others_for_too_long_is_not_handed_in(
    job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter((7.0, 12.5))
    monkeypatch.setattr(submitter, "time", SimpleNamespace(monotonic=lambda: next(times)))
    answer, *_ = ask(lambda: job.jobs.locate("exp"), "stop", limit_s=5.0)
    assert answer == RefusedQuestion(error="requests before this one took too long, and it was not handed in")
    assert not job.store.get(job.keys.commands, prefix=True).items
