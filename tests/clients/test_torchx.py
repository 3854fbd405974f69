"""TorchX on this machine (`local_cwd`): the component of the examples, and its own `dist.ddp` by way of the shim."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.running import PROGRAMS
from tests.support.jobs.examples import EXAMPLES, LIMIT_S
from tests.support.jobs.single_node import Command
from tests.support.network.namespaces import free_port

pytest.importorskip("torchx")

OURS, STOCK = f"{EXAMPLES / 'torchx_ddp.py'}:ddp", "dist.ddp"
WHO = str(PROGRAMS / "who_started.py")
FAILS = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("the loss is not a number")
time.sleep(600)
"""
ARGUMENTS = ["--name", "a 'quoted' text", "$HOME"]
TRAINS = f"""
import sys, torch, torch.distributed as dist
assert sys.argv[1:] == {ARGUMENTS}, sys.argv
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shim first on PATH, and a home directory for what TorchX writes there."""
    shims = tmp_path / "shims"
    shims.mkdir()
    monkeypatch.setenv("PATH", f"{shims}:{sys.prefix}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    # So long does a node wait for another that could not start.
    monkeypatch.setenv("LAUNCHER_START_TIMEOUT", "60")
    (shims / "torchrun").symlink_to(Path(sys.prefix) / "bin" / "meshrun")


def submit(directory: Path, component: str, *words: str, exit_code: int = 0) -> str:
    """All that `torchx run` prints until the job has ended: the lines of all nodes, and its status if it failed."""
    command = (f"{sys.prefix}/bin/torchx", "run", "-s", "local_cwd", "--wait", "--log", component, *words)
    with Command(directory, command, os.environ) as run:
        ended = run.wait(LIMIT_S)
        assert ended.exit_code == exit_code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr


@pytest.mark.parametrize("component", [OURS, STOCK], ids=["ours", "stock"])
def test_one_node_starts_its_workers_by_meshrun(component: str, tmp_path: Path) -> None:
    output = submit(tmp_path, component, "-j", "1x2", "--script", WHO)
    assert "[default0]:rank 0 of 2 by meshrun\n" in output
    assert "[default1]:rank 1 of 2 by meshrun\n" in output
    assert "Job finished: SUCCEEDED" in output


@pytest.mark.parametrize("component", [OURS, STOCK], ids=["ours", "stock"])
def test_the_exception_of_a_worker_is_in_the_jobs_status(component: str, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    output = submit(tmp_path, component, "-j", "1x2", "--script", "fails.py", exit_code=1)
    status = output.partition("structured_error_msg:")[2]
    assert "message: 'ValueError: the loss is not a number'" in status
    assert "py_callstack" in status


def run_two_nodes(component: str, directory: Path) -> None:
    (directory / "train.py").write_text(f"{TRAINS}exec(open({WHO!r}).read())\n")
    words = ("-j", "2x2", "--rdzv_port", str(free_port("127.0.0.1")), "--script", "train.py")
    output = submit(directory, component, *words, "--", *ARGUMENTS)
    assert all(f"rank {rank} of 4 by meshrun\n" in output for rank in range(4)), output


def test_two_nodes_on_one_host_have_names_of_their_own_by_our_component(tmp_path: Path) -> None:
    run_two_nodes(OURS, tmp_path)


def test_two_nodes_on_one_host_run_by_the_component_of_torchx(tmp_path: Path) -> None:
    run_two_nodes(STOCK, tmp_path)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"TORCHX_JOB_ID": "local_cwd://torchx/app", "TORCHX_RANK0_HOST": "localhost"}, "localhost"),
        ({"TORCHX_JOB_ID": "kubernetes://torchx/ns:app", "TORCHX_RANK0_HOST": "localhost"}, os.uname().nodename),
        ({"TORCHX_JOB_ID": "aws_batch://torchx/queue:app"}, os.uname().nodename),
        ({"TORCHX_JOB_ID": "kubernetes://torchx/ns:app", "TORCHX_RANK0_HOST": "app-train-0.app"}, "app-train-0.app"),
    ],
    ids=["this machine", "first pod", "first node of AWS Batch", "another pod"],
)
def test_the_first_node_is_named_as_others_can_reach_it(tmp_path: Path, environ: dict[str, str], place: str) -> None:
    """As the schedulers of TorchX set their variables. The name of the variable is the local one here."""
    from torchx.runner import get_runner

    with get_runner() as runner:
        plan = runner.dryrun_component(OURS, ["-j", "2x2", "-m", "my.train"], "local_cwd", {"log_dir": str(tmp_path)})
    meshrun = tmp_path / "shims" / "meshrun"
    meshrun.write_text('#!/bin/sh\necho "$@"\n')
    meshrun.chmod(0o755)
    command = plan.request.role_params["train"][0].args
    assert not re.search(r"\$\([\w.-]+\)", " ".join(command)), "Kubernetes would replace it by a variable of that name"
    called = subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert called.stdout.startswith(f"--rdzv-endpoint {place}:29500 --rdzv-id train-")


def test_restarts_a_mesh_and_servers_of_ones_own_reach_the_agents(tmp_path: Path) -> None:
    """TorchX says what each replica would run."""
    from torchx.runner import get_runner

    words = ["-j", "2:4x2", "--max_restarts", "3", "--mesh", "dp=*,tp=2", "--rdzv_backend", "etcd"]
    words += ["--rdzv_endpoint", "h1:2379,h2:2379", "-m", "my.train", "--", "--lr", "0.1"]
    with get_runner() as runner:
        plan = runner.dryrun_component(OURS, words, "local_cwd", {"log_dir": str(tmp_path)})
    replicas = plan.request.role_params["train"]
    assert len(replicas) == 4
    run_id = replicas[1].args[2]
    assert replicas[1].args == [
        "meshrun", "--rdzv-id", run_id, "--nnodes", "2:4", "--nproc-per-node", "2", "--tee", "3",
        "--max-restarts", "3", "--mesh", "dp=*,tp=2", "--node-name", "train-1", "--rdzv-backend", "etcd",
        "--rdzv-endpoint", "h1:2379,h2:2379", "-m", "my.train", "--lr", "0.1",
    ]  # fmt: skip
