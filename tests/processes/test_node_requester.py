"""A command that is asked for nodes: what it is told, and what happens if it is slow, broken or gone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.extensions.kubernetes import node_requester
from launcher.extensions.kubernetes.node_requester import CHECK_S, NodeRequester
from launcher.model.concurrency import NO_THREAD
from launcher.model.errors import UsageError
from launcher.parts.part import Fact, Publish
from launcher.views.run_events import NodesRequested
from launcher.views.sinks import teller
from launcher.views.sinks.node_demand import SETTLE_S
from rendezvous.events import Exit
from rendezvous.records import Verdict
from tests.support.reasons import because
from tests.support.threads import no_threads
from tests.support.waiting import wait_until

VERDICT = Verdict(kind="success", exit_code=0, round=1, reason=because("done"))


def make_event(wanted: int, present: int, reason: str, since: str) -> NodesRequested:
    return NodesRequested(at=1.0, run_id="r", node="n0", wanted=wanted, present=present, reason=reason, since=since)


class Run:
    """A run that wants two nodes, as its leader sees it; None: another leads."""

    def __init__(self, command: str, *, takes_over: bool = False) -> None:
        self.present: int | None = 1
        self.has_taken_over = takes_over
        self.said: list[str] = []
        self.events: list[NodesRequested] = []
        self.now = 100.0
        machine: Any = self
        self.requester = NodeRequester(command, "--request-nodes", 2, machine, make_event, self.said.append)

    @property
    def is_leader(self) -> bool:
        return self.present is not None

    def list_members(self) -> dict[str, str]:
        return {str(number): "" for number in range(self.present or 0)}

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += CHECK_S
            self.turn()

    def turn(self) -> None:
        """Let the part do what is due."""
        if self.requester.wake_at <= self.now:
            for effect in self.requester.advance(self.now):
                assert isinstance(effect, Publish)
                assert isinstance(effect.what, NodesRequested)
                self.events.append(effect.what)

    def end(self) -> None:
        """End the run."""
        self.requester.take(Fact(Exit(0, because("done"), VERDICT), 1, self.now, 0.0))
        self.turn()
        self.requester.close()

    @property
    def problems(self) -> list[str]:
        return [sentence for sentence in self.said if " runs its command: " not in sentence]


def read(folder: Path) -> list[str]:
    return (folder / "told").read_text().splitlines() if (folder / "told").exists() else []


def test_the_command_is_told_what_is_missing_and_that_all_are_there(tmp_path: Path) -> None:
    run = Run(f"""cat >> {tmp_path}/told; echo "$NODES_WANTED $NODES_PRESENT $NODES_SINCE" >> {tmp_path}/told""")
    run.pass_time(SETTLE_S + CHECK_S)
    wait_until(lambda: len(read(tmp_path)) == 2, 20, "the first request")
    event = json.loads(read(tmp_path)[0])
    assert (event["event"], event["wanted"], event["present"]) == ("nodes_requested", 2, 1)
    assert event["since"].endswith("Z")
    assert read(tmp_path)[1] == f"2 1 {event['since']}"
    run.present = 2
    run.pass_time(60.0)
    wait_until(lambda: len(read(tmp_path)) == 4, 20, "the last request")
    assert read(tmp_path)[3] == "2 2 "
    run.requester.close()
    assert len(read(tmp_path)) == 4
    assert run.said == [
        "--request-nodes runs its command: wanted 2 nodes, present 1, for 10 s",
        "--request-nodes runs its command: wanted 2 nodes, present 2",
    ]


def test_only_the_leader_asks_and_one_that_takes_over_says_what_holds(tmp_path: Path) -> None:
    run = Run(f"cat >> {tmp_path}/told")
    run.present = None
    run.pass_time(1000.0)
    run.requester.close()
    assert read(tmp_path) == []
    run = Run(f"cat >> {tmp_path}/told", takes_over=True)
    run.present = 2
    run.pass_time(60.0)
    run.requester.close()
    assert [event.present for event in run.events] == [2]
    assert len(read(tmp_path)) == 1


@pytest.mark.parametrize(("has_ended", "told"), [(True, ["2 1", "0 0"]), (False, ["2 1"])])
def test_what_was_asked_for_is_withdrawn_when_the_run_ends(tmp_path: Path, has_ended: bool, told: list[str]) -> None:
    run = Run(f'echo "$NODES_WANTED $NODES_PRESENT" >> {tmp_path}/told')
    run.pass_time(SETTLE_S + CHECK_S)
    wait_until(lambda: len(read(tmp_path)) == 1, 20, "the request")
    if has_ended:
        run.end()
    run.requester.close()
    assert read(tmp_path) == told


def test_a_command_that_fails_is_reported_once(tmp_path: Path) -> None:
    run = Run(f"echo >> {tmp_path}/told; exit 3")
    for count in (1, 2):
        run.pass_time(500.0)
        wait_until(lambda count=count: len(read(tmp_path)) >= count, 20, "a request")  # type: ignore[misc]
    run.requester.close()
    assert run.problems == [f"--request-nodes echo >> {tmp_path}/told; exit 3: exit code 3"]


def test_a_command_that_hangs_holds_nobody_and_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_requester, "LIMIT_S", 0.2)
    run = Run(f"sleep 1000 & echo $! > {tmp_path}/pid; wait")
    run.pass_time(1000.0)
    wait_until(lambda: bool(run.problems), 20, "what is said of it")
    assert run.problems[0].endswith("it did not end within 0.2 s")
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}/cwd").exists(), 30, "the end of its child")
    run.requester.close()


def test_what_cannot_be_withdrawn_in_time_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teller, "END_LIMIT_S", 0.2)
    go = tmp_path / "go"
    os.mkfifo(go)
    run = Run(f'echo "$NODES_WANTED" >> {tmp_path}/told; [ "$NODES_WANTED" = 0 ] || cat {go}')
    run.pass_time(SETTLE_S + CHECK_S)
    wait_until(lambda: read(tmp_path) == ["2"], 20, "the request")
    run.end()
    (problem,) = run.problems
    assert problem.endswith(": the last event was not sent: it still runs after 0.2 s")
    go.write_text("")
    wait_until(lambda: read(tmp_path) == ["2", "0"], 20, "the end of the command")
    assert run.requester.thread.finish(30.0)


def test_while_a_command_runs_only_the_newest_figures_wait(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    run = Run(f'echo "$NODES_PRESENT" >> {tmp_path}/told; [ "$NODES_PRESENT" = 1 ] && cat {go}')
    run.pass_time(SETTLE_S + CHECK_S)
    wait_until(lambda: read(tmp_path) == ["1"], 20, "the first request")
    run.present = 0
    run.pass_time(3600.0)
    run.present = 2
    run.pass_time(60.0)
    assert len(run.events) > 3
    go.write_text("")
    wait_until(lambda: read(tmp_path) == ["1", "2"], 20, "the last request")
    run.requester.close()


def test_figures_that_wait_are_dropped_when_another_agent_leads(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    run = Run(f'echo "$NODES_PRESENT" >> {tmp_path}/told; cat {go}')
    run.pass_time(SETTLE_S + CHECK_S)
    wait_until(lambda: read(tmp_path) == ["1"], 20, "the first request")
    run.present = 0
    run.pass_time(60.0)
    assert [event.present for event in run.events] == [1, 0]
    run.present = None  # and the other has told what holds
    run.pass_time(2 * CHECK_S)
    go.write_text("")
    run.requester.close()
    assert read(tmp_path) == ["1"]
    assert run.problems == []


def test_a_machine_without_the_program_timeout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="--request-nodes true: the program timeout is not on PATH"):
        Run("true")


def test_figures_that_find_no_thread_are_told_once_there_is_one(tmp_path: Path) -> None:
    run = Run(f"cat >> {tmp_path}/told")
    with no_threads():
        run.pass_time(SETTLE_S + CHECK_S)
        assert run.requester.thread.is_missing
    run.requester.thread.start()
    wait_until(lambda: len(read(tmp_path)) == 1, 20, "the request")
    run.requester.close()
    assert run.problems == []


def test_figures_that_find_no_thread_at_all_are_said_to_be_lost() -> None:
    run = Run("cat")
    with no_threads():
        run.pass_time(SETTLE_S + CHECK_S)
        run.requester.close()
    assert run.problems == [f"--request-nodes cat: the last event was not sent: {NO_THREAD}"]
