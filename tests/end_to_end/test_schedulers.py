"""Agents in the environment of a job controller, as two hosts of one machine; the commands name no other node."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

from tests.support.jobs.single_node import Job
from tests.support.network.namespaces import loopback_hosts

HOSTS = loopback_hosts(2)
TELL = """
names = ("WORLD_SIZE", "RANK", "TORCHELASTIC_RUN_ID")
foreign = ("SLURM_PROCID", "SLURM_STEP_ID", "PROCESS_ID", "JAX_PROCESS_ID")
mark("env", " ".join([*(os.environ[name] for name in names), *(name for name in foreign if name in os.environ)]))
"""


def port_of(job: int) -> int:
    """Where the first task of a step of this job serves the store."""
    return 20480 + job * 31 % 8192


def is_free(port: int) -> bool:
    try:
        socket.create_server((HOSTS[0].address, port)).close()
    except OSError:
        return False
    return True


def test_two_tasks_of_a_slurm_step_are_one_job(tmp_path: Path) -> None:
    job = next(number for number in range(os.getpid(), 1 << 30) if is_free(port_of(number)))
    network, _, first = HOSTS[0].address.rpartition(".")
    step = {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": f"{network}.[{first},{int(first) + 1}]",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "0",
    }
    with ExitStack() as stack:
        agents = []
        for task, host in enumerate(HOSTS):
            own = tmp_path / host.name
            own.mkdir()
            # On one machine the way to the store does not say which host this is.
            env = {**step, "LAUNCHER_LOCAL_ADDR": host.address, "SLURM_PROCID": str(task), "SLURM_NODEID": str(task)}
            agents.append(stack.enter_context(Job(own, "--nproc-per-node=1", script=TELL, prefix=host.prefix, env=env)))
        ended = [agent.wait(120) for agent in agents]
    assert [one.exit_code for one in ended] == [0, 0], "\n".join(one.stderr for one in ended)
    assert sorted(path.read_text() for path in tmp_path.glob("*/env-*")) == [f"2 {rank} {job}.0" for rank in (0, 1)]
    assert f"meshrun: Slurm step {job}.0: this is node 0 of 2\n" in ended[0].stderr
    assert f"this agent serves the job's store at {HOSTS[0].address}:{port_of(job)}" in ended[0].stderr
    assert f"meshrun: Slurm step {job}.0: this is node 1 of 2, and node 0 is {HOSTS[0].address}\n" in ended[1].stderr
