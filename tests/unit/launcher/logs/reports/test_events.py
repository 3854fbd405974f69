"""Events: which are told of a job's rounds and workers, in torchrun's shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.config import config
from launcher.config.options import command_line
from launcher.logs.reports.events import EventRecorder
from launcher.logs.reports.round_log import make_recorder
from launcher.placement.adapter.description import NodeAssignment, encode_assignment
from launcher.supervisor.messages import Exited, RoundSwept, Spawned, SpawnFailed
from rendezvous.events import Exit, Start, StartRound, StopRound
from tests.support.reasons import because

SHARE = NodeAssignment(
    ranks=(4, 5), world_size=6, shape=(6,), group_rank=2, group_world_size=3, role_ranks=(4, 5), role_world_size=6,
    master_addr="a", master_port=1,
)  # fmt: skip
PREFIX = "torchelastic.worker.status."


def told(*messages: object, error: str = "", directory: Path | None = None) -> list[dict[str, Any]]:
    made = config.resolve(command_line.parse(["--role", "trainer", "train.py"]), {}, "python3")
    found: list[dict[str, Any]] = []
    if directory:
        (directory / "error.json").write_text(json.dumps({"message": error}))
    path = str(directory / "error.json") if directory else ""
    events = EventRecorder(made, "node-a", "night", lambda round, restarts, local_rank: path, found.append)
    for message in messages:
        events.take(message)
    return found


def names(events: list[dict[str, Any]]) -> list[tuple[str, str, int | None]]:
    return [(one["name"].removeprefix(PREFIX), one["source"], one["metadata"]["global_rank"]) for one in events]


def start(round: int, restart_count: int = 0) -> StartRound:
    return StartRound(round, restart_count, 6, "a:1", encode_assignment(SHARE))


def test_a_round_and_its_workers_are_told_in_order() -> None:
    found = told(
        Start(), start(1), Spawned(1, 0, 100), Spawned(1, 1, 101), Exited(1, 1, 101, 0, 5.25),
        Exited(1, 0, 100, 0, 6.0), StopRound(1, "kill", because("all done")), RoundSwept(1), Exit(0, because(""), None),
    )  # fmt: skip
    assert names(found) == [
        ("RENDEZVOUS", "AGENT", None), ("START", "WORKER", 4), ("START", "WORKER", 5), ("SUCCEEDED", "WORKER", 5),
        ("SUCCEEDED", "WORKER", 4), ("ROUND_ENDED", "AGENT", None), ("SUCCEEDED", "AGENT", None),
    ]  # fmt: skip
    assert found[3]["timestamp"] == 5250
    assert found[0]["metadata"]["duration_ms"] >= 0


def test_a_worker_that_ends_because_its_round_does_has_not_failed(tmp_path: Path) -> None:
    found = told(
        start(1), Spawned(1, 0, 100), Exited(1, 0, 100, 3, 5.0), StopRound(1, "kill", because("a failure")),
        Exited(1, 1, 101, -15, 6.0), RoundSwept(1), start(2, 1), Exited(2, 1, 102, -9, 7.0),
        Exit(3, because("3 of 3"), None),
        error="the disk is full", directory=tmp_path,
    )  # fmt: skip
    assert names(found) == [
        ("RENDEZVOUS", "AGENT", None), ("START", "WORKER", 4), ("FAILED", "WORKER", 4), ("TERMINATED", "WORKER", 5),
        ("ROUND_ENDED", "AGENT", None), ("RENDEZVOUS", "AGENT", None), ("FAILED", "WORKER", 5),
        ("FAILED", "AGENT", None),
    ]  # fmt: skip
    failed, terminated, over = found[2]["metadata"], found[3]["metadata"], found[-1]["metadata"]
    assert (failed["raw_error"], terminated["raw_error"], over["raw_error"]) == ("the disk is full", None, "3 of 3")
    assert json.loads(failed["metadata"])["exit_code"] == [3]
    assert (failed["agent_restarts"], over["agent_restarts"]) == (0, 1)


def test_a_program_that_cannot_be_started_has_failed() -> None:
    found = told(start(1), SpawnFailed(1, 1, "cannot run 'x'", 2))
    assert names(found)[1] == ("FAILED", "WORKER", 5)
    assert found[1]["metadata"]["raw_error"] == "cannot run 'x'"


def test_an_event_has_the_keys_of_torchruns() -> None:
    (_, event) = told(start(1), Spawned(1, 1, 101))
    assert set(event) == {"name", "source", "timestamp", "metadata"}
    details = json.loads(event["metadata"].pop("metadata"))
    assert event["metadata"] == {
        "run_id": "night", "global_rank": 5, "group_rank": 2, "worker_id": "101", "role": "trainer",
        "hostname": "node-a", "state": "START", "total_run_time": 0, "rdzv_backend": "static", "raw_error": None,
        "agent_restarts": 0, "duration_ms": None,
    }  # fmt: skip
    assert details == {
        "group_world_size": 3, "entry_point": "train.py", "round": 1, "local_rank": [1], "role_rank": [5],
        "role_world_size": [6], "exit_code": [None], "worker_pid": [101],
    }  # fmt: skip


@pytest.mark.parametrize("handler", ["null", "dynamic_rendezvous"])
def test_a_silent_handler_makes_nothing(handler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "launcher.logs.reports.events.EventRecorder.take", lambda *given: pytest.fail("it was told something")
    )
    made = config.resolve(command_line.parse(["--event-log-handler", handler, "train.py"]), {}, "python3")
    make_recorder(made, "node-a", "night", lambda *given: "")(start(1))


def test_the_console_gets_one_line_of_json_for_each(capfd: pytest.CaptureFixture[str]) -> None:
    made = config.resolve(command_line.parse(["--event-log-handler", "console", "train.py"]), {}, "python3")
    record = make_recorder(made, "node\n", "night", lambda *given: "")
    record(start(1))
    record(RoundSwept(1))
    first, second = capfd.readouterr().err.splitlines()
    assert json.loads(first)["metadata"]["hostname"] == "node\n"
    assert json.loads(second)["name"] == PREFIX + "ROUND_ENDED"
