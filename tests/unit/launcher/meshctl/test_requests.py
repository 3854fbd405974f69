"""Requests to a running job, whose leader acts in the pauses, as whoever asked is told; and what `clean` removes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from launcher.meshctl import requests as submitting
from launcher.meshctl.live.source import StoreControl
from launcher.meshctl.requests import find_leftovers, remove, submit_request
from launcher.model.errors import TemporaryError, UsageError
from launcher.views.questions import stored_request
from launcher.views.questions.local_socket import RunGoneError
from launcher.views.run_view import ENDED, RunView
from rendezvous import records
from rendezvous.records import Command, Drain, Verdict, decode
from rendezvous.stores.memory.store import MemoryStore
from tests.support.reasons import because
from tests.support.run_reports import REPORT
from tests.support.stores.stored_job import PREFIX, StoredJob

LIMIT_S = 5.0


class World:
    """A job on two nodes, and a clock that moves in pauses only; `then` is what the leader does in each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = MemoryStore(clock=lambda: 0.0)
        self.stored = StoredJob(self.store)
        self.stored.join(0, 1)
        self.stored.seal(1, 0, 1)
        self.then: list[Callable[[], object]] = []
        self.key = self.stored.keys.make_command_key("t")

    def ask(self, kind: str, target: str = "", *, may_be_absent: bool = False) -> str:
        command = Command(kind=kind, target=target, by="ada@login")
        control = StoreControl(self.stored.jobs, self.stored.run_id)
        return submit_request(control, command, LIMIT_S, may_be_absent=may_be_absent)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.then:
            self.then.pop(0)()

    def request(self) -> Command:
        item = self.store.get(self.key).first
        assert item is not None
        return decode(Command, item.value, item.key)

    def refuse(self, why: str) -> None:
        self.stored.put(self.key, replace(self.request(), refused=because(why)))

    def consume(self) -> None:
        assert self.request() == self.request()
        self.store.delete(self.key)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    world = World()
    monkeypatch.setattr(submitting, "time", world)
    monkeypatch.setattr(stored_request, "time", world)
    monkeypatch.setattr(stored_request.secrets, "token_hex", lambda _: "t")
    yield world
    world.store.close()


def test_a_stop_is_told_when_the_verdict_is_there(world: World) -> None:
    world.stored.lead(0)
    requests = []

    def conclude() -> None:
        requests.append(world.request())
        world.stored.end("stopped", 143, "stopped at the request of ada@login")
        world.consume()

    world.then = [lambda: None, conclude]
    assert world.ask("stop") == (
        "run exp-41 was stopped in round 1, exit code 143: stopped at the request of ada@login"
    )
    assert requests == [Command(kind="stop", by="ada@login")]


GONE = RunGoneError("run exp no longer has an agent on this machine")
STOPPED = Verdict(kind="stopped", exit_code=143, round=2, reason=because("asked"))
AFTER = {
    "nobody": GONE,
    "its files": replace(REPORT, phase=ENDED, verdict=STOPPED),
    "files without an end": replace(REPORT, phase=ENDED),
    "another agent": replace(REPORT, phase=ENDED, verdict=STOPPED, nodes=REPORT.nodes[1:], round=3),
}


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize(
    ("kind", "target", "after", "said"),
    [
        ("stop", "", "its files", "run exp was stopped in round 2, exit code 143: "),
        ("stop", "", "another agent", "run exp was stopped in round 2, exit code 143: "),
        ("stop", "", "nobody", "run exp was asked to stop, and no longer has an agent on this machine"),
        ("stop", "", "files without an end", "run exp was asked to stop, and no longer has an agent on this machine"),
        ("drain", "h0", "another agent", "h0 is drained, and cannot rejoin before meshctl undrain; "),
        *(
            ("drain", target, after, f"{target} was asked to leave, and no longer has an agent on this machine")
            for target, after in (("h0", "nobody"), ("m0", "nobody"), ("h0", "files without an end"))
        ),
        ("drain", "h1", "nobody", None),
        ("drain", "h1", "files without an end", None),
    ],
)
def test_an_agent_that_ends_of_what_was_asked_of_it_has_done_it(
    kind: str, target: str, after: str, said: str | None, answers: bool
) -> None:
    control = Ending(AFTER[after], answers=answers)
    command = Command(kind=kind, target=target)
    if said is None:
        with pytest.raises(RunGoneError):
            submit_request(control, command, LIMIT_S)
    else:
        assert submit_request(control, command, LIMIT_S).startswith(said)


@pytest.mark.parametrize(("kind", "target"), [("stop", ""), ("drain", "h0"), ("drain", "h1")])
def test_what_nobody_has_answered_and_nothing_shows_was_not_done(kind: str, target: str) -> None:
    with pytest.raises(RunGoneError):
        submit_request(Ending(REPORT, answers=False), Command(kind=kind, target=target), 0.0)


class Ending:
    """A run whose agent here ends when it is asked. `after`: what is known of the run then."""

    run_id, node, has_ended = "exp", "h0", False

    def __init__(self, after: RunView | RunGoneError, *, answers: bool) -> None:
        self.after = after
        self.answers = answers

    def hand_in(self, command: Command, limit_s: float) -> None:
        self.has_ended = True
        if not self.answers:
            raise GONE

    def read_run(self) -> RunView:
        if not self.has_ended:
            return REPORT
        if isinstance(self.after, RunGoneError):
            raise self.after
        return self.after


def test_a_drain_is_told_when_the_node_has_no_ranks_any_more(world: World) -> None:
    world.stored.lead(0)

    def accept() -> None:
        world.stored.put(world.stored.keys.make_drain_key("h1"), Drain(node_name="h1"))
        world.consume()

    world.then = [accept, lambda: None, lambda: world.stored.seal(2, 0)]
    said = world.ask("drain", "h1")
    assert said.startswith("h1 is drained, and cannot rejoin before meshctl undrain; round 2 runs 4 ranks on 1 node")


def test_a_drain_that_takes_longer_than_the_limit_is_told_as_it_stands(world: World) -> None:
    world.stored.lead(0)
    world.then = [world.consume]
    assert world.ask("drain", "h1").endswith("round 1 runs 8 ranks on 2 nodes")
    assert world.now >= LIMIT_S


def test_a_request_the_leader_rejects_is_an_error_and_leaves_nothing(world: World) -> None:
    world.stored.lead(0)
    world.then = [lambda: world.refuse("2 nodes are called h1: give a member id, a or b")]
    with pytest.raises(UsageError, match="run exp-41: 2 nodes are called h1"):
        world.ask("drain", "h1")
    assert world.store.get(world.key).first is None


def test_without_a_leader_a_request_stays_for_the_next_and_that_is_said(world: World) -> None:
    with pytest.raises(
        TemporaryError, match="run exp-41 has had no leader for 5 s, so the request is still pending"
    ) as error:
        world.ask("stop")
    assert error.value.hint == "wait: the request remains, and the next leader carries it out"
    assert world.request().kind == "stop"


def test_a_leader_that_does_not_answer_is_named(world: World) -> None:
    world.stored.lead(1)
    with pytest.raises(TemporaryError, match="h1, the leader of run exp-41, has not responded for 5 s"):
        world.ask("stop")


@pytest.mark.parametrize(
    ("kind", "target", "sentence", "hint"),
    [
        ("drain", "h11", "run exp-41 has no node h11", "did you mean h1?"),
        ("drain", "zebra", "run exp-41 has no node zebra", "use one of h0, h1"),
        ("undrain", "h1", "h1 is not drained in run exp-41", None),
        *((kind, "h1", "run exp-41 has already ended: a worker failed", None) for kind in ("stop", "takeover")),
    ],
)
def test_what_a_job_cannot_do_is_refused(world: World, kind: str, target: str, sentence: str, hint: str | None) -> None:
    if "ended" in sentence:
        world.stored.end("failure", 3, "a worker failed")
    with pytest.raises(UsageError, match=sentence) as error:
        world.ask(kind, target)
    assert hint is None or error.value.hint == hint
    assert world.store.get(world.key).first is None


def test_a_node_that_is_to_come_can_be_drained_before(world: World) -> None:
    world.stored.lead(0)
    world.then = [world.consume]
    assert world.ask("drain", "h7", may_be_absent=True).startswith("h7 is drained")


def test_a_takeover_is_done_when_somebody_leads(world: World) -> None:
    def lead() -> None:
        world.stored.lead(1)
        world.refuse("this job has a leader, on node h1")

    world.then = [lambda: None, lead]
    assert world.ask("takeover") == "h1 leads run exp-41; round 1 runs 8 ranks on 2 nodes"
    assert world.store.get(world.key).first is None


def test_a_takeover_of_a_job_that_has_a_leader_is_refused(world: World) -> None:
    world.stored.lead(1)
    world.then = [lambda: world.refuse("this job has a leader, on node h1")]
    with pytest.raises(UsageError, match="this job has a leader, on node h1"):
        world.ask("takeover")


def test_a_request_is_signed_where_the_job_has_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(clock=lambda: 0.0)
    stored = StoredJob(store, secret=b"sesame")
    stored.join(0)
    values = []

    def leader(_: float) -> None:
        item = store.get(stored.keys.make_command_key("t")).first
        assert item is not None
        values.append(decode(Command, item.value, item.key, b"sesame"))
        stored.put(stored.keys.verdict, Verdict(kind="stopped", exit_code=143, round=0, reason=because("asked")))
        store.delete(item.key)

    monkeypatch.setattr(stored_request, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=leader))
    monkeypatch.setattr(stored_request.secrets, "token_hex", lambda _: "t")
    submit_request(StoreControl(stored.jobs, stored.run_id), Command(kind="stop"), LIMIT_S)
    assert values == [Command(kind="stop")]
    store.close()


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore(clock=lambda: 0.0)
    yield store
    store.close()


def finished(store: MemoryStore, run_id: str, job_key: str = "k1") -> StoredJob:
    job = StoredJob(store, run_id, job_key)
    job.join(0)
    job.seal(1, 0)
    job.end("success")
    job.lose(0)
    return job


def there(store: MemoryStore) -> set[str]:
    return {item.key for item in store.get("/", prefix=True).items}


def test_a_finished_job_goes_with_all_its_keys_and_nothing_else(store: MemoryStore) -> None:
    finished(store, "exp-4")
    before = there(store)
    finished(store, "exp-41")
    store.put("/other/key", b"")
    (found,) = find_leftovers(store, PREFIX, "exp-41")
    assert found.keep_reason == ""
    assert remove(store, found)
    assert there(store) == {*before, "/other/key"}


def test_a_job_with_a_member_stays_even_with_a_verdict(store: MemoryStore) -> None:
    job = finished(store, "exp-41")
    job.join(1)
    (found,) = find_leftovers(store, PREFIX, "exp-41", insist=True)
    assert found.keep_reason == "it has 1 live member"


def test_a_job_without_verdict_and_members_goes_only_when_a_person_insists(store: MemoryStore) -> None:
    job = StoredJob(store)
    job.join(0)
    job.seal(1, 0)
    job.lose(0)
    (found,) = find_leftovers(store, PREFIX, "exp-41")
    assert found.keep_reason.startswith("it has no verdict and no members")
    (found,) = find_leftovers(store, PREFIX, "exp-41", insist=True)
    assert found.keep_reason == ""
    assert remove(store, found)
    assert there(store) == set()


def test_an_older_job_of_a_run_goes_while_the_current_one_lives(store: MemoryStore) -> None:
    old = finished(store, "exp-41", "k0")
    store.delete(old.keys.verdict)
    live = StoredJob(store, "exp-41", "k1")
    live.join(0)
    found = find_leftovers(store, PREFIX, "exp-41")
    assert [(one.job.root[-2:], bool(one.keep_reason)) for one in found] == [("k0", False), ("k1", True)]
    assert remove(store, found[0])
    assert not store.get(old.keys.root + "/", prefix=True).items
    assert store.get(live.keys.spec).first is not None


def test_all_jobs_of_all_runs_go_where_none_is_named(store: MemoryStore) -> None:
    for run_id, job_key in (("exp-41", "k9"), ("exp-41", "k0"), ("b", "k1")):
        finished(store, run_id, job_key)
    assert [remove(store, one) for one in find_leftovers(store, PREFIX, None)] == [True] * 3
    assert there(store) == set()


def test_an_older_job_with_a_member_stays(store: MemoryStore) -> None:
    StoredJob(store, "exp-41", "k0").join(0, 1)
    finished(store, "exp-41", "k1")
    assert find_leftovers(store, PREFIX, "exp-41")[0].keep_reason == "it has 2 live members"


def test_a_job_that_was_begun_anew_meanwhile_stays(store: MemoryStore) -> None:
    finished(store, "exp-41")
    (found,) = find_leftovers(store, PREFIX, "exp-41")
    store.put(records.make_current_key(PREFIX, "exp-41"), b"k2")
    before = there(store)
    assert not remove(store, found)
    assert there(store) == before


def test_a_job_whose_verdict_has_gone_meanwhile_stays(store: MemoryStore) -> None:
    job = finished(store, "exp-41")
    (found,) = find_leftovers(store, PREFIX, "exp-41")
    store.delete(job.keys.verdict)
    assert not remove(store, found)


def test_foreign_keys_under_the_prefix_do_no_harm(store: MemoryStore) -> None:
    store.put(f"/{PREFIX}/lonely", b"")
    store.put(f"/{PREFIX}/exp-41/current", b"\xff\xfe")
    store.put(f"/{PREFIX}/x//", b"")
    for found in find_leftovers(store, PREFIX, None):
        remove(store, found)
    assert f"/{PREFIX}/lonely" in there(store)
