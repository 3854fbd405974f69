"""meshctl status, stop, drain, clean: the commands themselves, against a real etcd that holds a job without agents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rendezvous.stores.contract import Store
from rendezvous.stores.etcd.store import EtcdStore
from tests.cli.running import Call, Outcome
from tests.support.stores.etcd import EtcdServer
from tests.support.stores.stored_job import StoredJob
from tests.support.waiting import wait_until

RUN = "idle-41"
"""No agent that another test starts has this id: commands ask agents of this machine first."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer("3.4", tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def store(server: EtcdServer) -> Iterator[Store]:
    store = EtcdStore([server.endpoint])
    yield store
    store.delete("/", prefix=True)
    store.close()


@pytest.fixture
def job(store: Store) -> StoredJob:
    job = StoredJob(store, RUN)
    job.join(0, 1, locality=(("spine", "s1"), ("leaf", "l1")))
    job.join(2, locality=(("spine", "s1"), ("leaf", "l2")))
    job.seal(1, 0, 1)
    job.lead(0)
    job.spares({2: "the world is full"})
    return job


@pytest.fixture
def meshctl(server: EtcdServer, call: Call) -> Call:
    def called(*words: str, **environ: str) -> Outcome:
        return call("meshctl", *words, environ={"LAUNCHER_RDZV_ENDPOINT": server.endpoint, **environ})

    return called


def test_status_shows_the_job(meshctl: Call, job: StoredJob) -> None:
    outcome = meshctl("status", "idle-41")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[:2] == ["run       idle-41, job 0a1b", "now       round 1 runs 8 ranks on 2 nodes"]
    assert "place     all nodes are on spine s1" in lines
    assert "h0    running  0-3    l1" in outcome.out
    assert "h2    spare    -      l2" in outcome.out
    assert all(" s ago" in line for line in lines if line.startswith(("h0", "h1", "h2")))


def test_status_as_json_is_one_object(meshctl: Call, server: EtcdServer, job: StoredJob) -> None:
    outcome = meshctl("status", "--json", "--rdzv-endpoint", f"http://{server.endpoint}", "idle-41")
    found = json.loads(outcome.out)
    assert (outcome.code, outcome.err, found["phase"], found["leader"]) == (0, "", "running", "h0")
    assert 0 <= found["nodes"][0]["silent_s"] <= 5


def test_status_without_a_run_lists_those_in_the_store(meshctl: Call, server: EtcdServer, job: StoredJob) -> None:
    outcome = meshctl("status", "--rdzv-endpoint", server.endpoint)
    assert (outcome.code, outcome.err) == (0, "")
    # Other tests of this machine may have runs in the list, too, which make its columns wider.
    lines = [line.split() for line in outcome.out.splitlines()]
    assert [" ".join(line[-8:]) for line in lines if line[0] == "idle-41"] == ["round 1 runs 8 ranks on 2 nodes"]
    found = json.loads(meshctl("status", "--json", "--rdzv-endpoint", server.endpoint).out)
    (listed,) = [run for run in found["runs"] if run["is_in_store"]]
    assert (listed["run_id"], listed["phase"]) == ("idle-41", "running")


def test_the_variables_of_meshrun_name_the_store_and_its_options(meshctl: Call, store: Store) -> None:
    other = StoredJob(store, RUN, prefix="team")
    other.join(0)
    other.seal(1, 0)
    assert "round 1 runs 4 ranks" in meshctl("status", "idle-41", LAUNCHER_RDZV_PREFIX="team").out
    assert "kept: run idle-41" in meshctl("clean", "--all", LAUNCHER_RDZV_PREFIX="team").out
    assert "no run is under /meshrun/" in meshctl("stop", "idle-41").err
    for variable, value, sentence in (
        ("LAUNCHER_RDZV_CONF", "cert=/no/such", "LAUNCHER_RDZV_CONF names a certificate but no key"),
        ("LAUNCHER_RDZV_BACKEND", "static", "static has no store"),
    ):
        outcome = meshctl("drain", "idle-41", "h1", **{variable: value})
        assert outcome.code == 2
        assert sentence in outcome.err


def test_a_signed_job_needs_its_secret(meshctl: Call, store: Store, tmp_path: Path) -> None:
    signed = StoredJob(store, RUN, secret=b"sesame")
    signed.join(0)
    signed.seal(1, 0)
    secret = tmp_path / "secret"
    secret.write_text("sesame\n")
    outcome = meshctl("status", "idle-41", LAUNCHER_JOB_SECRET_FILE=str(secret))
    assert "round 1 runs 4 ranks on 1 node" in outcome.out
    assert "unread" not in outcome.out
    secret.write_text("open\n")
    outcome = meshctl("status", "idle-41", LAUNCHER_JOB_SECRET_FILE=str(secret))
    assert outcome.code == 0
    assert "was not written by an agent that knows the job's secret" in " ".join(outcome.out.split())


def test_a_request_reaches_the_leader_and_its_answer_comes_back(server: EtcdServer, job: StoredJob) -> None:
    program = os.path.join(os.path.dirname(sys.executable), "meshctl")
    command = [program, "stop", "idle-41", "--rdzv-endpoint", server.endpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        found = wait_until(lambda: job.store.get(job.keys.commands, prefix=True).items, 20, "the request")
        job.end("stopped", 143, "stopped at the request of ada")
        job.store.delete(found[0].key)
        said, _ = process.communicate(timeout=20)
    assert said == ("run idle-41 was stopped in round 1, exit code 143: stopped at the request of ada\n")


def test_clean_says_what_it_removes(meshctl: Call, job: StoredJob, store: Store) -> None:
    ended = StoredJob(store, "old", "9f")
    ended.seal(1, 0)
    ended.end("success")
    says = "kept: run idle-41, job 0a1b: it has 3 live members\n{}: run old, job 9f, 6 keys\n"
    assert meshctl("clean", "--all", "--dry-run") == (0, says.format("would remove"), "")
    assert meshctl("clean", "--all") == (0, says.format("removed"), "")
    assert meshctl("clean", "--all").out == "kept: run idle-41, job 0a1b: it has 3 live members\n"
    assert meshctl("clean", "old").code == 2
