"""Which agent of this machine a view asks: another of the same job where one has ended or is frozen."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.extensions.page.shared_run import SharedRun
from launcher.meshctl import why
from launcher.meshctl.job_store import JobStore
from launcher.meshctl.live import source as sources
from launcher.meshctl.live.source import LocalSource, NoAgentError, RunOverError, StoreSource, find_agent
from launcher.model.errors import TemporaryError, UsageError
from launcher.views.questions.local_socket import LocalAgent, QuestionSource, RunGoneError, SilentNodeError
from launcher.views.questions.messages import Question, pack
from launcher.views.questions.stored_request import hand_in
from launcher.views.requests import EventPage, ReadEvents, ReadRun
from rendezvous import __version__, codec
from rendezvous.errors import StoreError
from rendezvous.records import Command
from rendezvous.stores.contract import Delete
from rendezvous.stores.memory.store import MemoryStore
from tests.support.run_reports import REPORT, keep_events, make_event, make_node, make_start
from tests.support.stores.stored_job import StoredJob
from tests.support.waiting import wait_until

A, B, OTHER = (
    LocalAgent(name=f"meshrun.0.{pid}", run_id="exp", node=f"h{pid}", version=__version__, job=f"/meshrun/exp/{job}")
    for pid, job in ((1, "x"), (2, "x"), (3, "y"))
)


class Machine:
    """The agents of a machine. `named`: those whose sockets are there; `silent`: that do not answer; `asked`: which."""

    def __init__(self, *agents: LocalAgent) -> None:
        self.named = list(agents)
        self.silent: set[LocalAgent] = set()
        self.asked: list[str] = []
        self.refusals = 0
        self.report = REPORT

    def list_agents(self) -> list[LocalAgent]:
        return [agent for agent in self.named if agent not in self.silent]

    def exchange(self, name: str, question: Question, limit_s: float) -> bytes:
        (agent,) = (one for one in (A, B, OTHER) if one.name == name)
        self.asked.append(agent.node)
        self.refusals -= 1
        if self.refusals >= 0 or agent not in self.list_agents():
            raise TimeoutError
        is_run = isinstance(question.request, ReadRun)
        return codec.encode(self.report if is_run else EventPage(lines=(), first=0, next_after=-1)) + b"\n"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(A, OTHER, B)
    monkeypatch.setattr(sources, "exchange", found.exchange)
    monkeypatch.setattr(sources, "list_local_agents", found.list_agents)
    monkeypatch.setattr(
        sources,
        "find_local_agents",
        lambda: (found.list_agents(), [agent.pid for agent in found.silent & {*found.named}]),
    )
    monkeypatch.setattr(sources, "list_socket_names", lambda: [agent.name for agent in found.named])
    return found


def test_a_frozen_agent_has_not_ended(machine: Machine) -> None:
    machine.named, machine.silent = [A], {A}
    source = LocalSource(A)
    for ask in (source.read_run, lambda: source.read_node("h1", ReadEvents())):
        with pytest.raises(TemporaryError, match="has not answered in time") as problem:
            ask()
        assert not isinstance(problem.value, RunGoneError)
    machine.silent = set()
    assert source.read_run() == REPORT


@pytest.mark.parametrize("is_frozen", [True, False])
def test_another_agent_of_the_same_job_is_asked_and_none_of_another_job(machine: Machine, is_frozen: bool) -> None:
    if is_frozen:
        machine.silent = {A}
    else:
        machine.named.remove(A)
    source = LocalSource(A)
    assert source.read_run() == REPORT
    assert (machine.asked, source.switch_count) == (["h1", "h2"], 1)
    machine.named = [OTHER]
    with pytest.raises(RunGoneError):
        source.read_node("h1", ReadEvents())
    assert "h3" not in machine.asked


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_request_is_handed_to_no_second_agent(machine: Machine, is_frozen: bool) -> None:
    if is_frozen:
        machine.silent = {A}
    else:
        machine.named.remove(A)
    source = LocalSource(A)
    assert source.node == "h1"
    with pytest.raises(RunGoneError, match="the agent of run exp has not answered"):
        source.hand_in(Command(kind="stop"), 1.0)
    assert machine.asked == ["h1"]
    assert source.read_run() == REPORT, "the other one knows what has become of it"
    assert machine.asked == ["h1", "h2"]


def test_when_all_agents_here_have_ended_their_files_are_read(machine: Machine, tmp_path: Path) -> None:
    source, machine.named = LocalSource(A), [A]
    node = make_node(0, name="h1", agent_pid=1, log_dir=str(tmp_path))
    machine.report = replace(REPORT, nodes=(node, make_node(1, log_dir=str(tmp_path / "elsewhere"))))
    assert source.read_run() == machine.report
    end = make_event("agent_ended", "h1", "09:00:00.000", exit_code=0, verdict="success", reason="")
    keep_events(tmp_path, make_start(1, "h1"), end)
    machine.named = []
    assert (source.is_live, source.switch_count) == (True, 0)
    run = source.read_run()
    assert [(node.member_id, node.state) for node in run.nodes] == [("m0", "gone")]
    assert (source.is_live, source.switch_count) == (False, 1)
    page = source.read_node("m0", ReadEvents())
    assert isinstance(page, EventPage)
    assert len(page.lines) == 2
    assert b"succeeded" in source.ask_why()
    source = LocalSource(A)
    with pytest.raises(RunGoneError, match="run exp no longer has an agent on this machine"):
        source.read_run()


def test_after_the_end_other_nodes_are_shown_where_their_files_are_seen_here(machine: Machine, tmp_path: Path) -> None:
    nodes = [make_node(at, name=f"h{at}", agent_pid=at, log_dir=str(tmp_path / f"h{at}")) for at in (1, 2)]
    machine.report, machine.named = replace(REPORT, nodes=tuple(nodes)), [A]
    source = LocalSource(A)
    source.read_run()
    end = make_event("agent_ended", "h1", "09:00:00.000", exit_code=0, verdict="success", reason="", round=2)
    keep_events(tmp_path / "h1", make_start(1, "h1"), end)
    keep_events(tmp_path / "h2", make_start(1, "h2", (2, 3)), make_start(2, "h2", (0, 1)))
    machine.named = []
    run = source.read_run()
    assert [(node.name, node.state) for node in run.nodes] == [("h1", "gone"), ("h2", "gone")]
    assert run.verdict is not None
    assert (run.verdict.round, [one.round for one in run.rounds]) == (2, [1, 2])


def test_of_a_job_that_may_go_on_elsewhere_only_the_nodes_of_this_machine_are_shown(
    machine: Machine, tmp_path: Path
) -> None:
    nodes = [make_node(at, name=f"h{at}", agent_pid=at, log_dir=str(tmp_path / f"h{at}")) for at in (1, 2)]
    machine.report, machine.named = replace(REPORT, nodes=tuple(nodes)), [A]
    source = LocalSource(A)
    source.read_run()
    end = make_event("agent_ended", "h1", "09:00:00.000", exit_code=0, verdict="", reason="drained")
    keep_events(tmp_path / "h1", make_start(1, "h1"), end)
    keep_events(tmp_path / "h2", make_start(1, "h2", (2, 3)), make_start(2, "h2", (0, 1)))
    machine.named = []
    assert [(node.name, node.state) for node in source.read_run().nodes] == [("h1", "leaving")]


def test_an_agent_that_had_not_joined_its_job_is_known_by_its_socket(machine: Machine) -> None:
    source = LocalSource(replace(A, job=""))
    machine.refusals = 1
    with pytest.raises(TemporaryError, match="has not answered in time"):
        source.read_run()
    assert source.read_run() == REPORT
    assert (machine.asked, source.switch_count) == (["h1", "h1"], 0)
    machine.named.remove(A)
    assert source.read_run() == REPORT
    assert machine.asked[-1] == "h2"


@pytest.mark.parametrize("run_id", ["exp", None])
def test_a_frozen_agent_is_not_taken_for_none(machine: Machine, run_id: str | None) -> None:
    machine.named, machine.silent = [A], {A}
    with pytest.raises(UsageError, match=r"on this machine \(agents that do not respond: pid 1\)"):
        find_agent(run_id)
    with pytest.raises(UsageError, match=r"^the agent with pid 1 does not respond$"):
        find_agent("1")
    machine.named = []
    with pytest.raises(UsageError, match=r"on this machine$"):
        find_agent(run_id)


@pytest.fixture
def job() -> Iterator[StoredJob]:
    store = MemoryStore(clock=lambda: 0.0)
    job = StoredJob(store, "exp")
    job.join(0)
    job.seal(1, 0)
    job.lead(0)
    yield job
    store.close()


def answer(job: StoredJob, text: str) -> threading.Thread:
    """Answer the question that comes through the store, as a leader does; `text`: "" if it is carried out."""

    def wait() -> None:
        prefix = job.keys.commands
        key = wait_until(lambda: [item.key for item in job.store.get(prefix, prefix=True).items], 20, "a question")[0]
        if text:
            job.put(job.keys.make_answer_key(key.rpartition("/")[2]), Command(kind="ask", answer=text))
        job.store.txn((), (Delete(key),))

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_from_elsewhere_the_leader_is_asked_through_the_store(job: StoredJob) -> None:
    source = StoreSource(job.jobs, "exp")
    leader = answer(job, pack(codec.encode(REPORT)))
    assert source.read_run() == REPORT
    leader.join()
    assert not job.store.get(job.keys.commands, prefix=True).items, "who has read the answer deletes it"
    leader = answer(job, pack(b'{"error":"h7 has not answered in time","is_silent":true}'))
    with pytest.raises(SilentNodeError, match="h7 has not answered in time"):
        source.read_node("h7", ReadEvents())
    leader.join()


def test_an_answer_through_the_store_that_is_none_is_a_sentence(job: StoredJob) -> None:
    leader = answer(job, "no base64")
    with pytest.raises(TemporaryError, match="the leader of run exp returned an answer that cannot be read"):
        StoreSource(job.jobs, "exp").read_run()
    leader.join()
    assert not job.store.get(f"{job.keys.root}/answer/", prefix=True).items


def test_without_a_leader_a_question_is_withdrawn_and_a_run_that_is_over_is_gone(
    job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "STORE_LIMIT_S", -4.9)
    source = StoreSource(job.jobs, "exp")
    with pytest.raises(TemporaryError, match=r"h0, the leader of run exp, has not responded for 0\.1 s"):
        source.read_run()
    assert not job.store.get(job.keys.commands, prefix=True).items
    job.end("success", 0, "all workers succeeded")
    with pytest.raises(RunOverError, match="run exp has already ended: all workers succeeded") as over:
        source.read_run()
    assert over.value.exit_code == 2


def test_questions_of_a_minute_have_one_lease_and_go_with_it(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def note(*_: object, lease: int) -> None:
        given.append(lease)

    monkeypatch.setattr(sources, "hand_in", note)
    source = StoreSource(job.jobs, "exp")
    for _ in range(2):
        with pytest.raises(RunOverError, match="has just ended"):
            source.read_run()
    monkeypatch.setattr(sources, "LEASE_S", -1000.0)
    source = StoreSource(job.jobs, "exp")
    for _ in range(2):
        with pytest.raises(RunOverError):
            source.read_run()
    assert given[0] == given[1]
    assert len({*given, 0}) == 4
    assert job.store.lease_remaining(given[0]) > 60
    lease = job.store.lease_grant(60.0).id
    command = Command(kind="ask", target="{}")
    with pytest.raises(TemporaryError, match="has not responded"):
        hand_in(job.jobs.locate("exp"), command, 0.0, is_left=True, lease=lease)
    assert job.store.get(job.keys.commands, prefix=True).items
    job.store.lease_revoke(lease)
    assert not job.store.get(job.keys.commands, prefix=True).items


@pytest.mark.parametrize(
    ("name", "here", "is_stored"),
    [("exp", A, True), ("other", OTHER, True), ("ex", A, False), ("1", A, False), ("exp-41", A, False)],
)
def test_a_run_of_the_store_is_meant_before_one_here_whose_id_begins_so(
    name: str, here: LocalAgent, is_stored: bool, machine: Machine, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.named = [replace(A, run_id="exp-41"), replace(OTHER, run_id="other-2")]
    assert find_agent(name).name == here.name
    StoredJob(job.store, "other")
    monkeypatch.setenv("LAUNCHER_RDZV_ENDPOINT", "h")
    monkeypatch.setattr(sources, "open_job_store", lambda *_: job.jobs)
    monkeypatch.setattr(job.store, "close", lambda: None)
    if is_stored:
        with pytest.raises(NoAgentError, match=rf"^no agent of run {name} is on this machine$"):
            find_agent(name)
    else:
        assert find_agent(name).name == here.name


def test_a_store_that_does_not_answer_may_come_back(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreError("etcd-0:2379 does not answer", "see whether it runs")

    monkeypatch.setattr(job.store, "get", fail)
    with pytest.raises(TemporaryError, match=r"^etcd-0:2379 does not answer$") as error:
        StoreSource(job.jobs, "exp").read_run()
    assert error.value.hint == "see whether it runs"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b'{"run_id":"exp","nodes":[{"name":"a","run":' * 9000, "an answer that cannot be read"),
        (b'{"run_id":"\xff"}', "an answer that cannot be read"),
        (b"[]", "an answer that cannot be read"),
        (b'{"error":"' + b"\xff" + b'"}', "an error that cannot be read"),
        (b'{"error":"late","more":' + b"[" * 99_000, "an error that cannot be read"),
    ],
)
def test_an_answer_of_garbage_is_said_to_be_one(answer: bytes, sentence: str) -> None:
    source = QuestionSource(lambda question, limit_s: answer + b"\n", "exp")
    with pytest.raises(TemporaryError, match=sentence):
        source.read_run()
    with pytest.raises(TemporaryError, match="cannot be read"):
        why.ask(source, 1.0)
    with pytest.raises(TemporaryError, match="cannot be read"):
        SharedRun(source).ask_why()


def test_a_view_takes_how_an_id_begins_and_a_request_the_whole_id(
    job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def open_fake(store: object, run_id: object) -> Iterator[JobStore]:
        yield job.jobs

    monkeypatch.setattr(sources, "open_jobs", open_fake)
    with sources.open_source({"rdzv-endpoint": "h:1"}, "ex") as source:
        assert source.run_id == "exp"
    with sources.open_control({"rdzv-endpoint": "h:1"}, "exp") as control:
        assert control.read_run().run_id == "exp"
    with (
        sources.open_control({"rdzv-endpoint": "h:1"}, "ex") as control,
        pytest.raises(UsageError, match="run ex does not exist; there is exp"),
    ):
        control.read_run()


def test_the_only_run_of_a_store_needs_no_name(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def open_fake(store: object, run_id: object) -> Iterator[JobStore]:
        yield job.jobs

    monkeypatch.setattr(sources, "open_jobs", open_fake)
    with sources.open_source({"rdzv-endpoint": "h:1"}, None) as source:
        assert source.run_id == "exp"
    StoredJob(job.store, "other")
    with pytest.raises(UsageError, match="the store has exp, other") as error, sources.open_source({"x": "y"}, None):
        pass
    assert error.value.hint == "add the id of a run"
