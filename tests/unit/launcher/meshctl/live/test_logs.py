"""The logs of a run, from pages of its nodes: each line once, in whatever way nodes answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from launcher.meshctl.live import poller
from launcher.meshctl.live.ended_run import read_folders
from launcher.meshctl.live.logs import ALL_LINES, LogView
from launcher.meshctl.live.poller import NodePoller
from launcher.model.errors import TemporaryError, UsageError
from launcher.views.questions.local_socket import RunGoneError, SilentNodeError
from launcher.views.requests import ReadLogs
from tests.support.run_reports import CALM, FakeSource, keep_events, make_event, make_silent, make_start

GONE = RunGoneError("run exp no longer has an agent on this machine")


class Screen:
    """What is printed, and what is remarked upon."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.remarks: list[str] = []

    def write(self, lines: Iterable[str]) -> None:
        self.lines += lines

    def show(self, source: FakeSource, *, node: str = "", follow: bool = False, **query: object) -> Screen:
        poller = NodePoller(source, self.remarks.append)
        LogView(poller, ReadLogs(**query), self.write, node, follow).run()  # type: ignore[arg-type]
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
def test_the_rest_is_read_from_the_files_each_line_once_and_of_short_rounds_too(
    source: FakeSource, tmp_path: Path
) -> None:
    """What comes while it follows, then all that the node of this machine has written since its last answer."""
    folder, first = tmp_path / "h0", Path(source.files["m0"][0].path)
    calls = iter(range(1000))

    def go_on(member_id: str) -> None:
        step = next(calls)
        if step == 20:  # the next round: with more lines than --tail
            later = source.add_file("m0", folder / "attempt_1" / "0" / "stdout.log", 0, round=2)
            later.write_text("".join(f"later {line}\n" for line in range(20)))
            source.live_round = 2
        elif step == 60:
            for path, text in ((first, "too late for a page"), (folder / "attempt_1/0/stdout.log", "last words")):
                with path.open("a") as file:
                    file.write(text)
            for number in (3, 4):
                path = folder / ("attempt_1.round_4" if number == 4 else "attempt_2") / "0" / "stderr.log"
                path.parent.mkdir(parents=True)
                path.write_text(f"KeyError in {number}\n" if number == 3 else "step\n" * 30_000)
            starts = [make_start(one, restart_count=at) for one, at in ((1, 0), (2, 1), (3, 2), (4, 1))]
            end = make_event("agent_ended", "h0", "08:05:00.000", exit_code=0, verdict="success", reason="", round=4)
            keep_events(folder, *starts, end)
            source.ended = read_folders({"m0": str(folder)})

    source.before_answer = go_on
    screen = Screen().show(source, follow=True)
    assert [line for line in screen.lines if "later" in line] == [f"[0] later {line}" for line in range(20)]
    for line in ("[0] last words", "[0] too late for a page", "[0] KeyError in 3"):
        assert screen.lines.count(line) == 1
    assert screen.lines.count("[0] step") == 30_000
    assert [remark for remark in screen.remarks if remark.startswith("round")] == ["round 2", "round 3", "round 4"]
    assert screen.remarks[-1] == (
        "run exp no longer has an agent on this machine: succeeded in round 4, exit code 0; "
        "the last lines of h1 may be missing"
    )


def test_a_run_that_is_gone_at_once_is_an_error(source: FakeSource) -> None:
    source.error = GONE
    with pytest.raises(TemporaryError, match="no longer has an agent"):
        Screen().show(source, follow=True)
