"""The state of a job as a value, by the store and by its agents: each state of a node, and records that are hostile."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from launcher.logs.reports.report import WorkerFailure
from launcher.meshctl.job_store import JobStore
from launcher.meshctl.status.agents import derive_overview
from launcher.meshctl.status.render import describe, encode_overview, format_failure
from launcher.meshctl.status.state import NodeState, Overview
from launcher.model.errors import UsageError
from rendezvous import codec
from rendezvous.reasons import Reason
from rendezvous.records import Command, Drain, Status, Verdict
from rendezvous.stores.memory.store import MemoryStore
from tests.support.reasons import because
from tests.support.run_reports import FIRST, NOW, REPORT, make_node, make_rank
from tests.support.stores.stored_job import StoredJob


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


def node(overview: Overview, name: str) -> NodeState:
    (found,) = (node for node in overview.nodes if node.name == name)
    return found


def states(overview: Overview) -> dict[str, str]:
    return {node.name: node.state for node in overview.nodes}


def test_before_the_first_round_nodes_wait(job: StoredJob) -> None:
    job.join(0, 1)
    seen = job.overview()
    assert (seen.phase, seen.round, states(seen)) == ("forming", 0, {"h0": "waiting", "h1": "waiting"})
    assert seen.leader == ""


def test_the_time_since_the_last_keep_alive_is_what_the_lease_has_lost(job: StoredJob, clock: Clock) -> None:
    job.join(0, 1)
    clock.now = 2.0
    job.store.lease_keep_alive(job.leases[1])
    clock.now = 3.0
    seen = job.overview()
    assert (node(seen, "h0").silent_s, node(seen, "h1").silent_s) == (3.0, 1.0)


def test_each_way_a_round_can_go_on_a_node_has_its_state(job: StoredJob) -> None:
    job.join(*range(6))
    job.seal(2, *range(6))
    job.status(0, 2, outcome="succeeded")
    job.status(1, 2, outcome="failed", rank=5, exit_code=3)
    job.status(2, 2, leaving="stopped by SIGTERM")
    job.status(3, 2, is_stopped=True)
    job.lose(4)
    seen = job.overview()
    assert states(seen) == {
        "h0": "succeeded", "h1": "failed", "h2": "leaving", "h3": "stopped", "h4": "lost", "h5": "running",
    }  # fmt: skip
    assert node(seen, "h1").why == "rank 5, exit code 3"
    assert node(seen, "h2").why == "stopped by SIGTERM"
    assert node(seen, "h4").silent_s is None


def test_a_stopped_round_is_stopping_until_nobody_runs_it(job: StoredJob) -> None:
    job.join(0, 1)
    job.seal(1, 0, 1)
    job.stop(1, "a worker failed")
    assert (job.overview().phase, job.overview().stop_reason) == ("stopping", because("a worker failed"))
    for index in (0, 1):
        job.status(index, 1, is_stopped=True)
    assert job.overview().phase == "waiting"
    job.seal(2, 0, 1)
    assert (job.overview().phase, job.overview().stop_reason) == ("running", None)
    job.join(0, 1)
    job.seal(1, 0, 1)
    job.seal(2, 0, 1)
    job.status(0, 1, outcome="failed")
    job.status(1, 1, leaving="told to go")
    assert states(job.overview()) == {"h0": "running", "h1": "leaving"}


def test_a_spare_that_is_quarantined_is_told_apart(job: StoredJob) -> None:
    job.join(0, 1)
    job.seal(1, 0)
    job.spares({1: Reason.of("quarantined", cause="failures", times=3, window_s=1800.0, duration_s=60.0)})
    assert states(job.overview())["h1"] == "quarantined"


def test_drains_and_requests_are_shown(job: StoredJob) -> None:
    job.join(0, 1)
    job.seal(1, 0)
    job.put(job.keys.make_drain_key("h1"), Drain(node_name="h1"))
    job.put(job.keys.make_command_key("t"), Command(kind="drain", target="h0", by="ada@login"))
    seen = job.overview()
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

    assert job.overview().failure is None
    fail(3, 1, text(9, "of an earlier round"), 1)
    fail(2, 2, "of a later version", 2)
    fail(0, 2, text(0, "RuntimeError: echo"), 41)
    fail(1, 2, text(5, "ValueError: bad"), 40)
    seen = job.overview()
    assert seen.failure is not None
    assert (seen.failure.rank, seen.failure.exception) == (5, "ValueError: bad")
    told = format_failure(seen.failure)
    assert told == "rank 5 on h1 failed with exit code 1: ValueError: bad; log h1:/log"
    assert encode_overview(seen)["failure"]["host"] == "h1"
    job.put(
        job.keys.verdict,
        Verdict(kind="failure", exit_code=1, round=2, reason=because(""), failure=text(3, "KeyError: 1")),
    )
    assert "KeyError: 1" in format_failure(job.overview().failure)


def test_a_verdict_ends_it(job: StoredJob) -> None:
    job.join(0)
    job.seal(1, 0)
    job.end("failure", 3, "a worker failed")
    job.lose(0)
    seen = job.overview()
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
    seen = job.overview()
    assert len(seen.faults) == 4
    assert any(job.keys.stop in fault for fault in seen.faults)
    assert node(seen, "h0").state == "running"


def test_a_seal_that_cannot_be_read_leaves_the_nodes(job: StoredJob) -> None:
    job.join(0)
    job.store.put(job.keys.round, b"what?")
    seen = job.overview()
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
    seen = job.overview()
    assert states(seen) == {"h0": "waiting"}
    assert seen.faults[0].startswith(f"{key}: ")


def test_with_a_secret_what_its_holders_did_not_sign_is_a_fault() -> None:
    store = MemoryStore(clock=Clock())
    job = StoredJob(store, secret=b"sesame")
    job.join(0, 1)
    job.seal(1, 0, 1)
    assert states(job.overview()) == {"h0": "running", "h1": "running"}
    forged = StoredJob(store)
    forged.stop(1, "because I say so")
    seen = job.overview()
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


def test_a_run_is_shown_as_one_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.meshctl.status.render.format_clock", lambda at, now: f"T{at - NOW:+.0f}")
    assert (
        describe(derive_overview(REPORT))
        == """\
run       exp
now       round 2 runs 4 ranks on 2 nodes, since T-60 (1 min)
mesh      dp=2, tp=2
leader    h0
restarts  1 of 3
lost      h9 in round 1
silent    h7: no answer

node  state    ranks
h0    running  0-1    leads
h1    running  2-3

round 1   T-120  6 ranks on 2 nodes; ended after 30 s: node h9 is lost
round 2   T-60  4 ranks on 2 nodes"""
    )


def test_its_json_has_the_same_fields() -> None:
    found = json.loads(json.dumps(encode_overview(derive_overview(REPORT))))
    assert (found["schema"], found["phase"], found["lost"], found["silent"]) == (1, "running", [["h9", 1]], ["h7"])


@pytest.mark.parametrize(
    ("states", "node_state", "phase"),
    [
        (("running", "running"), "running", "running"),
        (("succeeded", "succeeded"), "succeeded", "running"),
        (("failed", "running"), "failed", "running"),
    ],
)
def test_states_of_ranks_are_those_of_their_node(states: tuple[str, ...], node_state: str, phase: str) -> None:
    ranks = tuple(make_rank(rank, state=state, exit_code=1) for rank, state in enumerate(states))
    seen = derive_overview(replace(REPORT, nodes=(make_node(0, ranks=ranks),)))
    assert (seen.nodes[0].state, seen.phase) == (node_state, phase)


def test_failed_features_and_all_slots_are_shown_and_what_nodes_say_stays_in_its_line() -> None:
    seen = derive_overview(replace(REPORT, nodes=(make_node(1, off=("--hang-timeout", "--serve")),)))
    assert seen.nodes[0].why == "--hang-timeout is off, --serve is off"
    spare = make_node(0, state="spare", ranks=(), slot_count=8)
    seen = derive_overview(replace(REPORT, nodes=(spare, make_node(1))))
    assert [node.slot_count for node in seen.nodes] == [2, 8]
    forged = make_node(0, node="h0\n", state="up\x1b[2J\u202e", locality=(("rack\n", "r1"),))
    text = describe(derive_overview(replace(REPORT, nodes=(forged, make_node(1)))))
    assert text.isascii()
    assert "up\\x1b[2J\\u202e" in text
    assert next(line for line in text.splitlines() if line.startswith("h0")).startswith("h0\\n")


def test_a_round_that_hangs_is_shown_with_the_finding(job: StoredJob) -> None:
    finding = ("they are at 2 lines", "rank 0 is in a (t.py:1), asleep")
    local = derive_overview(replace(REPORT, rounds=(replace(FIRST, ended_at=0.0, hang=finding),)))
    job.join(0)
    job.seal(1, 0)
    assert job.overview().hang == ()
    job.put(job.keys.make_status_key("m0"), Status(round=1, plan_token="t1", finding=finding))
    for seen in (local, job.overview()):
        assert "hang they are at 2 lines; rank 0 is in a (t.py:1), asleep" in " ".join(describe(seen).split())
    job.put(job.keys.make_status_key("m0"), Status(round=1, plan_token="of another", finding=finding))
    assert job.overview().hang == ()


def test_before_and_between_rounds() -> None:
    waiting = make_node(0, state="waiting", round=0, ranks=(), waiting=because("1 of at least 2 nodes"), mesh_shape=())
    assert derive_overview(replace(REPORT, nodes=(waiting,), rounds=())).phase == "forming"
    between = derive_overview(replace(REPORT, nodes=(waiting,), rounds=(FIRST,)))
    assert (between.phase, between.nodes[0].why) == ("waiting", "1 of at least 2 nodes")
    over = replace(FIRST, cause="end", reason=because("all workers succeeded"))
    ended = derive_overview(replace(REPORT, nodes=(make_node(0, state="leaving"),), rounds=(over,)))
    assert (ended.phase, ended.leader) == ("ended", "h0")
    assert "now       has ended with round 1: all workers succeeded\n" in describe(ended)
    stopping = replace(REPORT, nodes=(make_node(0, state="stopping"),))
    assert derive_overview(stopping).phase == "stopping"


def test_a_failure_has_its_class_in_one_field_and_its_error_in_another() -> None:
    """As in the store, where a class is the same whenever a rank fails in the same way."""
    failed = replace(
        FIRST,
        cause="failure",
        reason=because("rank 1 failed"),
        failed_rank=1,
        failure_class=because("user code: KeyError"),
    )
    seen = derive_overview(replace(REPORT, rounds=(replace(failed, error="KeyError: 'lost'"),)))
    (past,) = encode_overview(seen)["history"]
    assert (past["failure_class"], past["ended"]) == ("user code: KeyError", "rank 1 failed; KeyError: 'lost'")
    assert past["ended_kind"] == because("").kind
    assert "rank 1 failed; KeyError: 'lost' (rank 1: user code: KeyError)" in " ".join(describe(seen).split())
