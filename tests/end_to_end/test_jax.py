"""JAX in several real processes on CPUs: scripts that know no launcher, restarts, failures, stops with time to save.

Each process of JAX takes seconds to start, so each job here shows several things.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.jobs.multi_node import Cluster
from tests.support.jobs.single_node import Job
from tests.support.modules import needs
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer

pytestmark = needs("jax")

LIMIT_S = 180.0
# As if the agent were one task of a Slurm step, started by mpirun inside it.
STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "elsewhere", "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://192.0.2.1:34911",
}  # fmt: skip
ON_CPU = {"JAX_PLATFORMS": "cpu"}
JAX = ("--framework=jax", "--max-restarts=1")
SUM = """
import jax
from jax.experimental.multihost_utils import process_allgather, reached_preemption_sync_point

def total():
    return int(process_allgather(jax.process_index() + 1).sum())
"""
SURVIVES = (
    SUM
    + """
if ROUND == 1:
    jax.distributed.initialize()
else:
    from launcher.worker import init_jax
    init_jax()
mark("sum", f"{total()} of {jax.process_count()}, {jax.process_index() == RANK}, {jax.default_backend()}")
if ROUND == 1 and RANK == 1:
    mark("waits")
    time.sleep(3600)
if ROUND == 1:
    total()
step = 0
while not reached_preemption_sync_point(step):
    step += 1
    time.sleep(0.01)
mark("saved", str(step))
if RANK == 2:
    time.sleep(3600)  # JAX swallows SIGTERM, and the others wait for this one
"""
)
FAILS = (
    SUM
    + """
mark("coordinator", os.environ["JAX_COORDINATOR_ADDRESS"])
jax.distributed.initialize()
total()
if RANK == 1 and ROUND == 1:
    sys.exit(3)
if RANK == 1:
    raise ValueError("the reason")
total()
"""
)


def test_a_script_survives_a_killed_worker_and_saves_when_it_is_stopped(tmp_path: Path) -> None:
    with Job(tmp_path, "--nproc-per-node=3", *JAX, script=SURVIVES, env=STEP | ON_CPU) as job:
        assert job.marks("sum", range(3), 1, LIMIT_S) == ["6 of 3, True, cpu"] * 3
        os.kill(int(job.mark("waits", 1, 1, LIMIT_S)), signal.SIGKILL)
        assert job.marks("sum", range(3), 2, LIMIT_S) == ["6 of 3, True, cpu"] * 3
        assert "rank 1" in job.stderr
        job.send(signal.SIGTERM)
        assert len(set(job.marks("saved", range(3), 2, LIMIT_S))) == 1
        job.send(signal.SIGINT)  # who does not want to wait for the end of --shutdown-timeout
        ended = job.wait(LIMIT_S)
        assert ended.exit_code == 143, ended.stderr
        assert "SIGINT again: the workers are killed" in ended.stderr
        job.wait_until_nobody_is_left()


def test_a_worker_that_fails_ends_the_round_at_once_with_its_exit_code(tmp_path: Path, etcd: EtcdServer) -> None:
    """JAX alone would wait at exit for five minutes, and end all by SIGABRT. Here on two nodes."""
    # Under this machine's own name: gloo, which JAX uses on CPUs, looks it up.
    hosts = [host._replace(prefix=()) for host in loopback_hosts(2)]
    options = ("--nproc-per-node=1", "--nnodes=2", *JAX)
    with Cluster(tmp_path, *options, etcd=etcd, script=FAILS, env=ON_CPU) as job:
        for host in hosts:
            job.start(host, options=("--node-name", host.name))
        ended = job.wait(exit_code=1, limit_s=LIMIT_S)
        assert any("failed with exit code 3" in one.stderr for one in ended)
        for one in ended:
            assert "exitcode  : 1 " in one.stderr
            assert "ValueError: the reason" in one.stderr
            assert "were not done after" not in one.stderr  # JAX's exit handlers were known by their names
        told = [path.read_text() for path in sorted(tmp_path.glob("*/coordinator-*"))]
        assert len(told) == 4
        assert len(set(told)) == 2  # one in each round
