"""What a worker is told: torchrun's variables and the mesh."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from launcher.config.scrub import list_step_variables
from launcher.model.errors import UsageError
from launcher.model.node import Device, Slot
from launcher.ranks.environments.contract import WorkerAssignment
from tests.support.sections import make_torch


def gpus(*indices: int) -> Slot:
    devices = tuple(Device(kind="nvidia", index=index, id=f"GPU-{index}", visible=str(index)) for index in indices)
    return Slot(index=0, devices=devices)


PLACE = WorkerAssignment(
    run_id="job", round=5, restart_count=2, max_restarts=3, rank=26, world_size=224, local_rank=2, local_world_size=8,
    group_rank=3, group_world_size=28, role="trainer", role_rank=26, role_world_size=224, master_addr="10.0.0.9",
    master_port=29400, mesh_axes=("pp", "dp", "tp"), mesh_shape=(4, 7, 8), mesh_coordinates=(0, 3, 2), slot=gpus(2),
    error_file="/logs/attempt_2/2/error.json",
)  # fmt: skip


def variables(parent: dict[str, str] | None = None, place: WorkerAssignment = PLACE, **job: Any) -> dict[str, str]:
    return make_torch(**job).variables(place, parent or {})


def test_the_interface_and_the_signals_that_the_user_names_are_passed_on() -> None:
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    assert not set(names) & variables().keys()
    found = variables(interface="eth1")
    assert [found[name] for name in names] == ["eth1", "=eth1"]
    assert "NCCL_SOCKET_IFNAME" not in variables({"NCCL_SOCKET_IFNAME": "ib"}, interface="eth1")
    assert variables(signals_to_handle=("SIGTERM", "SIGUSR1"))["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGUSR1"


def test_a_worker_is_told_its_place_in_torchruns_words_and_in_the_mesh() -> None:
    assert variables() == {
        "RANK": "26", "WORLD_SIZE": "224", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "3",
        "GROUP_WORLD_SIZE": "28", "ROLE_NAME": "trainer", "ROLE_RANK": "26", "ROLE_WORLD_SIZE": "224",
        "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "29400",
        "TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_ERROR_FILE": "/logs/attempt_2/2/error.json",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1",
        "LAUNCHER_ROUND": "5", "LAUNCHER_WORKER_DEVICES": "nvidia:1",
        "MESH_GROUPS": "pp,dp,tp", "MESH_AXES": "pp,dp,tp", "MESH_SHAPE": "4,7,8", "MESH_COORDS": "0,3,2",
        "MESH_PP_RANK": "0", "MESH_PP_SIZE": "4", "MESH_DP_RANK": "3", "MESH_DP_SIZE": "7", "MESH_TP_RANK": "2",
        "MESH_TP_SIZE": "8",
    }  # fmt: skip


def test_what_the_user_set_and_who_works_alone_keep_their_threads_and_gpus() -> None:
    told = variables({"OMP_NUM_THREADS": "7", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "CUDA_VISIBLE_DEVICES": "4,5,6"})
    assert not {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"} & told.keys()
    assert told["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert "OMP_NUM_THREADS" not in variables(place=replace(PLACE, local_world_size=1))


@pytest.mark.parametrize(
    ("parent", "visible"),
    [({}, "2"), ({"CUDA_VISIBLE_DEVICES": "4,5, 6"}, "6"), ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c"}, "GPU-c")],
)
def test_virtual_local_rank_shows_each_worker_its_own_gpu(parent: dict[str, str], visible: str) -> None:
    told = variables(parent, virtual_local_rank=True)
    assert (told["LOCAL_RANK"], told["CUDA_VISIBLE_DEVICES"]) == ("0", visible)


def test_virtual_ranks_beyond_the_gpus_are_refused_and_cpus_hear_nothing_of_them() -> None:
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES=0,1, which has none for local rank 2"):
        variables({"CUDA_VISIBLE_DEVICES": "0,1"}, virtual_local_rank=True)
    cpus = tuple(Device(kind="cpu", index=index, id=f"cpu{index}", visible=str(index)) for index in range(2))
    assert "CUDA_VISIBLE_DEVICES" not in variables(place=replace(PLACE, slot=Slot(index=0, devices=cpus)))


@pytest.mark.parametrize(("is_virtual", "local_rank"), [(False, "2"), (True, "0")])
def test_a_worker_with_several_gpus_sees_only_those(is_virtual: bool, local_rank: str) -> None:
    told = variables({"CUDA_VISIBLE_DEVICES": "0,1"}, replace(PLACE, slot=gpus(4, 5)), virtual_local_rank=is_virtual)
    assert (told["LOCAL_RANK"], told["CUDA_VISIBLE_DEVICES"]) == (local_rank, "4,5")


def test_variables_of_a_foreign_step_and_of_the_agents_metrics_are_not_the_workers() -> None:
    step = [
        "MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_hnp_uri", "PMIX_RANK",
        "PMI_RANK", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_TASK_PID",
    ]  # fmt: skip
    job = ["OMPI_MCA_btl", "PATH", "SLURM_GPUS_ON_NODE", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TOPOLOGY_ADDR"]
    assert list_step_variables([*reversed(step), *job]) == tuple(step)
    own = ("LAUNCHER_METRICS_FILE", "LAUNCHER_METRICS_PORT")
    assert list_step_variables([*own, "LAUNCHER_LOG_DIR"]) == own
