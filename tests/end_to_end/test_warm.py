"""--preload and --standby as a user meets them: what workers have in common, what each has for itself, and the ends."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.end_to_end.test_c10d import C10D
from tests.support.jobs import call_targets
from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import Job, run, words
from tests.support.modules import needs
from tests.support.network.namespaces import free_port, loopback_hosts
from tests.support.processes.tree import children
from tests.support.waiting import wait_until

LIMIT_S = 180.0
# A module of the user's, beside the script, that writes down who has imported it.
COUNTED = """
import os
IMPORTED_BY = os.getpid()
with open("counted.log", "a") as file:
    file.write(f"{IMPORTED_BY}\\n")
"""
SLOW = """
import os, time
open("importing", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
"""
LEARN = """
import hashlib, random, uuid
import counted, numpy, torch
import torch.distributed as dist
from torch.utils.data import DataLoader

def own(index):
    return os.getpid(), torch.initial_seed()

class Numbers:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index, os.getpid()

if __name__ == "__main__":
    print(f"rank {RANK} of round {ROUND}")
    drawn = [random.random(), numpy.random.rand(), torch.rand(1, dtype=torch.float64).item(), uuid.uuid4()]
    dist.init_process_group("gloo")
    whole = torch.tensor([float(RANK)])
    dist.all_reduce(whole)
    if ROUND == 2 and RANK < 2:
        loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context=("fork", "spawn")[RANK])
        read = [(int(index), int(pid)) for index, pid in loader]
        assert [index for index, _ in read] == [0, 1, 2, 3] and os.getpid() not in {pid for _, pid in read}
    mark("learnt", " ".join(map(str, (os.getpid(), counted.IMPORTED_BY, int(whole), *drawn))))
    dist.barrier()
    if ROUND == 1:
        wait_for("never")
    dist.destroy_process_group()
    if RANK:
        os._exit(0)  # Python takes a second to take torch apart
"""


def put(directory: Path, **modules: str) -> None:
    for name, text in modules.items():
        (directory / f"{name}.py").write_text(text)


def importers(directory: Path) -> list[int]:
    """Who has imported the module that counts."""
    return [int(line) for line in (directory / "counted.log").read_text().split()]


def learnt(job: Job, round: int) -> list[list[str]]:
    return [text.split() for text in job.marks("learnt", range(8), round, LIMIT_S)]


@needs("torch")
def test_eight_workers_learn_in_two_rounds_from_one_import(tmp_path: Path) -> None:
    put(tmp_path, counted=COUNTED)
    options = words(
        "--preload=torch,numpy,counted --standby=1 --nproc-per-node=8 --max-restarts=1 --tee=3 --log-dir=logs"
    )
    with Job(tmp_path, *options, script=LEARN) as job:
        first = learnt(job, 1)
        (importer,) = importers(tmp_path)
        assert importer in children(job.supervisor_pid)
        assert "preloaded torch, numpy and counted in " in job.stderr
        pids = {int(words[0]) for words in first}
        wait_until(lambda: len(children(job.supervisor_pid)) == 8 + 8 + 1, LIMIT_S, "a set of workers that wait")
        waiting = set(children(job.supervisor_pid)) - pids - {importer}
        os.kill(int(first[3][0]), signal.SIGKILL)
        second = learnt(job, 2)
        assert {int(words[0]) for words in second} == waiting
        ended = job.wait(LIMIT_S)
        assert ended.exit_code == 0, ended.stderr
        assert len(importers(tmp_path)) == 2, "one for all, and the process that a DataLoader has spawned"
        assert {words[1] for words in first + second} == {str(importer)}
        assert [words[2] for words in first + second] == ["28"] * 16
        for place in range(3, 7):
            assert len({words[place] for words in first + second}) == 16, "workers drew the same number"
        lines = sorted(f"[default{rank}]:rank {rank} of round {round}" for rank in range(8) for round in (1, 2))
        assert sorted(ended.stdout.splitlines()) == lines
        for attempt in (0, 1):
            for rank in range(8):
                (file,) = tmp_path.glob(f"logs/*_*/attempt_{attempt}/{rank}/stdout.log")
                assert file.read_text() == f"rank {rank} of round {attempt + 1}\n"
        job.wait_until_nobody_is_left()


def test_a_failed_preload_ends_the_job_in_a_sentence_before_any_worker(tmp_path: Path) -> None:
    options = ("--preload=absent", "--nproc-per-node=2", "--max-restarts=3", f"--events={tmp_path}/events")
    with Job(tmp_path, *options, script="mark('ran')") as job:
        ended = job.wait()
        assert ended.exit_code == 2, ended.stderr
        *_, error, hint = ended.stderr.splitlines()
        assert error == "meshrun: error: --preload: module absent does not exist"
        assert hint.startswith("hint: ")
        assert "passed to the workers" not in ended.stderr  # there are none
        assert not list(tmp_path.glob("ran-*"))
        job.wait_until_nobody_is_left()
    assert json.loads((tmp_path / "events").read_text().splitlines()[-1])["event"] == "agent_ended"


def test_a_node_whose_preload_fails_does_not_wait_to_become_fit(tmp_path: Path) -> None:
    options = ("--preload=absent", "--health-check=false", "--framework=torch", "--nproc-per-node=2")
    job = run(tmp_path, *options, script="mark('ran')", exit_code=2)
    assert "error: --preload: module absent does not exist" in job.stderr


def test_a_node_whose_preload_fails_leaves_the_others(tmp_path: Path) -> None:
    one, other = loopback_hosts(2)
    endpoint = f"{one.address}:{free_port(one.address)}"
    options = (*C10D, "--nnodes=1:2", f"--rdzv-endpoint={endpoint}", "--join-grace=0")
    with Cluster(tmp_path, *options) as job:
        job.begin(one, workers=1)
        job.start(other, options=("--preload=absent",))
        (ended,) = job.wait(other, exit_code=2, limit_s=LIMIT_S)
        assert "error: --preload: module absent does not exist" in ended.stderr
        job.finish(one)


def test_a_signal_during_the_import_ends_everything_at_once(tmp_path: Path) -> None:
    put(tmp_path, slow=SLOW)
    with Job(tmp_path, "--preload=slow", "--nproc-per-node=2", script="mark('ran')") as job:
        wait_until((tmp_path / "importing").exists, LIMIT_S, "the import")
        job.send(signal.SIGINT)
        ended = job.wait(25)  # less than the grace of workers that ran
        assert ended.exit_code == 128 + signal.SIGINT, ended.stderr
        assert not list(tmp_path.glob("ran-*"))
        job.wait_until_nobody_is_left()


@needs("jax")
def test_workers_of_jax_end_at_once_with_their_own_exit_code(tmp_path: Path) -> None:
    script = """
import counted, jax
jax.distributed.initialize()
mark("met", f"{jax.process_count()} {counted.IMPORTED_BY} {sys.argv} {__file__}")
if RANK == 1:
    sys.exit(3)
time.sleep(3600)
"""
    put(tmp_path, counted=COUNTED)
    options = ("--framework=jax", "--preload=jax,counted", "--nproc-per-node=2")
    environ = {"JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "error::RuntimeWarning"}  # as of a fork beside threads
    job = run(tmp_path, *options, script=script, env=environ, exit_code=3, limit_s=LIMIT_S)
    assert "importing jax" not in job.stderr, "nothing to remark"
    (importer,) = importers(tmp_path)
    assert job.marks("met", range(2)) == [f"2 {importer} ['train.py'] {tmp_path}/train.py"] * 2


def test_a_function_in_workers_finds_its_modules_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import launcher

    put(tmp_path, counted=COUNTED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    found = launcher.launch(call_targets.loaded, "counted", nproc=2, preload=["counted"])
    assert found == {0: True, 1: True}
    assert len(importers(tmp_path)) == 1
    assert "preloaded counted in " in capfd.readouterr().err
