"""`launcher.worker` in real workers: the groups of torch and of JAX, a stop that is asked for, a worker that hangs."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

from tests.support.jobs.multi_node import Cluster, meshctl
from tests.support.jobs.single_node import Job, run
from tests.support.modules import needs
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdServer

N1, N2 = loopback_hosts(2)
LIMIT_S = 180.0

TORCH = """
import torch
import torch.distributed as dist
from launcher.worker import mesh, torch_mesh

place, grid = mesh(), torch_mesh()
assert tuple(grid.get_coordinate()) == place.coordinates
assert tuple(grid["dp", "tp"].get_coordinate()) == place.coordinates[1:]
told = []
for name in place.group_names:
    total = torch.tensor([2**RANK])  # a sum of these says whose it is
    dist.all_reduce(total, group=grid[name].get_group())
    told.append(f"{name} {total.item()} {sum(2**rank for rank in place.group(name))}")
mark("sums", ", ".join(told))
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # Python takes a second to take torch apart
"""
JAX = """
# As if the agent were a task of a Slurm step, and nobody had taken that away: JAX would believe it.
os.environ.update(SLURM_JOB_ID="7", SLURM_STEP_NODELIST="nowhere", SLURM_NTASKS="1", SLURM_PROCID="0",
                  SLURM_LOCALID="0", JAX_NUM_CPU_DEVICES="2", JAX_PLATFORMS="cpu", LAUNCHER_WORKER_DEVICES="cpu:2")
from launcher.worker import init_jax, jax_mesh, mesh

init_jax(initialization_timeout=120)
init_jax()
try:
    jax_mesh()
except ValueError as refusal:
    mark("refused", str(refusal))
place, grid = mesh(), jax_mesh(local_axis="chip")
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

own = [index for index, device in np.ndenumerate(grid.devices) if device.process_index == RANK]
assert own == [(*place.coordinates, chip) for chip in (0, 1)], own
spec = PartitionSpec(*grid.axis_names)
ranks = jax.make_array_from_callback(
    (2, 2, 2), NamedSharding(grid, spec), lambda index: np.full((1, 1, 1), 2**RANK, np.int32)
)
told = [f"{grid.devices.shape}", f"process {jax.process_index()}"]
for axis in place.axes:
    add = jax.shard_map(lambda x: jax.lax.psum(x, axis), mesh=grid, in_specs=spec, out_specs=spec)
    totals = {int(shard.data.item()) for shard in jax.jit(add)(ranks).addressable_shards}
    told.append(f"{axis} {totals} {sum(2**rank for rank in place.group(axis))}")
mark("sums", ", ".join(told))
"""


def groups(strides: dict[str, tuple[int, int]], rank: int, axes: tuple[str, ...]) -> int:
    """The ranks of a group, as the sum of their powers of two. `strides`: axis -> (size, stride), written by hand."""
    first = rank - sum(rank // strides[axis][1] % strides[axis][0] * strides[axis][1] for axis in axes)
    steps = itertools.product(*(range(strides[axis][0]) for axis in axes))
    return sum(
        2 ** (first + sum(step * strides[axis][1] for step, axis in zip(each, axes, strict=True))) for each in steps
    )


@needs("torch")
def test_the_groups_of_a_device_mesh_are_those_that_were_declared(tmp_path: Path) -> None:
    options = ("--preload=torch", "--nproc-per-node=8", "--mesh=pp=2,dp=*,tp=2", "--traffic=tp=100,tp+pp=10:ring")
    job = run(tmp_path, *options, script=TORCH, limit_s=LIMIT_S)
    strides = {"pp": (2, 4), "dp": (2, 2), "tp": (2, 1)}
    for rank in range(8):
        names = [("pp",), ("dp",), ("tp",), ("pp", "tp")]
        sums = [("+".join(axes), groups(strides, rank, axes)) for axes in names]
        assert job.mark("sums", rank, 1) == ", ".join(f"{name} {total} {total}" for name, total in sums)


@needs("jax")
def test_a_jax_mesh_has_the_declared_axes_over_all_devices(tmp_path: Path) -> None:
    job = run(tmp_path, "--nproc-per-node=4", "--mesh=dp=2,tp=2", script=JAX, limit_s=LIMIT_S)
    for rank in range(4):
        assert job.mark("refused", rank, 1).startswith(
            "mesh dp=2,tp=2 has one device per worker, and each worker has 2"
        )
        totals = {axis: groups({"dp": (2, 2), "tp": (2, 1)}, rank, (axis,)) for axis in ("dp", "tp")}
        sums = [f"{axis} {{{total}}} {total}" for axis, total in totals.items()]
        assert job.mark("sums", rank, 1) == ", ".join(["(2, 2, 2)", f"process {rank}", *sums])


def test_workers_that_ask_save_on_a_stop_with_or_without_a_handler(tmp_path: Path) -> None:
    script = """
from launcher.worker import stop_requested
got = []
if RANK == 1:
    signal.signal(signal.SIGTERM, lambda *_: got.append("SIGTERM"))
assert not stop_requested()
mark("up")
while not stop_requested():
    time.sleep(0.01)
if RANK == 1:
    wait_for_signal(got, signal.SIGTERM)
mark("saved", " ".join(got) or "no signal")
"""
    with Job(tmp_path, "--nproc-per-node=2", script=script) as job:
        job.marks("up", range(2))
        job.send(signal.SIGTERM)
        assert job.wait().exit_code == 143
    assert job.marks("saved", range(2)) == ["no signal", "SIGTERM"]


def test_a_round_that_has_failed_asks_nobody_to_save(tmp_path: Path) -> None:
    script = """
from launcher.worker import stop_requested
if RANK == 1:
    wait_for("asked-0-1")
    sys.exit(3)
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append("SIGTERM"))
stop_requested()
mark("asked")
wait_for_signal(got, signal.SIGTERM)
mark("answer", str(stop_requested()))
"""
    job = run(tmp_path, "--nproc-per-node=2", script=script, exit_code=3)
    assert job.mark("answer", 0, 1) == "False"


def test_a_drain_of_one_node_makes_all_workers_leave_after_the_same_step(tmp_path: Path, etcd: EtcdServer) -> None:
    script = """
from launcher.worker import stop_requested
if ROUND == 2:
    mark("began", str(stop_requested()))
    sys.exit(0)

def all_reduce(word):
    mark(f"../step{step}", word)
    files = [f"../step{step}-{rank}-1" for rank in range(2)]
    for file in files:
        wait_for(file)
    return max(open(file).read() for file in files)

mark("began")
step = 0
while all_reduce(str(stop_requested())) == "False":
    beat()
    step += 1
mark("saved", str(step))
"""
    options = ("--nnodes=1:2", "--nproc-per-node=1", "--lease-ttl=15", "--join-grace=0.5")
    with Cluster(tmp_path, *options, etcd=etcd, script=script) as cluster:
        cluster.start(N1, N2, options=("--target-nodes=2",))
        cluster.wait_for_round(1, 2)
        first = {host: cluster[host].ranks(1)[0] for host in (N1, N2)}
        for host, rank in first.items():
            cluster[host].mark("began", rank, 1, LIMIT_S)
        meshctl("drain", cluster.run_id, N2.name, endpoint=etcd.endpoint).check_returncode()
        assert len({cluster[host].mark("saved", rank, 1) for host, rank in first.items()}) == 1
        cluster[N2].wait()
        assert cluster[N1].mark("began", 0, 2, LIMIT_S) == "False"
        cluster.wait(N1)


def test_a_hung_worker_is_replaced_only_if_it_has_sent_heartbeats(tmp_path: Path) -> None:
    script = """
from launcher.worker import heartbeat
if RANK == 0:  # never beats
    wait_for("again")
elif ROUND == 1:
    assert heartbeat()
    def hang():
        wait_for("never")
    hang()
else:
    mark("again")
    os.rename("again-1-2", "again")
"""
    options = ("--nproc-per-node=2", "--max-restarts=1", "--heartbeat-timeout=1", "--tee=2")
    job = run(tmp_path, *options, script=script)
    assert "showed no heartbeat for 1 s and was killed" in job.stderr
    assert "in hang" in job.stderr  # where it stood
    assert "rank 0 (pid" not in job.stderr


def test_a_worker_that_ignores_sigabrt_is_killed_and_the_report_says_why(tmp_path: Path) -> None:
    script = """
from launcher.worker import heartbeat
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGABRT])
heartbeat()
wait_for("never")
"""
    job = run(tmp_path, "--nproc-per-node=1", "--heartbeat-timeout=0.5", script=script, exit_code=137)
    assert "showed no heartbeat for 0.5 s and was killed" in job.stderr
