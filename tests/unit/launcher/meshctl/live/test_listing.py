"""Which runs there are: those of this machine's agents, and those of the store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from launcher.meshctl.live import listing
from launcher.meshctl.live.listing import ListedRun, describe_runs, list_runs
from launcher.model.errors import TemporaryError
from launcher.views.questions.local_socket import LocalAgent
from launcher.views.run_view import RunView
from rendezvous import __version__
from rendezvous.records import RoundHistory, Spec
from rendezvous.stores.memory.store import MemoryStore
from tests.support.reasons import because
from tests.support.run_reports import REPORT
from tests.support.stores.stored_job import StoredJob

AGENT = LocalAgent(name="meshrun.0.41", run_id="exp-41", node="h0", version=__version__, script="/home/ann/train.py")


@pytest.fixture
def job() -> Iterator[StoredJob]:
    """A run that the store remembers as over."""
    store = MemoryStore(clock=lambda: 0.0)
    job = StoredJob(store)
    job.seal(1, 0)
    job.end("success")
    yield job
    store.close()


def test_an_agent_of_this_machine_knows_better_than_the_store(job: StoredJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of one machine has the name of an old one in the store."""
    answer: RunView | None = replace(REPORT, run_id="exp-41")

    class Source:
        def read_run(self) -> RunView:
            if answer is None:
                raise TemporaryError("run exp-41: no leader has answered")
            return answer

    def ask(agents: list[LocalAgent], limit_s: float) -> list[Source]:
        assert agents == [AGENT]
        return [Source()]

    monkeypatch.setattr(listing, "ask_runs", ask)
    (run,) = list_runs([AGENT], job.jobs)
    assert (run.now, run.is_in_store) == ("round 2 runs 4 ranks on 2 nodes", True)
    answer = None
    (run,) = list_runs([AGENT], job.jobs)
    assert run.run is not None
    assert run.run.phase == "ended", "the store is asked if the agent does not know"
    (run,) = list_runs([AGENT], None)
    assert (run.run, run.now) == (None, "run exp-41: no leader has answered")


def test_the_newest_run_is_first_and_a_long_sentence_stays_in_its_column() -> None:
    stopping = replace(REPORT, phase="stopping", stop_reason=because("a reason " * 9))
    runs = [
        ListedRun(run_id="exp-41", agents=(AGENT, replace(AGENT, name="meshrun.0.42")), run=stopping),
        ListedRun(run_id="exp-42", problem="no leader has answered"),
    ]
    wide = describe_runs(runs, has_store=True)
    assert wide.count("\n") == 2
    assert wide.splitlines()[0].split() == ["run", "script", "user", "started", "here", "now"]
    assert "train.py" in wide
    first, *rest = describe_runs(runs, has_store=True, width=80).splitlines()
    assert max(map(len, rest)) <= 80
    begin = first.index("now")
    assert {line[begin - 1] for line in rest} == {" "}
    seen = runs[0].encode()
    assert (seen["script"], seen["pids"], seen["phase"], seen["world_size"]) == (
        "/home/ann/train.py",
        [41, 42],
        "stopping",
        4,
    )
    assert (runs[1].encode()["phase"], runs[1].encode()["started_at"]) == ("", None)


def test_runs_are_listed_from_the_newest_on(job: StoredJob) -> None:
    for run_id, began_at in (("a", 100.0), ("b", 300.0), ("c", 200.0)):
        other = StoredJob(job.store, run_id)
        past = RoundHistory(round=1, world_size=1, node_count=1, coordinator="", reason=because("x"), began_at=began_at)
        other.put(other.keys.make_history_key(1), past)
        spec = Spec(mesh="dp=*", options={}, digest="x", script=f"{run_id}.py")
        other.put(other.keys.spec, spec)
    listed = list_runs([], job.jobs)
    assert [run.run_id for run in listed] == ["b", "c", "a", "exp-41"]
    assert [run.script for run in listed] == ["b.py", "c.py", "a.py", ""]
