"""A run as its records have it: each state of a node, and records that are hostile."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from launcher.logs.reports.report import WorkerFailure
from launcher.meshctl.job_store import JobStore
from launcher.model.errors import UsageError, describe
from launcher.views.run_json import encode_run
from launcher.views.run_view import NodeView, RunView
from launcher.views.sentences import format_failure
from launcher.views.stored_run import build_run
from rendezvous import codec
from rendezvous.reasons import Reason
from rendezvous.records import Command, Drain, RoundHistory, Spec, Status, Verdict
from rendezvous.stores.memory.store import MemoryStore
from tests.support.reasons import because
from tests.support.stores.stored_job import PREFIX, StoredJob


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def job(clock: Clock) -> Iterator[StoredJob]:
    store = MemoryStore(clock=clock)
    yield StoredJob(store)
    store.close()


def node(run: RunView, name: str) -> NodeView:
    (found,) = (node for node in run.nodes if node.name == name)
    return found


def states(run: RunView) -> dict[str, str]:
    return {node.name: node.state for node in run.nodes}


def test_before_the_first_round_nodes_wait(job: StoredJob) -> None:
    job.join(0, 1)
    seen = job.view()
    assert (seen.phase, seen.round, states(seen)) == ("forming", 0, {"h0": "waiting", "h1": "waiting"})
    assert seen.leader == ""


def test_the_time_since_the_last_keep_alive_is_what_the_lease_has_lost(job: StoredJob, clock: Clock) -> None:
    job.join(0, 1)
    clock.now = 2.0
    job.store.lease_keep_alive(job.leases[1])
    clock.now = 3.0
    seen = job.view()
    assert (node(seen, "h0").silent_s, node(seen, "h1").silent_s) == (3.0, 1.0)


def test_each_way_a_round_can_go_on_a_node_has_its_state(job: StoredJob) -> None:
    job.join(*range(6))
    job.seal(2, *range(6))
    job.status(0, 2, outcome="succeeded")
    job.status(1, 2, outcome="failed", rank=5, exit_code=3)
    job.status(2, 2, leaving="stopped by SIGTERM")
    job.status(3, 2, is_stopped=True)
    job.lose(4)
    seen = job.view()
    assert states(seen) == {
        "h0": "succeeded", "h1": "failed", "h2": "leaving", "h3": "stopped", "h4": "lost", "h5": "running",
    }  # fmt: skip
    assert describe(node(seen, "h1").why) == "rank 5, exit code 3"
    assert describe(node(seen, "h2").why) == "stopped by SIGTERM"
    assert node(seen, "h4").silent_s is None


def test_a_stopped_round_is_stopping_until_nobody_runs_it(job: StoredJob) -> None:
    job.join(0, 1)
    job.seal(1, 0, 1)
    job.stop(1, "a worker failed")
    assert (job.view().phase, job.view().stop_reason) == ("stopping", because("a worker failed"))
    for index in (0, 1):
        job.status(index, 1, is_stopped=True)
    assert job.view().phase == "waiting"
    job.seal(2, 0, 1)
    assert (job.view().phase, job.view().stop_reason) == ("running", None)
    job.join(0, 1)
    job.seal(1, 0, 1)
    job.seal(2, 0, 1)
    job.status(0, 1, outcome="failed")
    job.status(1, 1, leaving="told to go")
    assert states(job.view()) == {"h0": "running", "h1": "leaving"}


def test_a_spare_that_is_quarantined_is_told_apart(job: StoredJob) -> None:
    job.join(0, 1)
    job.seal(1, 0)
    job.spares({1: Reason.of("quarantined", cause="failures", times=3, window_s=1800.0, duration_s=60.0)})
    assert states(job.view())["h1"] == "quarantined"


def test_drains_and_requests_are_shown(job: StoredJob) -> None:
    job.join(0, 1)
    job.seal(1, 0)
    job.put(job.keys.make_drain_key("h1"), Drain(node_name="h1"))
    job.put(job.keys.make_command_key("t"), Command(kind="drain", target="h0", by="ada@login"))
    seen = job.view()
    assert (seen.drained, seen.requests) == (("h1",), ("drain h0, asked for by ada@login",))
    assert states(seen)["h1"] == "drained"


def test_the_first_failure_of_the_last_round_is_shown_then_the_verdicts(job: StoredJob) -> None:
    def text(rank: int, exception: str) -> str:
        failure = WorkerFailure(
            rank=rank, local_rank=0, pid=9, exit_code=1, time="", host="h1", exception=exception, log_file="/log"
        )
        return codec.encode(failure).decode()

    def fail(index: int, round: int, failure: str, revision: int) -> None:
        status = Status(round=round, outcome="failed", failure=failure, failed_revision=revision)
        job.put(job.keys.make_status_key(f"m{index}"), status)

    assert job.view().failure is None
    fail(3, 1, text(9, "of an earlier round"), 1)
    fail(2, 2, "of a later version", 2)
    fail(0, 2, text(0, "RuntimeError: echo"), 41)
    fail(1, 2, text(5, "ValueError: bad"), 40)
    seen = job.view()
    assert seen.failure is not None
    assert (seen.failure.rank, seen.failure.exception) == (5, "ValueError: bad")
    told = format_failure(seen.failure)
    assert told == "rank 5 on h1 failed with exit code 1: ValueError: bad; log h1:/log"
    assert encode_run(seen)["failure"]["host"] == "h1"
    job.put(
        job.keys.verdict,
        Verdict(kind="failure", exit_code=1, round=2, reason=because(""), failure=text(3, "KeyError: 1")),
    )
    assert "KeyError: 1" in format_failure(job.view().failure)


def test_a_verdict_ends_it(job: StoredJob) -> None:
    job.join(0)
    job.seal(1, 0)
    job.end("failure", 3, "a worker failed")
    job.lose(0)
    seen = job.view()
    assert (seen.phase, states(seen)) == ("ended", {"h0": "gone"})
    assert seen.verdict is not None
    assert seen.verdict.exit_code == 3


@pytest.mark.parametrize("value", [b"\x80", b"[]", b'{"version": "9.1"}', b"{" * 50_000, b'{"version":1}'])
def test_a_record_that_cannot_be_read_is_named_and_the_rest_is_shown(job: StoredJob, value: bytes) -> None:
    job.join(0, 1)
    job.seal(1, 0, 1)
    keys = job.keys
    for key in (
        keys.make_member_key("m7"),
        keys.stop,
        keys.make_history_key(1),
        keys.make_assignment_key(1, "t1", "m1"),
    ):
        job.store.put(key, value)
    seen = job.view()
    assert len(seen.faults) == 4
    assert any(job.keys.stop in fault for fault in seen.faults)
    assert node(seen, "h0").state == "running"


def test_a_seal_that_cannot_be_read_leaves_the_nodes(job: StoredJob) -> None:
    job.join(0)
    job.store.put(job.keys.round, b"what?")
    seen = job.view()
    assert (seen.round, states(seen)) == (0, {"h0": "waiting"})
    assert job.keys.round in seen.faults[0]


@pytest.mark.parametrize("text", ["", "[]", '{"slot_count": "many", "path": [], "address": ""}', '{"path": 1}'])
def test_a_node_whose_description_cannot_be_read_is_there_all_the_same(job: StoredJob, text: str) -> None:
    job.join(0)
    key = job.keys.make_member_key("m0")
    value = job.store.get(key).items[0].value.decode()
    start = value.index('"description":')
    end = value.index(',"presence_address"')
    job.store.put(
        key, (value[:start] + '"description":' + json.dumps(text) + value[end:]).encode(), lease=job.leases[0]
    )
    seen = job.view()
    assert states(seen) == {"h0": "waiting"}
    assert seen.faults[0].startswith(f"{key}: ")


def test_with_a_secret_what_its_holders_did_not_sign_is_a_fault() -> None:
    store = MemoryStore(clock=Clock())
    job = StoredJob(store, secret=b"sesame")
    job.join(0, 1)
    job.seal(1, 0, 1)
    assert states(job.view()) == {"h0": "running", "h1": "running"}
    forged = StoredJob(store)
    forged.stop(1, "because I say so")
    seen = job.view()
    assert seen.phase == "running"
    assert any("secret" in fault for fault in seen.faults)
    store.close()


def test_a_run_that_is_not_there_is_told_with_those_that_are(job: StoredJob) -> None:
    for run_id in ("exp-40", "exp-42", "other"):
        StoredJob(job.store, run_id)
    with pytest.raises(UsageError, match=r"^run exp-4 does not exist; there are exp-4\d, exp-4\d, exp-4\d$"):
        job.jobs.read_job("exp-4")
    with pytest.raises(UsageError, match=r"run zzz does not exist; there are exp-40, exp-41, exp-42, other$"):
        job.jobs.read_job("zzz")
    with pytest.raises(UsageError, match="no run is under /elsewhere/") as error:
        JobStore(job.store, "elsewhere").read_job("exp-41")
    assert error.value.hint == "set LAUNCHER_RDZV_PREFIX if the run has another prefix"


def test_a_run_of_the_store_is_chosen_by_its_script_or_how_its_id_begins(job: StoredJob) -> None:
    job.put(job.keys.spec, Spec(mesh="dp=*", options={}, digest="", script="train.py"))
    other = StoredJob(job.store, "other-7")
    other.put(other.keys.spec, Spec(mesh="dp=*", options={}, digest="", script="eval.py"))
    first = RoundHistory(
        round=1, world_size=4, node_count=1, coordinator="", reason=because("all are there"), began_at=8.0
    )
    other.put(other.keys.make_history_key(1), first)
    chosen = {"exp-41": "exp-41", "train.py": "exp-41", "exp": "exp-41", "oth": "other-7", "eval.py": "other-7"}
    assert {word: job.jobs.choose_run(word) for word in chosen} == chosen
    assert job.jobs.choose_run("rain") == "rain"
    guarded = JobStore(job.store, PREFIX, b"secret")
    assert guarded.choose_run("eval.py") == "eval.py", "a record without the secret may name any script"
    StoredJob(job.store, "other-8")
    with pytest.raises(UsageError, match="2 runs in the store fit run other") as refused:
        job.jobs.choose_run("other")
    assert refused.value.hint is not None
    assert refused.value.hint.startswith("add the whole id: other-7 (eval.py, started 1970-01-01 ")
    assert refused.value.hint.endswith("), other-8")


def test_a_round_that_hangs_has_the_finding_of_its_members(job: StoredJob) -> None:
    finding = ("the ranks are at 2 lines", "rank 0 is in a (t.py:1), asleep")
    job.join(0)
    job.seal(1, 0)
    assert job.view().hang == ()
    job.put(job.keys.make_status_key("m0"), Status(round=1, plan_token="t1", finding=finding))
    assert job.view().hang == finding
    job.put(job.keys.make_status_key("m0"), Status(round=1, plan_token="of another", finding=finding))
    assert job.view().hang == ()


def test_a_leader_lists_those_without_ranks_since_the_others_answer_for_themselves(job: StoredJob) -> None:
    job.join(0, 1, 2)
    job.seal(1, 0, 1)
    job.spares({2: "the world is full"})
    names = {"m0": "h0", "m1": "h1", "m2": "h2"}
    seen = build_run(job.jobs.read_job("exp-41")._replace(member_names=names))
    assert [(one.name, one.state, one.why) for one in seen.nodes] == [("h2", "spare", because("the world is full"))]
    assert (seen.member_count, seen.phase, seen.round) == (3, "running", 1)


def test_the_goodput_of_a_run_that_has_ended_is_in_its_records(job: StoredJob) -> None:
    times = ((1, 100.0, 200.0, 160.0, "loss"), (2, 220.0, 300.0, 0.0, "end"))
    for number, began_at, ended_at, saved_at, cause in times:
        past = RoundHistory(
            round=number, world_size=4, node_count=1, coordinator="h:1", reason=because("enough"),
            ended=because("over"), began_at=began_at, ended_at=ended_at, saved_at=saved_at, cause=cause,
        )  # fmt: skip
        job.put(job.keys.make_history_key(number), past)
    assert job.view().goodput is None, "it goes on"
    verdict = Verdict(kind="success", exit_code=0, round=2, reason=because("done"), ended_at=300.0)
    job.put(job.keys.verdict, verdict)
    goodput = job.view().goodput
    assert goodput is not None
    assert (goodput.trained_s, goodput.lost_s) == (140.0, {"loss": 60.0})
    assert [one.saved_at for one in job.view().rounds] == [160.0, 0.0]
