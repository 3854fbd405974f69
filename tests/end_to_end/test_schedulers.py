"""Agents in the environments of job controllers, as two hosts of one machine; the commands name no other node."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

from tests.support.jobs.single_node import Ended, Job
from tests.support.network.namespaces import loopback_hosts

N1, N2 = loopback_hosts(2)
TELL = """
names = ("WORLD_SIZE", "RANK", "GROUP_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID")
foreign = ("SLURM_PROCID", "SLURM_STEP_ID", "PROCESS_ID", "JAX_PROCESS_ID")
mark("env", " ".join(os.environ[name] for name in names))
mark("foreign", " ".join(name for name in foreign if name in os.environ) or "none")
"""


def run(directory: Path, *options: str, environs: list[dict[str, str]]) -> tuple[list[Ended], list[list[str]]]:
    """One agent on each host with its environment: how they ended, and what each one's worker found."""
    with ExitStack() as stack:
        jobs = []
        for host, environ in zip((N1, N2), environs, strict=True):
            own = directory / host.name
            own.mkdir()
            # On one machine the way to the store does not say which host this is.
            env = {"LAUNCHER_LOCAL_ADDR": host.address, **environ}
            jobs.append(stack.enter_context(Job(own, *options, script=TELL, prefix=host.prefix, env=env)))
        ended = [job.wait(120) for job in jobs]
        assert [one.exit_code for one in ended] == [0, 0], "\n".join(one.stderr for one in ended)
        words = []
        for job in jobs:
            rank = next(rank for rank in (0, 1) if job.has_mark("env", rank, 1))
            assert job.mark("foreign", rank, 1) == "none"
            words.append(job.mark("env", rank, 1).split())
        return ended, words


def are_free(*ports: int) -> bool:
    """Whether the first host can listen on these ports."""
    with ExitStack() as stack:
        try:
            for port in ports:
                stack.enter_context(socket.create_server((N1.address, port)))
        except OSError:
            return False
    return True


def test_two_tasks_of_a_slurm_step_are_one_job(tmp_path: Path) -> None:
    # The number of the job makes the port, so one is chosen whose port is free.
    job = next(number for number in range(os.getpid(), 1 << 30) if are_free(20480 + number * 31 % 8192))
    port = 20480 + job * 31 % 8192
    first, second = (int(host.address.rpartition(".")[2]) for host in (N1, N2))
    step = {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": f"{N1.address.rpartition('.')[0]}.[{first},{second}]",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_NTASKS": "2",
    }
    ended, words = run(
        tmp_path,
        "--nproc-per-node=1",
        environs=[
            {**step, "SLURM_PROCID": str(task), "SLURM_NODEID": str(task), "SLURM_LOCALID": "0"} for task in (0, 1)
        ],
    )
    assert sorted(word[1] for word in words) == ["0", "1"]
    assert [(word[0], word[4]) for word in words] == [("2", f"{job}.0")] * 2
    assert f"meshrun: Slurm step {job}.0: this is node 0 of 2\n" in ended[0].stderr
    assert f"this agent serves the job's store at {N1.address}:{port}" in ended[0].stderr
    assert f"meshrun: Slurm step {job}.0: this is node 1 of 2, and node 0 is {N1.address}\n" in ended[1].stderr
