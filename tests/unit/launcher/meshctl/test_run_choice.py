"""Which run is meant by a word, on this machine and in a store."""

from __future__ import annotations

import os

import pytest
from msgspec.structs import replace

from launcher.meshctl import run_choice
from launcher.meshctl.run_choice import StoredRun, choose_agent, choose_stored, describe_run, group_by_job
from launcher.model.errors import UsageError
from launcher.views.questions.local_socket import LocalAgent
from rendezvous import __version__


def make_agent(run_id: str, pid: int, job: str = "") -> LocalAgent:
    return LocalAgent(name=f"meshrun.0.{pid}", run_id=run_id, node="h0", version=__version__, job=job)


def test_a_run_is_found_by_its_name_and_without_one_if_it_is_the_only_one() -> None:
    agents = [make_agent("exp", 41), make_agent("41", 50)]
    assert choose_agent(agents, "41") == agents[1]
    assert choose_agent(agents, "50") == agents[1]
    assert choose_agent(agents[:1], "41") == agents[0]
    assert choose_agent(agents, "60") is None
    agents = [make_agent("exp", 41), make_agent("exp", 42)]
    assert choose_agent(agents, None) == agents[0]
    assert choose_agent([], None) is None
    with pytest.raises(UsageError, match="2 jobs run on this machine"):
        choose_agent([*agents, make_agent("other", 43)], None)


def test_two_jobs_are_told_apart_by_a_pid_and_agents_asked_at_their_own_name() -> None:
    agents = [make_agent("exp", 41, "j1"), make_agent("exp", 42, "j2"), make_agent("exp", 43, "j1")]
    with pytest.raises(UsageError, match="2 jobs of that name run on this machine") as refused:
        choose_agent(agents, "exp")
    assert "exp (pid 41), exp (pid 42)" in str(refused.value.hint)
    assert choose_agent(agents, "42") == agents[1]
    training = replace(make_agent("exp-41", 44, "j4"), script="/home/ann/train.py")
    for name in ("train.py", "/home/ann/train.py", "exp-4", "exp-41"):
        assert choose_agent([*agents, training], name) == training
    assert choose_agent([*agents, training], "rain") is None
    with pytest.raises(UsageError) as refused:
        choose_agent([agents[1], training], None)
    assert refused.value.hint == "add a run, a script or an agent's pid: exp (pid 42), exp-41 (train.py, pid 44)"
    agent = LocalAgent(name="meshrun.1000.42.7", run_id="exp", node="h0", version="9")
    assert (agent.uid, agent.pid) == (1000, "42")


def test_for_root_its_own_runs_come_before_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    agents = [
        make_agent("exp", 41),
        LocalAgent(name="meshrun.1000.42", run_id="exp", node="h0", version="9", job="j2"),
    ]
    assert choose_agent(agents, None) == choose_agent(agents, "exp") == agents[0]
    assert choose_agent(agents[1:], None) == choose_agent(agents, "42") == agents[1]


def test_an_agent_without_a_job_is_of_its_runs_first() -> None:
    agents = [make_agent("exp", 41), make_agent("exp", 42, "j1"), make_agent("other", 43)]
    assert group_by_job(agents) == [[agents[1], agents[0]], [agents[2]]]
    assert choose_agent(agents, "exp") == agents[1]


def test_a_run_of_a_store_is_found_by_its_id_its_script_or_how_its_id_begins() -> None:
    runs = [StoredRun("exp-41", "/a/train.py"), StoredRun("exp-4", "/b/eval.py"), StoredRun("train.py", "other.py")]
    for word, found in [("exp-4", 1), ("exp-41", 0), ("eval.py", 1), ("/b/eval.py", 1), ("train.py", 2), ("tra", 2)]:
        assert choose_stored(runs, word) is runs[found], word
    assert choose_stored(runs, "rain") is choose_stored(runs, "") is None


def test_what_changes_a_run_is_not_done_to_one_whose_id_only_begins_so() -> None:
    runs = [StoredRun("exp-41", "train.py"), StoredRun("4711-big")]
    for word in ("exp-4", "47"):
        assert choose_stored(runs, word, takes_beginning=False) is None
        assert choose_stored(runs, word) is not None
    assert choose_stored(runs, "train.py", takes_beginning=False) is runs[0]
    agents = [make_agent("exp-41", 44)]
    assert choose_agent(agents, "exp-4", takes_beginning=False) is None
    assert choose_agent(agents, "44", takes_beginning=False) is agents[0]


def test_a_run_that_goes_on_is_meant_before_those_that_have_ended() -> None:
    runs = [StoredRun("exp-1", "train.py", has_ended=True), StoredRun("exp-2", "train.py")]
    assert choose_stored(runs, "train.py") is runs[1]
    with pytest.raises(UsageError, match="2 runs in the store fit"):
        choose_stored([runs[0], runs[0]._replace(run_id="exp-3")], "train.py")


def test_where_two_fit_scripts_times_and_pids_tell_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(run_choice, "format_clock", lambda at, now: f"@{at:g}")
    runs = [
        StoredRun("exp-42", "/a/train.py", 20.0),
        StoredRun("exp-41", "/b/train.py", 10.0),
        StoredRun("other", "eval.py"),
    ]
    for word in ("train.py", "exp"):
        with pytest.raises(UsageError, match=f"2 runs in the store fit run {word}") as refused:
            choose_stored(runs, word)
        assert refused.value.hint == (
            "add the whole id: exp-41 (train.py, started @10), exp-42 (train.py, started @20)"
        )
    agent = replace(make_agent("exp", 44), script="/c/train.py", started="1970-01-01T00:00:30.000Z")
    assert describe_run(agent, 0.0) == "exp (train.py, started @30, pid 44)"
