"""The logs of a run, from pages of its nodes: each line once, in whatever way nodes answer."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.meshctl.live import poller
from launcher.meshctl.live.local_files import read_rest
from launcher.meshctl.live.logs import ALL_LINES, LogQuery, LogView
from launcher.meshctl.live.source import RunGoneError
from launcher.model.errors import TemporaryError, UsageError
from launcher.observe.node_report import ReadLogs
from tests.support.run_reports import REPORT, FakeSource, make_node

GONE = RunGoneError("the agent of run exp on this machine has ended")


class Screen:
    """What is printed, and what is remarked upon."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.remarks: list[str] = []

    def write(self, lines: Iterable[str]) -> None:
        self.lines += lines

    def show(self, source: FakeSource, **query: object) -> Screen:
        LogView(source, LogQuery(**query), self.write, self.remarks.append).run()  # type: ignore[arg-type]
        return self


@pytest.fixture
def source(tmp_path: Path) -> FakeSource:
    found = FakeSource(replace(REPORT, missing=()))
    for index in range(2):
        for rank in (2 * index, 2 * index + 1):
            path = found.add_file(
                f"m{index}", tmp_path / f"h{index}" / "attempt_0" / str(rank % 2) / "stdout.log", rank
            )
            path.write_text(f"hello\nI am {rank}\n")
    return found


def test_all_nodes_in_one(source: FakeSource) -> None:
    screen = Screen().show(source)
    assert screen.lines == ["[0-3] hello", "[0] I am 0", "[1] I am 1", "[2] I am 2", "[3] I am 3"]
    assert screen.remarks == []


def test_the_last_lines_only(source: FakeSource) -> None:
    assert Screen().show(source, tail_lines=1).lines == [f"[{rank}] I am {rank}" for rank in range(4)]


def test_one_rank_or_one_node(source: FakeSource) -> None:
    assert Screen().show(source, rank=2).lines == ["[2] hello", "[2] I am 2"]
    assert Screen().show(source, node="h1").lines == ["[2-3] hello", "[2] I am 2", "[3] I am 3"]
    with pytest.raises(UsageError, match=r"run exp has no node \.\./h1") as refused:
        Screen().show(source, node="../h1")
    assert refused.value.hint == "its nodes are h0-h1"
    with pytest.raises(UsageError, match="run exp has no rank 6") as refused:
        Screen().show(source, rank=6)
    assert refused.value.hint == "its ranks are 0 to 5"


def test_many_pages_are_every_line_once(source: FakeSource, tmp_path: Path) -> None:
    for member_id, files in source.files.items():
        for file in files:
            Path(file.path).write_text("".join(f"{member_id} {file.rank} line {line}\n" for line in range(5000)))
    failures = iter(range(1))

    def lose_some(member_id: str) -> None:
        if member_id == "m1" and next(failures, None) is not None:
            raise TemporaryError("h1 has not answered in time")

    source.before_answer = lose_some
    lines = Screen().show(source, tail_lines=ALL_LINES).lines
    assert len(lines) == len(set(lines)) == 20_000
    for index in range(2):
        for rank in (2 * index, 2 * index + 1):
            own = [line for line in lines if line.startswith(f"[{rank}] ")]
            assert own == [f"[{rank}] m{index} {rank} line {line}" for line in range(5000)]


def test_a_node_that_does_not_answer_is_named(source: FakeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(member_id: str) -> None:
        if member_id == "m1":
            raise TemporaryError("h1 has not answered in time")

    source.before_answer = refuse
    source.report = replace(source.report, missing=("h7\x1b[2J",))
    screen = Screen().show(source)
    assert screen.lines == ["[0-1] hello", "[0] I am 0", "[1] I am 1"]
    assert screen.remarks == ["node 'h7\\x1b[2J' does not answer", "node h1 does not answer"]


def test_no_files_are_a_sentence(source: FakeSource) -> None:
    source.files = {"m0": [], "m1": []}
    with pytest.raises(TemporaryError, match="h0-h1: the workers' output is not kept here: --log-dir"):
        Screen().show(source)


def test_what_comes_while_it_follows_and_the_last_lines_of_this_machine(
    source: FakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "PAUSE_S", 0.01)
    monkeypatch.setattr(poller, "REPORT_INTERVAL_S", 0.01)
    monkeypatch.setattr(
        "launcher.meshctl.live.local_files.list_local_agents",
        lambda: [type("Agent", (), {"run_id": "exp", "node": "h0", "pid": "10"})],
    )
    source.report = replace(
        source.report, nodes=(make_node(0, log_dir=str(tmp_path / "h0")), make_node(1, log_dir=str(tmp_path / "h1")))
    )
    screen = Screen()
    later = source.add_file("m0", tmp_path / "h0" / "attempt_1" / "0" / "stdout.log", 0, round=2)
    source.files["m0"].pop()
    new = source.files["m0"][:]
    calls = iter(range(1000))

    def go_on(member_id: str) -> None:
        step = next(calls)
        if step == 20:  # the next round: with more lines than --tail
            later.write_text("".join(f"later {line}\n" for line in range(20)))
            source.add_file("m0", later, 0, round=2)
            source.live_round = 2
        elif step == 60:
            with open(new[0].path, "a") as file:
                file.write("too late for a page")
            with later.open("a") as file:
                file.write("last words")
            (tmp_path / "h0" / "round_2.json").write_text('{"round": 2, "ended_at": "x", "reason": "all is done"}')
            source.error = GONE

    source.before_answer = go_on
    screen.show(source, follow=True)
    own = [line for line in screen.lines if "later" in line]
    assert own == [f"[0] later {line}" for line in range(20)]
    assert {"[0] last words", "[0] too late for a page"} <= set(screen.lines)
    assert len(screen.lines) == len(set(screen.lines))
    assert screen.remarks[0] == "round 2"
    assert screen.remarks[-1] == (
        "run exp has no agent on this machine any more: round 2 ended: all is done; the last lines of h1 may be missing"
    )


def test_a_run_that_is_gone_at_once_is_an_error(source: FakeSource) -> None:
    source.error = GONE
    with pytest.raises(TemporaryError, match="has ended"):
        Screen().show(source, follow=True)


def test_tail_is_for_what_was_there_at_the_beginning(source: FakeSource) -> None:
    Screen().show(source, tail_lines=3)
    first = {node: request for node, request in reversed(source.requests) if isinstance(request, ReadLogs)}
    assert {request.tail_lines for request in first.values() if isinstance(request, ReadLogs)} == {3}


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "link/file", "a/../../secret", "", "a"])
def test_a_name_from_outside_does_not_lead_out_of_the_log_directory(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("secret")
    root = tmp_path / "logs"
    (root / "a").mkdir(parents=True)
    os.symlink(tmp_path / "elsewhere", root / "link")
    assert list(read_rest(str(root), name, 0)) == []


def test_the_rest_of_a_file_with_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345\xff\xc3\xa4\xc3")
    assert "".join(read_rest(str(tmp_path), "x", 5)) == "\ufffdä\ufffd"
