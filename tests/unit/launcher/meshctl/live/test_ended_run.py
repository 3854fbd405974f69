"""A run that has ended, from the files in its log directory and from its records in the store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher.meshctl import why
from launcher.meshctl.live import ended_run
from launcher.meshctl.live import source as sources
from launcher.meshctl.live.ended_run import (
    EndedSource,
    find_run_dir,
    make_stored_source,
    open_run_dir,
    read_lost_events,
)
from launcher.meshctl.live.events import show_events
from launcher.meshctl.live.poller import NodePoller
from launcher.meshctl.live.ranks import describe_ranks
from launcher.meshctl.live.source import NoAgentError, open_source
from launcher.meshctl.status import describe
from launcher.model.errors import TemporaryError, UsageError
from launcher.views.requests import EventPage, LogPage, ReadEvents, ReadLogs, ReadState
from launcher.views.run_events import FailureFound, encode_event
from launcher.views.run_view import RunView
from launcher.views.sinks.event_file import KEPT_FILE
from rendezvous.stores.memory.store import MemoryStore
from tests.support.run_reports import keep_events, make_event, make_node, make_start
from tests.support.stores.stored_job import StoredJob

ROOT = {"node": "h0", "rank": 1, "exit_code": 1, "failure_class": "user code: KeyError", "error": "KeyError: 'x'"}


def keep_run(folder: Path, node: str, ranks: tuple[int, int]) -> None:
    """Let a node have been in two rounds, of which a failure on h0 has ended both."""
    lines = [make_event("agent_started", node, "08:00:00.000", pid=7, version="1", worker_count=2, round=0)]
    for number in (1, 2):
        lines.append(make_start(number, node, ranks, restart_count=number - 1))
        for at, rank in enumerate(ranks):
            worker = {"rank": rank, "local_rank": at, "pid": 10 + rank, "round": number}
            ended = {"outcome": "failed" if rank == 1 else "terminated", "exit_code": 1 if rank == 1 else -15}
            lines.append(make_event("worker_started", node, f"08:0{number}:01.000", **worker))
            lines.append(make_event("worker_ended", node, f"08:0{number}:30.000", **worker, **ended))
        told = {"round": number, "cause": "failure", "reason": "a worker failed"}
        lines.append(make_event("round_stopping", node, f"08:0{number}:31.000", **told, mode="kill", root_cause=ROOT))
        lines.append(make_event("round_ended", node, f"08:0{number}:32.000", **told, ran_s=32.0, step=5))
    told = {"round": 2, "exit_code": 1, "verdict": "failure", "reason": "all used up", "root_cause": ROOT}
    keep_events(folder, *lines, make_event("agent_ended", node, "08:03:00.000", **told))
    for at in (0, 1):
        path = folder / f"attempt_1/{at}/stdout.log"
        path.parent.mkdir(parents=True)
        path.write_text(f"I am {ranks[at]}\n")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """The log directory of a run of two nodes on a disk that they share."""
    for index in range(2):
        keep_run(tmp_path / "exp_0123abcd" / f"h{index}", f"h{index}", (2 * index, 2 * index + 1))
    os.symlink("exp_0123abcd", tmp_path / "latest-run")
    return tmp_path


def test_all_views_show_what_the_agents_have_left(log_dir: Path) -> None:
    source = open_run_dir(find_run_dir(str(log_dir), "exp"))
    run = source.read_run()
    shown = describe(run)
    assert "ended     failed in round 2, exit code 1: all used up" in shown
    assert "failure   rank 1 on h0 failed with exit code 1 (user code: KeyError): KeyError" in shown
    assert "restarts  1 of 3" in shown
    rows = [line.split()[:5] for line in describe_ranks(run).splitlines()[1:]]
    assert rows == [
        ["0", "h0", "10", "terminated", "-"],
        ["1", "h0", "11", "failed", "(1)"],
        ["2", "h1", "12", "terminated", "-"],
        ["3", "h1", "13", "terminated", "-"],
    ]
    lines: list[str] = []
    show_events(NodePoller(source, pytest.fail), lines.extend, follow=False, as_json=False)
    assert sum("h0-h1  round 2 starts: 4 ranks on 2 nodes" in line for line in lines) == 1
    assert "the job: failure: all used up" in lines[-1]
    page = source.read_node("h1", ReadLogs())
    assert isinstance(page, LogPage)
    assert [(chunk.rank, chunk.data) for chunk in page.chunks] == [(2, "I am 2\n"), (3, "I am 3\n")]
    said = why.ask(source, 1.0).answer.sentences
    assert said[0] == "run exp failed in round 2, exit code 1: all used up"
    assert "KeyError: 'x'" in said[1]


def test_an_agent_that_was_killed_has_left_no_end(tmp_path: Path) -> None:
    keep_events(tmp_path / "exp_0123abcd", make_start(1), '{"event":"worker_st', "{}", "[" * 9999)
    run = open_run_dir(find_run_dir(str(tmp_path), None)).read_run()
    assert "has ended with round 1: no agent has recorded how" in " ".join(describe(run).split())
    assert [node.state for node in run.nodes] == ["lost"]


def test_a_restarted_agent_counts_once_and_the_verdict_is_of_the_last_round(tmp_path: Path) -> None:
    folder = tmp_path / "exp_0123abcd"
    keep_run(folder / "h0", "h0", (0, 1))
    end = {"exit_code": 0, "verdict": "success", "reason": "all is done"}
    for name, at in (("h0.2", "09:00:00.000"), ("h1", "09:00:01.000")):
        started = [make_start(3, "h0", restart_count=2)] if name == "h0.2" else []
        keep_events(folder / name, *started, make_event("agent_ended", name[:2], at, **end))
    source = open_run_dir(str(folder))
    run = source.read_run()
    assert [(node.name, node.member_id) for node in run.nodes] == [("h0", "h0.2"), ("h1", "h1")]
    assert run.verdict is not None
    assert run.verdict.round == 3
    page = source.read_node("h0.2", ReadEvents())
    assert isinstance(page, EventPage)
    assert '"round":3' in page.lines[0], "its own first: who has followed it goes on there"
    assert len(page.lines) == 18
    logs = source.read_node("h0", ReadLogs(round=2))
    assert isinstance(logs, LogPage)
    assert [chunk.file for chunk in logs.chunks] == [f"h0/attempt_1/{at}/stdout.log" for at in (0, 1)]


def test_a_node_whose_end_is_missing_was_lost_only_if_the_last_round_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "exp_0123abcd"
    keep_events(folder / "h0", make_start(2, "h0"))
    end = make_event("agent_ended", "h1", "09:00:00.000", exit_code=1, verdict="failure", reason="x", round=2)
    keep_events(folder / "h1", make_start(2, "h1", (2, 3)), end)
    run = open_run_dir(str(folder)).read_run()
    assert [(node.name, node.state) for node in run.nodes] == [("h0", "gone"), ("h1", "gone")]
    stop = {"cause": "loss", "reason": "h0 is lost", "mode": "kill", "nodes": ["h0"], "round": 2}
    (folder / "h1" / KEPT_FILE).unlink()
    keep_events(
        folder / "h1", make_start(2, "h1", (2, 3)), make_event("round_stopping", "h1", "08:59:00.000", **stop), end
    )
    run = open_run_dir(str(folder)).read_run()
    assert [(node.name, node.state) for node in run.nodes] == [("h0", "lost"), ("h1", "gone")]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("exp", "exp_0123abcd"), ("ex", "exp_0123abcd"), (None, "exp_0123abcd"), ("exp_0123abcd", ""), ("other", ""),
        ("../x", ""), ("exp-41", "exp-41_00000001"),
    ],
)  # fmt: skip
def test_the_directory_of_a_run_is_found_by_its_id(log_dir: Path, asked: str | None, found: str) -> None:
    keep_events(log_dir / "exp-41_00000001", make_start(1))
    os.utime(log_dir / "exp-41_00000001", (1, 1))
    (log_dir / "other_12345678").mkdir()
    assert find_run_dir(str(log_dir), asked) == (str(log_dir / found) if found else "")
    itself = str(log_dir / "exp_0123abcd")
    assert find_run_dir(itself, asked) == (itself if asked is None or "exp".startswith(asked) else "")


@pytest.mark.parametrize(
    ("asked", "found"), [("exp-4", "exp-4_0123abcd"), (None, "tune_0123abcd"), ("tune", "tune_0123abcd"), ("exp_", "")]
)
def test_a_log_directory_with_the_name_of_a_run_is_none_if_it_has_runs(
    asked: str | None, found: str, tmp_path: Path
) -> None:
    log_dir = tmp_path / "exp_20261129"
    keep_events(log_dir / "tune_0123abcd", make_start(1))
    keep_events(log_dir / "exp-4_0123abcd" / "h0", make_start(1))
    os.utime(log_dir / "exp-4_0123abcd", (1, 1))
    assert find_run_dir(str(log_dir), asked) == (str(log_dir / found) if found else "")
    os.rename(log_dir / "exp-4_0123abcd", tmp_path / "elsewhere")
    assert find_run_dir(str(log_dir), "exp") == ""


def test_a_file_without_events_is_no_run(tmp_path: Path) -> None:
    keep_events(tmp_path / "exp_00000001", make_start(1))
    keep_events(tmp_path / "exp_00000002")
    assert find_run_dir(str(tmp_path), "exp") == str(tmp_path / "exp_00000001")
    assert find_run_dir(str(tmp_path / "exp_00000002"), None) == ""


def test_nothing_but_files_of_the_directory_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "exp_0123abcd"
    keep_events(folder, make_start(1, ranks=(0, 1, 2)))
    (tmp_path / "secret").write_text("secret\n")
    for at in range(3):
        (folder / f"attempt_0/{at}").mkdir(parents=True)
    os.symlink(tmp_path / "secret", folder / "attempt_0/0/stdout.log")
    os.mkfifo(folder / "attempt_0/1/stdout.log")
    (folder / "attempt_0/2/stdout.log").write_text("own\n")
    page = open_run_dir(str(folder)).read_node("", ReadLogs())
    assert isinstance(page, LogPage)
    assert [chunk.data for chunk in page.chunks] == ["own\n"]
    os.rename(folder / KEPT_FILE, tmp_path / "events")
    os.symlink(tmp_path / "events", folder / KEPT_FILE)
    assert open_run_dir(str(folder)).read_run().rounds == ()
    assert find_run_dir(str(tmp_path), "exp") == ""


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_what_separates_lines_elsewhere_tears_no_event(separator: str, tmp_path: Path) -> None:
    failure = FailureFound(run_id="exp", node="h0", at=1.0, round=1, rank=1, exit_code=1, error=f"a{separator}b")
    folder = tmp_path / "exp_0123abcd"
    keep_events(folder, make_start(1), encode_event(failure).decode())
    (one,) = open_run_dir(str(folder)).read_run().rounds
    assert one.error == f"a{separator}b"
    lost = RunView(run_id="exp", lost=(("exp_0123abcd", 1),), nodes=(make_node(0, log_dir=str(tmp_path / "x")),))
    assert [event.kind for event in read_lost_events(lost)] == ["round_started", "failure_found"]


def test_of_each_round_is_told_why_it_ended_and_what_failed_whichever_node_knows(tmp_path: Path) -> None:
    folder = tmp_path / "exp_0123abcd"
    failed = make_event("failure_found", at="08:01:00.000", **ROOT)
    keep_events(folder / "h0", make_start(1, "h0"), failed)
    told = {"round": 1, "cause": "failure", "reason": "a worker failed", "mode": "kill"}
    keep_events(folder / "h1", make_start(1, "h1"), make_event("round_stopping", "h1", "08:01:01.000", **told))
    (one,) = open_run_dir(str(folder)).read_run().rounds
    assert (one.cause, one.failed_rank, one.error) == ("failure", 1, "KeyError: 'x'")
    assert one.failure_class is not None


@pytest.mark.parametrize(
    ("number", "exit_code", "kind"), [(1, 1000, "failure"), (1, -256, "failure"), (2**53, 1, "failure"), (1, 1, "lost")]
)
def test_an_end_that_cannot_be_one_is_none(number: int, exit_code: int, kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "exp_0123abcd"
    end = make_event("agent_ended", "h0", "09:00:00.000", round=number, exit_code=exit_code, verdict=kind, reason="")
    keep_events(folder, make_start(1, "h0"), make_start(-1, "h0"), end)
    run = open_run_dir(str(folder)).read_run()
    assert (run.verdict, [one.round for one in run.rounds]) == (None, [1])
    assert "no agent has recorded how" in " ".join(describe(run).split())


def test_the_directories_of_a_run_share_the_limit_of_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [make_start(number) for number in range(10, 20)]
    for name in ("h0", "h1"):
        keep_events(tmp_path / "exp_0123abcd" / name, *lines)
    monkeypatch.setattr(ended_run, "_EVENTS_MAX", 2 * 3 * (len(lines[0]) + 1))
    run = open_run_dir(str(tmp_path / "exp_0123abcd")).read_run()
    assert [one.round for one in run.rounds] == [18, 19]


@pytest.fixture
def ended() -> EndedSource:
    job = StoredJob(MemoryStore(clock=lambda: 0.0), "exp")
    job.join(0)
    job.seal(1, 0)
    job.lead(0)
    job.end("failure", 1, "all used up")
    return make_stored_source(job.jobs.read_run("exp"))


def test_the_store_has_rounds_ranks_and_the_end_but_no_output(ended: EndedSource) -> None:
    lines: list[str] = []
    show_events(NodePoller(ended, pytest.fail), lines.extend, follow=False, as_json=True)
    assert [json.loads(line)["event"] for line in lines][-1] == "remark"
    assert json.loads(lines[-1])["sentence"].startswith("run exp failed in round 1, exit code 1: all used up")
    assert "0  h0" in describe_ranks(ended.read_run())
    page = ended.read_node("h0", ReadLogs())
    assert isinstance(page, LogPage)
    assert page.remark == "the store keeps no output: set --log-dir to the log directory, on a node of the run"
    with pytest.raises(TemporaryError, match="nothing is left of node h7"):
        ended.read_node("h7", ReadState())
    assert ended.read_node("", ReadEvents(after=99)).lines == ()  # type: ignore[union-attr]


def test_a_command_falls_back_on_files_that_are_named(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sources, "find_local_agents", lambda: ([], []))
    with pytest.raises(NoAgentError), open_source({}, "exp"):
        pass
    with open_source({}, None, str(log_dir)) as source:
        assert source.run_id == "exp"
    assert capfd.readouterr().err == (
        f"meshctl: no agent of run exp was asked: this is from the files in {log_dir}/exp_0123abcd\n"
    )
    monkeypatch.setenv("LAUNCHER_LOG_DIR", str(log_dir))
    with open_source({}, "exp") as source:
        assert not source.is_live
    with pytest.raises(UsageError, match="no agent of run other"), open_source({}, "other"):
        pass
    with pytest.raises(UsageError, match="has no events of run other"), open_source({}, "other", str(log_dir)):
        pass
    monkeypatch.setattr(sources, "find_local_agents", pytest.fail)
    with pytest.raises(UsageError, match=r"h0 has no events of a run$"), open_source({}, None, str(log_dir / "h0")):
        pass


def test_what_a_stranger_has_written_costs_no_view(tmp_path: Path) -> None:
    odd = make_event("agent_ended", "\u202eevil", "x", exit_code=0, verdict="nonsense", reason="\x1b[2J", run_id="")
    keep_events(tmp_path / "exp_0123abcd", make_start(1), '{"event":"round_started","round":1e99}', odd)
    source = open_run_dir(find_run_dir(str(tmp_path), "exp"))
    assert source.run_id == "exp"
    shown = describe(source.read_run()) + describe_ranks(source.read_run())
    assert "no agent has recorded how" in " ".join(shown.split())
    assert not {"\u202e", "\x1b"} & {*shown}
