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
from rendezvous.stores.memory.store import MemoryStore
from tests.support.run_reports import REPORT
from tests.support.stores.stored_job import StoredJob

AGENT = LocalAgent(name="meshrun.0.41", run_id="exp-41", node="h0", version=__version__)


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
    assert (run.phase, run.now, run.is_in_store) == ("running", "round 2 runs 4 ranks on 2 nodes", True)
    answer = None
    (run,) = list_runs([AGENT], job.jobs)
    assert run.phase == "ended", "the store is asked if the agent does not know"
    (run,) = list_runs([AGENT], None)
    assert (run.phase, run.now) == ("", "run exp-41: no leader has answered")


def test_a_long_sentence_stays_in_its_column() -> None:
    runs = [
        ListedRun(run_id="exp-41", phase="running", now="round 2 is being stopped: " + "a reason " * 9, pids=(41, 42)),
        ListedRun(run_id="exp-42", phase="running", now="round 1 runs"),
    ]
    wide = describe_runs(runs, has_store=True)
    assert wide.count("\n") == 2
    first, *rest = describe_runs(runs, has_store=True, width=60).splitlines()
    assert max(map(len, rest)) <= 60
    begin = first.index("now")
    assert {line[begin - 1] for line in rest} == {" "}
    assert " ".join(line[begin:] for line in rest) == " ".join(line[begin:] for line in wide.splitlines()[1:])
