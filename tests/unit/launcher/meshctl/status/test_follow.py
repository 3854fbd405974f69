"""Following a job: each change is shown, trouble with the store is told once, and it ends with the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest
from msgspec.structs import replace

from launcher.meshctl.live import local_files
from launcher.meshctl.live.source import RunGoneError
from launcher.meshctl.status import follow as following
from launcher.meshctl.status.follow import ChangePrinter, JsonLinesPrinter, draw_screen, follow, show_agents_status
from launcher.meshctl.status.state import Overview
from launcher.model.errors import TemporaryError, UsageError
from launcher.observe.node_report import RunReport
from launcher.observe.run_events import parse_time
from rendezvous import records
from rendezvous.errors import Compacted, StoreError
from rendezvous.stores.contract import Batch, Compare, Operation, TxnResult, Watch
from rendezvous.stores.memory.store import MemoryStore
from tests.support.run_reports import REPORT, FakeSource, make_round
from tests.support.stores.stored_job import PREFIX, StoredJob


class Patchy(MemoryStore):
    """Fails as many transactions, and loses as many watches, as it is told to."""

    failures = 0
    losses = 0

    def txn(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TxnResult:
        if self.failures:
            self.failures -= 1
            raise StoreError("nobody is there")
        return super().txn(compares, success, failure)

    def watch(
        self,
        key: str,
        *,
        prefix: bool = False,
        start_revision: int,
        on_batch: Callable[[Batch], None],
        on_lost: Callable[[StoreError], None],
    ) -> Watch:
        found = super().watch(key, prefix=prefix, start_revision=start_revision, on_batch=on_batch, on_lost=on_lost)
        if self.losses:
            self.losses -= 1
            found.cancel()
            on_lost(Compacted(7))
        return found


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[StoredJob]:
    monkeypatch.setattr(following, "REFRESH_S", 0.01)
    monkeypatch.setattr(following, "DEBOUNCE_S", 0.0)
    store = Patchy(clock=lambda: 0.0)
    job = StoredJob(store)
    job.join(0, 1)
    job.seal(1, 0, 1)
    yield job
    store.close()


def script(*steps: Callable[[], object]) -> tuple[list[str], Callable[[Overview], None]]:
    """What is seen, and a display that lets one thing happen for each phase that is new."""
    seen: list[str] = []
    rest = list(steps)

    def display(overview: Overview) -> None:
        if not seen or seen[-1] != overview.phase:
            seen.append(overview.phase)
            if rest:
                rest.pop(0)()

    return seen, display


def test_each_change_is_shown_until_the_job_has_ended(job: StoredJob) -> None:
    seen, display = script(lambda: job.stop(1, "a node was lost"), lambda: job.end("success"))
    last = follow(job.jobs, job.run_id, display)
    assert seen == ["running", "stopping", "ended"]
    assert last.verdict is not None


def test_a_store_that_fails_is_told_once_and_waited_for(job: StoredJob, capfd: pytest.CaptureFixture[str]) -> None:
    assert isinstance(job.store, Patchy)
    job.store.failures = 3
    seen, display = script(lambda: job.end("success"))
    follow(job.jobs, job.run_id, display)
    assert seen == ["running", "ended"]
    assert capfd.readouterr().err == "meshctl: the store does not answer, trying again: nobody is there\n"


def test_a_watch_that_is_lost_is_begun_again(job: StoredJob) -> None:
    assert isinstance(job.store, Patchy)
    job.store.losses = 2
    seen, display = script(lambda: job.stop(1, "a node was lost"), lambda: job.end("success"))
    follow(job.jobs, job.run_id, display)
    assert seen == ["running", "stopping", "ended"]


def test_another_job_under_the_same_name_is_followed(job: StoredJob) -> None:
    def begin_anew() -> None:
        StoredJob(job.store, job.run_id, "9f")

    def end() -> None:
        StoredJob(job.store, job.run_id, "9f").end("success")

    seen, display = script(begin_anew, end)
    assert follow(job.jobs, job.run_id, display).job_key == "9f"
    assert seen == ["running", "forming", "ended"]


def test_a_run_that_is_removed_ends_it_with_an_error(job: StoredJob) -> None:
    _, display = script(lambda: job.store.delete(records.make_current_key(PREFIX, job.run_id)))
    with pytest.raises(UsageError, match="run exp-41 is not there"):
        follow(job.jobs, job.run_id, display)


def test_a_log_has_a_line_for_each_change_and_none_for_what_stays(job: StoredJob) -> None:
    lines: list[str] = []
    log = ChangePrinter(lines.extend)
    log(job.overview())
    log(job.overview())
    job.stop(1, "a node was lost")
    log(job.overview())
    times, sentences = zip(*(line.split(" ", 1) for line in lines), strict=True)
    assert sentences == ("run exp-41, job 0a1b: round 1 runs 8 ranks on 2 nodes", "round 1 is stopped: a node was lost")
    assert all(map(parse_time, times))


def test_a_terminal_is_drawn_over_and_never_scrolls(
    job: StoredJob, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "4")
    monkeypatch.setattr(following, "describe", lambda overview, *, all_nodes: "one\ntwo\nthree\nfour\nfive")
    draw_screen(job.overview(), all_nodes=False)
    assert capsys.readouterr().out == "\x1b[Hone\x1b[K\ntwo\x1b[K\nthree\x1b[K\n\x1b[J"


def test_what_comes_from_nodes_does_not_move_the_cursor_or_forge_a_line(job: StoredJob) -> None:
    lines: list[str] = []
    log = ChangePrinter(lines.extend)
    log(job.overview())
    job.stop(1, "a\n2026-01-01T00:00:00.000Z round 9 is sealed\x1b[2J\u202e\u2028")
    log(job.overview())
    assert lines[1].endswith("is stopped: a\\n2026-01-01T00:00:00.000Z round 9 is sealed\\x1b[2J\\u202e\\u2028")


@pytest.mark.parametrize("printer", [ChangePrinter, JsonLinesPrinter])
def test_a_reader_that_has_gone_ends_it_also_while_nothing_changes(
    job: StoredJob, printer: type[ChangePrinter] | type[JsonLinesPrinter]
) -> None:
    calls: list[list[str]] = []

    def write(lines: Iterable[str]) -> None:
        calls.append(list(lines))
        if len(calls) > 1:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        follow(job.jobs, job.run_id, printer(write))
    assert (len(calls), calls[-1]) == (2, [])


def test_an_agent_that_does_not_answer_is_told_once_and_waited_for(
    job: StoredJob, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = make_round(2, ended_at=1.0, cause="failure", reason="rank 1 failed")
    answers: list[RunReport | TemporaryError] = [
        REPORT, TemporaryError("no agent that leads has answered"), TemporaryError("it has not answered in time"),
        replace(REPORT, rounds=(ended,)), TemporaryError("no agent that leads has answered"), RunGoneError("gone"),
    ]  # fmt: skip

    class Source(FakeSource):
        def read_run(self) -> RunReport:
            answer = answers.pop(0)
            if isinstance(answer, TemporaryError):
                raise answer
            return answer

    monkeypatch.setattr(local_files, "list_local_agents", list)
    lines: list[str] = []
    show_agents_status(Source(), lines.extend, watch=True, as_json=False, all_nodes=False)
    assert answers == []
    assert [line.split(" ", 1)[1] for line in lines] == [
        "run exp: round 2 runs 4 ranks on 2 nodes", "round 2 is stopped: rank 1 failed"
    ]  # fmt: skip
    assert capfd.readouterr().err.splitlines() == [
        *["meshctl: no agent that leads has answered; trying again"] * 2,
        "meshctl: run exp has no agent on this machine any more",
    ]
