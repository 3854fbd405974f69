"""The logs of a run, from pages of its nodes: each line once, in whatever way nodes answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.meshctl.live import logs, poller
from launcher.meshctl.live.local_files import read_rest
from launcher.meshctl.live.log_lines import LineMerger, OutputFile
from launcher.meshctl.live.logs import ALL_LINES, LogQuery, LogView
from launcher.meshctl.live.poller import NodePoller
from launcher.meshctl.live.source import RunGoneError
from launcher.model.errors import TemporaryError, UsageError
from launcher.views.questions.local_socket import SilentNodeError
from tests.support.run_reports import CALM, FakeSource, make_node, make_silent

GONE = RunGoneError("the agent of run exp on this machine has ended")


class Screen:
    """What is printed, and what is remarked upon."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.remarks: list[str] = []

    def write(self, lines: Iterable[str]) -> None:
        self.lines += lines

    def show(self, source: FakeSource, **query: object) -> Screen:
        LogView(NodePoller(source, self.remarks.append), LogQuery(**query), self.write).run()  # type: ignore[arg-type]
        return self


@pytest.fixture
def source(tmp_path: Path) -> FakeSource:
    found = FakeSource(CALM)
    for index in range(2):
        for rank in (2 * index, 2 * index + 1):
            path = found.add_file(
                f"m{index}", tmp_path / f"h{index}" / "attempt_0" / str(rank % 2) / "stdout.log", rank
            )
            path.write_text(f"hello\nI am {rank}\n")
    return found


def test_all_nodes_are_one_stream_of_which_a_part_can_be_asked_for(source: FakeSource) -> None:
    screen = Screen().show(source)
    assert screen.lines == ["[0-3] hello", "[0] I am 0", "[1] I am 1", "[2] I am 2", "[3] I am 3"]
    assert screen.remarks == []
    assert Screen().show(source, tail_lines=1).lines == [f"[{rank}] I am {rank}" for rank in range(4)]
    assert Screen().show(source, rank=2).lines == ["[2] hello", "[2] I am 2"]
    assert Screen().show(source, node="h1").lines == ["[2-3] hello", "[2] I am 2", "[3] I am 3"]
    with pytest.raises(UsageError, match=r"run exp has no node \.\./h1") as refused:
        Screen().show(source, node="../h1")
    assert refused.value.hint == "use one of h0-h1"
    with pytest.raises(UsageError, match="run exp has no rank 6") as refused:
        Screen().show(source, rank=6)
    assert refused.value.hint == "use a rank from 0 to 5"


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
            raise SilentNodeError("run exp: h1 has not answered in time")

    source.before_answer = refuse
    source.report = replace(source.report, nodes=(*source.report.nodes, make_silent("h7\x1b[2J")))
    screen = Screen().show(source)
    assert screen.lines == ["[0-1] hello", "[0] I am 0", "[1] I am 1"]
    assert screen.remarks == ["node 'h7\\x1b[2J' does not answer", "node h1 does not answer"]


def test_no_files_are_a_sentence(source: FakeSource) -> None:
    source.files = {"m0": [], "m1": []}
    with pytest.raises(TemporaryError, match="h0-h1: the workers' output is not kept here: set --log-dir"):
        Screen().show(source)


def follow_until(source: FakeSource, is_done: Callable[[], bool], **query: object) -> Screen:
    """Follow a run whose agents end once `is_done`."""
    screen = Screen()

    def end(member_id: str) -> None:
        if is_done():
            source.error = GONE

    source.before_answer = end
    return screen.show(source, follow=True, **query)


@pytest.fixture
def is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "PAUSE_S", 0.01)
    monkeypatch.setattr(poller, "REPORT_INTERVAL_S", 0.01)


@pytest.fixture
def log_dir(source: FakeSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log directory of h0, whose agent is on this machine."""
    monkeypatch.setattr(
        "launcher.meshctl.live.local_files.list_local_agents",
        lambda: [type("Agent", (), {"run_id": "exp", "node": "h0", "pid": "10"})],
    )
    source.report = replace(source.report, nodes=(make_node(0, log_dir=str(tmp_path / "h0")), make_node(1)))
    return tmp_path / "h0"


@pytest.mark.usefixtures("is_quick")
def test_who_follows_output_that_is_not_kept_is_told_so_once(source: FakeSource) -> None:
    source.files = {"m0": [], "m1": []}
    calls = iter(range(1000))
    screen = follow_until(source, lambda: next(calls) == 30)
    (told,) = [remark for remark in screen.remarks if "--log-dir" in remark]
    assert told.startswith("h0-h1: the workers' output is not kept here")


@pytest.mark.usefixtures("is_quick")
def test_workers_that_write_nothing_yet_are_not_remarked_upon(source: FakeSource) -> None:
    for file in source.files["m0"]:
        Path(file.path).write_text("")
    source.files["m1"] = []  # as of a spare node
    calls = iter(range(1000))
    (told,) = follow_until(source, lambda: next(calls) == 30).remarks
    assert told.startswith("run exp no longer has an agent on this machine")
    source.error, source.before_answer = None, lambda member_id: None
    assert Screen().show(source).lines == []


@pytest.mark.parametrize(
    ("query", "remark"),
    [
        ({"round": 7}, "h0-h1: round 7 has no output here; rounds with output: 1"),
        ({"stream": "stderr"}, "h0-h1: stderr is not kept here: set --redirects 3 or --tee 3 to keep both"),
        ({"rank": 5}, "h0-h1: rank 5 has no output here"),
    ],
)
def test_what_is_not_there_is_said(source: FakeSource, query: dict[str, object], remark: str) -> None:
    with pytest.raises(TemporaryError) as problem:
        Screen().show(source, **query)
    assert str(problem.value) == remark


@pytest.mark.usefixtures("is_quick")
def test_a_truncated_file_is_read_anew_with_a_remark(source: FakeSource) -> None:
    screen = Screen()
    calls = iter(range(1000))
    path = Path(source.files["m0"][0].path)

    def go_on(member_id: str) -> None:
        step = next(calls)
        if step == 20:
            path.write_text("new\n")
        elif step == 60:
            source.error = GONE

    source.before_answer = go_on
    screen.show(source, follow=True)
    assert screen.lines[-1] == "[0] new"
    assert screen.remarks[0] == "h0: the log of stdout of rank 0 was truncated; it is read from its beginning"
    assert len(screen.remarks) == 2


@pytest.mark.usefixtures("is_quick")
def test_rounds_too_short_to_be_seen_are_read_from_the_files_in_order(source: FakeSource, log_dir: Path) -> None:
    calls = iter(range(1000))

    def end() -> bool:
        if next(calls) != 30:
            return False
        for number, attempt in ((2, "attempt_1"), (4, "attempt_1.round_4")):
            for rank in (0, 1):
                path = log_dir / attempt / str(rank) / "stderr.log"
                path.parent.mkdir(parents=True)
                path.write_text(f"KeyError in {number}\n")
            workers = ", ".join(f'{{"rank": {rank}, "local_rank": {rank}}}' for rank in (0, 1))
            (log_dir / f"round_{number}.json").write_text(
                f'{{"round": {number}, "restart_count": 1, "ended_at": "x", "ended": "a KeyError", '
                f'"workers": [{workers}]}}'
            )
        return True

    source.report = replace(source.report, rounds=())
    screen = follow_until(source, end, rank=0)
    assert screen.lines == ["[0] hello", "[0] I am 0", "[0] KeyError in 2", "[0] KeyError in 4"]
    assert [remark for remark in screen.remarks if remark.startswith("round")] == ["round 2", "round 4"]
    assert "round 4 ended: a KeyError" in screen.remarks[-1]


@pytest.mark.usefixtures("is_quick")
def test_earlier_rounds_are_not_taken_for_unseen_ones(source: FakeSource, log_dir: Path) -> None:
    old = log_dir / "attempt_9" / "0" / "stdout.log"
    old.parent.mkdir(parents=True)
    old.write_text("of long ago\n")
    (log_dir / "round_1.json").write_text('{"round": 1, "restart_count": 9, "workers": [{"rank": 0, "local_rank": 0}]}')
    calls = iter(range(1000))
    assert "[0] of long ago" not in follow_until(source, lambda: next(calls) == 30).lines


@pytest.mark.usefixtures("is_quick")
def test_a_file_that_was_empty_until_the_end_is_read_by_its_round(source: FakeSource, log_dir: Path) -> None:
    path = Path(source.files["m0"][0].path)
    path.write_text("")
    calls = iter(range(1000))

    def end(member_id: str) -> None:
        if next(calls) == 30:
            path.write_text("first and last words\n")
            workers = '[{"rank": 0, "local_rank": 0}, {"rank": 1, "local_rank": 1}]'
            (log_dir / "round_2.json").write_text(f'{{"round": 2, "restart_count": 0, "workers": {workers}}}')
            source.error = GONE
            raise GONE

    source.before_answer = end
    screen = Screen().show(source, follow=True, node="h0")
    assert screen.lines == ["[1] hello", "[1] I am 1", "[0] first and last words"]


@pytest.mark.usefixtures("is_quick")
def test_a_long_rest_is_printed_in_parts(source: FakeSource, log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LINES_MAX", 1000)
    calls = iter(range(1000))
    most = 0

    def note_count(merger: LineMerger, file: OutputFile, data: str, now: float) -> None:
        nonlocal most
        add(merger, file, data, now)
        most = max(most, merger.line_count)

    def go_on(member_id: str) -> None:
        if member_id == "m0" and next(calls) == 30:
            for file in source.files["m0"]:
                os.replace(f"{file.path}.whole", file.path)
            source.error = GONE

    for file in source.files["m0"]:
        rest = "".join(f"step {index:06}\n" for index in range(60_000))
        Path(f"{file.path}.whole").write_text(Path(file.path).read_text() + rest)
    add = LineMerger.add
    monkeypatch.setattr(LineMerger, "add", note_count)
    source.before_answer = go_on
    screen = Screen().show(source, follow=True)
    assert screen.lines[-60_000:] == [f"[0-1] step {index:06}" for index in range(60_000)]
    assert most < 40_000


@pytest.mark.usefixtures("is_quick")
def test_what_comes_while_it_follows_and_the_last_lines_of_this_machine(source: FakeSource, log_dir: Path) -> None:
    screen = Screen()
    later = source.add_file("m0", log_dir / "attempt_1" / "0" / "stdout.log", 0, round=2)
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
            (log_dir / "round_2.json").write_text('{"round": 2, "ended_at": "x", "ended": "all is done"}')
            source.error = GONE

    source.before_answer = go_on
    screen.show(source, follow=True)
    own = [line for line in screen.lines if "later" in line]
    assert own == [f"[0] later {line}" for line in range(20)]
    assert {"[0] last words", "[0] too late for a page"} <= set(screen.lines)
    assert len(screen.lines) == len(set(screen.lines))
    assert screen.remarks[0] == "round 2"
    assert screen.remarks[-1] == (
        "run exp no longer has an agent on this machine: round 2 ended: all is done; "
        "the last lines of h1 may be missing"
    )


def test_a_run_that_is_gone_at_once_is_an_error(source: FakeSource) -> None:
    source.error = GONE
    with pytest.raises(TemporaryError, match="has ended"):
        Screen().show(source, follow=True)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "link/file", "a/../../secret", "", "a"])
def test_a_name_from_outside_does_not_lead_out_of_the_log_directory(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("secret")
    root = tmp_path / "logs"
    (root / "a").mkdir(parents=True)
    os.symlink(tmp_path / "elsewhere", root / "link")
    assert list(read_rest(str(root), name, 0)) == []


@pytest.mark.parametrize(
    ("content", "offset", "rest"),
    [(b"12345\xff\xc3\xa4\xc3", 5, "\ufffdä\ufffd"), (b"new", 4, "new"), (b"new", 3, "")],
    ids=["no text", "truncated", "nothing new"],
)
def test_the_rest_of_a_file_is_read(tmp_path: Path, content: bytes, offset: int, rest: str) -> None:
    (tmp_path / "x").write_bytes(content)
    assert "".join(read_rest(str(tmp_path), "x", offset)) == rest
