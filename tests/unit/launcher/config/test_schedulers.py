"""What a job controller's environment makes of a command: environments as controllers set them, to Config."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config import config, schedulers
from launcher.config.config import Config
from launcher.config.options.command_line import resolve_values
from launcher.config.schedulers import Detection, expand_hostlist
from launcher.config.scrub import list_step_variables
from tests.support.options import refusal, resolve

# What srun gives each task of `srun -N4 --ntasks-per-node=1`, here the one on the second node.
SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "8", "SLURM_JOB_NODELIST": "gpu[01-08]", "SLURM_NTASKS": "4",
    "SLURM_TASKS_PER_NODE": "1(x4)", "SLURM_STEP_ID": "2", "SLURM_STEP_NODELIST": "gpu[03-05,08]",
    "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_NODEID": "1", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "gpu04",
}  # fmt: skip
SLURM_FIRST = {**SLURM, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURMD_NODENAME": "gpu03"}
SLURM_PLACE = f"gpu03:{20480 + (4711 * 31 + 2) % 8192}"
# The script of sbatch and the shell of salloc: a job, but no step.
BATCH = {name: text for name, text in SLURM.items() if not name.startswith("SLURM_STEP")} | {"SLURM_PROCID": "0"}
ONE_NODE = {"SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "gpu03", "SLURM_NTASKS": "8"}
# PyTorchJob v1 with a Master and three Workers, in the second Worker. RANK and WORLD_SIZE count pods.
PYTORCH_JOB = {
    "PYTHONUNBUFFERED": "1", "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "4",
    "RANK": "2", "PET_MASTER_ADDR": "train-master-0", "PET_MASTER_PORT": "23456", "PET_NNODES": "4",
    "PET_NODE_RANK": "2", "PET_NPROC_PER_NODE": "8",
}  # fmt: skip
# The same kind with an elasticPolicy: Workers only.
ELASTIC = {
    "PYTHONUNBUFFERED": "1", "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "train-worker-0:23456",
    "PET_RDZV_ID": "train", "PET_RDZV_CONF": "timeout=900", "PET_NNODES": "2:4", "PET_MAX_RESTARTS": "5",
    "PET_NPROC_PER_NODE": "8",
}  # fmt: skip
JAX_JOB = {
    "PYTHONUNBUFFERED": "1", "COORDINATOR_ADDRESS": "train-worker-0", "COORDINATOR_PORT": "6666",
    "NUM_PROCESSES": "3", "PROCESS_ID": "2",
}  # fmt: skip
TRAINER = {
    "PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto", "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29500", "JOB_COMPLETION_INDEX": "1",
}  # fmt: skip
TRAINER_JAX = {
    "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0", "JAX_COORDINATOR_ADDRESS": "train-node-0-0.train:29500",
    "JAX_COORDINATOR_PORT": "29500", "JOB_COMPLETION_INDEX": "0",
}  # fmt: skip
XPK = {
    "NNODES": "2", "NODE_RANK": "1", "JAX_COORDINATOR_PORT": "6002", "JAX_COORDINATOR_ADDRESS": "w-slice-job-0-0.w",
    "JOB_COMPLETION_INDEX": "1",
}  # fmt: skip
LWS = {"LWS_LEADER_ADDRESS": "serve-1.serve.ai", "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "3"}
VOLCANO = {
    "VC_MASTER_HOSTS": "train-master-0.train", "VC_MASTER_NUM": "1",
    "VC_WORKER_HOSTS": "train-worker-0.train,train-worker-1.train", "VC_WORKER_NUM": "2",
    "MASTER_ADDR": "train-master-0.train", "MASTER_PORT": "23456", "WORLD_SIZE": "3", "RANK": "1",
}  # fmt: skip
# A task of SkyPilot 0.14 with num_nodes: 3, on its second node, as its task_codegen.py sets it. The task is one of
# SkyPilot's own Ray, of which it leaves the job's id.
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "3", "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8\n10.0.0.9",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8", "SKYPILOT_TASK_ID": "sky-2026-11-20-10-00-00-000000_train-5",
    "SKYPILOT_INTERNAL_JOB_ID": "5", "RAY_JOB_ID": "05000000",
}  # fmt: skip
SKYPILOT_PLACE = f"10.0.0.7:{20480 + 5 * 31}"
SKYPILOT_RUN = "sky-2026-11-20-10-00-00-000000_train-5"
INDEXED_JOB = {"JOB_COMPLETION_INDEX": "3"}


def nodes(made: Config) -> tuple[int, int | None]:
    return made.placement.nodes_min, made.placement.nodes_max


@pytest.mark.parametrize(
    ("environ", "count", "endpoint", "is_first", "run_id", "note"),
    [
        (SLURM, 4, SLURM_PLACE, False, "4711.2", "Slurm step 4711.2: this is node 1 of 4, and node 0 is gpu03"),
        (SLURM_FIRST, 4, SLURM_PLACE, True, "4711.2", "Slurm step 4711.2: this is node 0 of 4"),
        (JAX_JOB, 3, "train-worker-0:29400", False, "train-worker-0", "Kubeflow JAXJob: this is node 2 of 3, and ..."),
        (TRAINER_JAX, 2, "train-node-0-0.train:29400", True, "train-node-0-0.train",
         "Kubeflow Trainer (JAX): this is node 0 of 2"),
        (XPK, 2, "w-slice-job-0-0.w:29400", False, "w-slice-job-0-0.w", "xpk: this is node 1 of 2, and ..."),
        (LWS, 4, "serve-1.serve.ai:29400", False, "serve-1.serve.ai", "LeaderWorkerSet: this is node 3 of 4, and ..."),
        (VOLCANO, 3, "train-master-0.train:23456", False, "train-master-0.train",
         "Volcano: this is node 1 of 3, and ..."),
        (SKYPILOT, 3, SKYPILOT_PLACE, False, SKYPILOT_RUN,
         "SkyPilot: this is node 1 of 3, and node 0 is 10.0.0.7"),
        ({**SKYPILOT, "SKYPILOT_NODE_RANK": "0"}, 3, SKYPILOT_PLACE, True, SKYPILOT_RUN,
         "SkyPilot: this is node 0 of 3"),
        ({**SKYPILOT, "SKYPILOT_NODE_IPS": "fd00::7\nfd00::8\nfd00::9"}, 3,
         SKYPILOT_PLACE.replace("10.0.0.7", "[fd00::7]"), False, SKYPILOT_RUN,
         "SkyPilot: this is node 1 of 3, and node 0 is fd00::7"),
        ({**SLURM, **SKYPILOT}, 3, SKYPILOT_PLACE, False, SKYPILOT_RUN, "SkyPilot: this is node 1 of 3, and ..."),
    ],
)  # fmt: skip
def test_a_controller_that_says_everything_makes_one_job_of_its_nodes(
    environ: dict[str, str], count: int, endpoint: str, is_first: bool, run_id: str, note: str
) -> None:
    made = resolve(environ=environ)
    meeting = made.rendezvous
    assert meeting.network is not None
    assert (nodes(made), meeting.rdzv_backend, meeting.network.endpoints) == ((count, count), "c10d", (endpoint,))
    assert (meeting.network.is_host, meeting.run_id, meeting.node_rank) == (is_first, run_id, None)
    assert len(made.notes) == 1
    assert made.notes[0].startswith(note.removesuffix(" ..."))
    assert made.placement.origins["nodes_min"] in environ


@pytest.mark.parametrize(
    ("environ", "count", "rank", "address", "port"),
    [
        (PYTORCH_JOB, 4, 2, "train-master-0", 23456),
        ({**PYTORCH_JOB, "PET_NODE_RANK": "0", "RANK": "0"}, 4, 0, "train-master-0", 23456),
        (TRAINER, 2, 1, "train-node-0-0.train", 29500),
    ],
)
def test_schedulers_that_set_torchruns_variables_get_torchruns_meaning(
    environ: dict[str, str], count: int, rank: int, address: str, port: int
) -> None:
    made = resolve(environ=environ)
    meeting = made.rendezvous
    assert meeting.network is not None
    assert (nodes(made), meeting.rdzv_backend, meeting.node_rank) == ((count, count), "static", rank)
    assert (meeting.master_addr, meeting.master_port) == (address, port)
    assert (meeting.network.endpoints, meeting.network.is_host) == ((f"{address}:{port + 1}",), rank == 0)
    assert made.notes == ()


def test_an_elastic_job_of_kubeflow_is_elastic_here() -> None:
    made = resolve(environ=ELASTIC)
    meeting = made.rendezvous
    assert meeting.network is not None
    assert (nodes(made), meeting.rdzv_backend, meeting.network.endpoints) == ((2, 4), "c10d", ("train-worker-0:23456",))
    assert (meeting.network.is_host, meeting.run_id, made.workers.max_restarts) == (None, "train", 5)
    assert meeting.settings == {"start_timeout_s": 900.0}
    assert made.notes == ()


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({**BATCH, **ONE_NODE}, "no SLURM_STEP_ID: srun has not started this command"),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_NPROCS": "8", "SLURM_PROCID": "0", "SLURM_NNODES": "1"},
         "no SLURM_STEP_ID: srun has not started this command"),
        ({**SLURM, **ONE_NODE, "SLURM_STEP_ID": "4294967290"}, "it is interactive: a command in it runs once"),
        ({**SLURM, **ONE_NODE, "SLURM_PTY_PORT": "40123"}, "it is interactive: a command in it runs once"),
        ({**BATCH, "TORCHELASTIC_RUN_ID": "x"}, "TORCHELASTIC_RUN_ID is set: this is a worker of a launcher, which is "
         "not what the controller started"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "8(x4)", "JPY_PARENT_PID": "7"},
         "JPY_PARENT_PID is set: this is a notebook, which is not what the controller started"),
        ({**SLURM, "SLURM_JOB_NODELIST": "cpu[1-900]"}, "gpu03 is not one of the job's nodes: its variables are left "
         "from another job"),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0",
          "SLURM_STEP_TASKS_PER_NODE": "1"}, "it has one node"),
        ({**LWS, "LWS_GROUP_SIZE": "1", "LWS_WORKER_INDEX": "0"}, "it has one pod"),
        ({"VC_TASK_INDEX": "1", "VK_TASK_INDEX": "1", "VC_WORKER_HOSTS": "a,b"}, "VC_TASK_INDEX counts the pods of "
         "one task only; only the plug-in pytorch sets all that a job needs"),
        ({**SLURM, "OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_RANK is set: this is a task of mpirun, which is "
         "not what the controller started"),
        ({**JAX_JOB, "RAY_JOB_ID": "01"}, "RAY_JOB_ID is set: this is a task of Ray, which is not what the controller "
         "started"),
        ({**SKYPILOT, "RAY_RAYLET_PID": "77"}, "RAY_JOB_ID is set: this is a task of Ray, which is not what the "
         "controller started"),
        ({**SKYPILOT, "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_IPS": "10.0.0.7"},
         "the task has one node"),
    ],
)  # fmt: skip
def test_what_torchrun_runs_alone_runs_alone_and_says_nothing(environ: dict[str, str], reason: str) -> None:
    made = resolve(environ=environ)
    assert (nodes(made), made.rendezvous.network, made.rendezvous.run_id, made.notes) == ((1, 1), None, None, ())
    found = schedulers.detect(environ)
    assert found is not None
    assert (found.values, found.reason) == ({}, reason)


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x4)"}, "it has 8 tasks on a node"),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x3),2"}, "it has 2 tasks on a node"),
        ({"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_STEP_NUM_TASKS": "5"}, "it has 2 tasks on a node"),
        ({"SLURM_HET_SIZE": "2"}, "the job is heterogeneous: set --nnodes and --rdzv-endpoint"),
        ({"SLURM_STEP_NODELIST": "gpu[03"}, "SLURM_STEP_NODELIST cannot be read: 'gpu[03': a bracket that is never "
         "closed"),
        ({"SLURM_STEP_NODELIST": "a b"}, "SLURM_STEP_NODELIST begins with 'a b', which is not a host"),
        ({"SLURMD_NODENAME": "gpu03"}, "task 1 of 4 is on gpu03, and the first node of gpu[03-05,08] is gpu03: set "
         "--nnodes and --rdzv-endpoint"),
        ({"SLURM_PROCID": "4"}, "task 4 of 4 is on gpu04, and the first node of gpu[03-05,08] is gpu03: set --nnodes "
         "and --rdzv-endpoint"),
    ],
)  # fmt: skip
def test_a_step_that_is_no_job_of_one_task_a_node_runs_alone_and_says_why(environ: dict[str, str], reason: str) -> None:
    made = resolve(environ={**SLURM, **environ})
    has_tasks = reason.endswith("tasks on a node")
    outcome = "each of them runs alone, as rank 0 of a job of its own" if has_tasks else "this node runs alone"
    hint = "hint: start one task on each node with srun --ntasks-per-node=1, which makes one job of them"
    said = (f"Slurm step 4711.2: {reason}; {outcome}", *([hint] if has_tasks else []))
    assert (nodes(made), made.rendezvous.network, made.notes) == ((1, 1), None, said)
    for words in (["--standalone"], ["--nnodes=1"], ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h"]):
        assert resolve(*words, environ={**SLURM, **environ}).notes == ()


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_STEP_NUM_TASKS": "4"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_STEP_NUM_TASKS": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_STEP_NUM_TASKS": "", "SLURM_NTASKS": "8"}, 8),
    ],
)
@pytest.mark.parametrize("task", ["0", "1"])
def test_several_tasks_of_a_step_on_one_node_each_say_so(environ: dict[str, str], count: int, task: str) -> None:
    made = resolve(environ={**SLURM, "SLURM_STEP_NUM_NODES": "1", "SLURM_PROCID": task, **environ})
    assert (nodes(made), made.rendezvous.network) == ((1, 1), None)
    assert made.notes == (
        f"Slurm step 4711.2: it has {count} tasks on a node; each of them runs alone, as rank 0 of a job of its own",
        "hint: start one task on each node with srun --ntasks-per-node=1, which makes one job of them",
    )


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "2"},
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NNODES": "1"},
        {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1"},
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "5", "SLURM_STEP_ID": "0", "SLURM_NNODES": "2"},
    ],
)
def test_tasks_are_seen_in_incomplete_variables_too(environ: dict[str, str]) -> None:
    said, hint = resolve(environ={"SLURM_JOB_ID": "7", **environ}).notes
    assert said == "Slurm job 7: it has 4 tasks on a node; each of them runs alone, as rank 0 of a job of its own"
    assert hint.startswith("hint: start one task on each node")
    for more in ({"SLURM_PTY_PORT": "1"}, {"SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967291"}):
        notes = resolve(environ={"SLURM_JOB_ID": "7", **environ, **more}).notes
        assert not [note for note in notes if "tasks on a node" in note]


@pytest.mark.parametrize(
    ("environ", "controller", "reason"),
    [
        (BATCH, "Slurm job 4711", "no SLURM_STEP_ID: srun has not started this command"),
        ({"SLURM_JOB_ID": "7", "SLURM_NNODES": "8"}, "Slurm job 7",
         "no SLURM_STEP_ID: srun has not started this command"),
        ({**SLURM, "SLURM_STEP_ID": "4294967290"}, "Slurm step 4711.4294967290",
         "it is interactive: a command in it runs once"),
        ({**SLURM, "SLURM_PTY_PORT": "40123"}, "Slurm step 4711.2", "it is interactive: a command in it runs once"),
    ],
)  # fmt: skip
def test_a_command_run_once_for_several_nodes_says_so(environ: dict[str, str], controller: str, reason: str) -> None:
    said = (
        f"{controller}: {reason}, and the job has 8 nodes; this one runs alone",
        "hint: start one agent on each node with srun --ntasks-per-node=1",
    )
    assert resolve(environ=environ).notes == said
    for words in (["--standalone"], ["--nnodes=1"], ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]):
        assert resolve(*words, environ=environ).notes == ()


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"SKYPILOT_NODE_IPS": ""}, "variables are missing: SKYPILOT_NODE_IPS"),
        ({"SKYPILOT_NODE_IPS": "", "SKYPILOT_NUM_NODES": ""},
         "variables are missing: SKYPILOT_NUM_NODES, SKYPILOT_NODE_IPS"),
        ({"SKYPILOT_NODE_RANK": "3"}, "its variables cannot be read: SKYPILOT_NODE_RANK='3', SKYPILOT_NUM_NODES='3'"),
        ({"SKYPILOT_NUM_NODES": "0"}, "its variables cannot be read: SKYPILOT_NODE_RANK='1', SKYPILOT_NUM_NODES='0'"),
        ({"SKYPILOT_NUM_NODES": "4"}, "SKYPILOT_NUM_NODES is 4, and the addresses in SKYPILOT_NODE_IPS are 3"),
        ({"SKYPILOT_NODE_IPS": "10.0.0.7,10.0.0.8,10.0.0.9"},
         "SKYPILOT_NODE_IPS contains '10.0.0.7,10.0.0.8,10.0.0.9', which is not an address"),
        ({"SKYPILOT_NODE_IPS": "10.0.0.7\n$(hostname)\n10.0.0.9"},
         "SKYPILOT_NODE_IPS contains '$(hostname)', which is not an address"),
    ],
)  # fmt: skip
def test_variables_of_skypilot_that_make_no_job_are_reported_and_not_used(environ: dict[str, str], reason: str) -> None:
    made = resolve(environ={**SKYPILOT, **environ})
    assert (nodes(made), made.rendezvous.network) == ((1, 1), None)
    assert made.notes == (f"SkyPilot: {reason}; this node runs alone",)
    assert resolve("--standalone", environ={**SKYPILOT, **environ}).notes == ()


@pytest.mark.parametrize(
    ("name", "texts", "endpoint", "run_id"),
    [
        ("SKYPILOT_INTERNAL_JOB_ID", ("", "x", "\n", "1e3", "9" * 5000), "10.0.0.7:29400", SKYPILOT_RUN),
        ("SKYPILOT_TASK_ID", ("", "a/b", "a\nb", "\udcff"), SKYPILOT_PLACE, "10.0.0.7"),
    ],
)
def test_a_job_of_skypilot_without_a_usable_number_or_id_has_the_usual_ones(
    name: str, texts: tuple[str, ...], endpoint: str, run_id: str
) -> None:
    for text in texts:
        meeting = resolve(environ={**SKYPILOT, name: text}).rendezvous
        assert (meeting.rdzv_endpoint, meeting.run_id) == (endpoint, run_id)


@pytest.mark.parametrize(("environ", "name"), [(SKYPILOT, "SKYPILOT_INTERNAL_JOB_ID"), (SLURM, "SLURM_STEP_ID")])
def test_jobs_and_steps_that_share_nodes_meet_on_different_ports(environ: dict[str, str], name: str) -> None:
    ports = {resolve(environ={**environ, name: str(number)}).rendezvous.rdzv_endpoint for number in range(20)}
    assert len(ports) == 20


@pytest.mark.parametrize("rubbish", ["x", "-1", "1.5", "", " ", "1e3", "\udcff"])
def test_rubbish_in_the_variables_of_a_controller_stops_nobody(rubbish: str) -> None:
    for environ in (
        *({**SLURM, name: rubbish} for name in ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_NODES")),
        *({**SKYPILOT, name: rubbish} for name in ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES")),
        {**LWS, "LWS_GROUP_SIZE": rubbish},
        {**LWS, "LWS_LEADER_ADDRESS": f"{rubbish}/"},
        {"JOB_COMPLETION_INDEX": rubbish},
        {**VOLCANO, "MASTER_PORT": rubbish},
    ):
        assert resolve(environ=environ).rendezvous.network is None


def test_what_stands_in_a_variable_is_shown_on_one_line_and_not_at_length() -> None:
    every = "gpu03," * 10_000 + "gpu04"
    (note,) = resolve(environ={**SLURM, "SLURM_STEP_NODELIST": every, "SLURMD_NODENAME": "gpu03"}).notes
    assert note.startswith("Slurm step 4711.2: task 1 of 4 is on gpu03, and the first node of gpu03,gpu03,")
    assert len(note) < 300
    found = schedulers.detect({"SLURM_JOB_ID": "7\n8"})
    assert found is not None
    assert found.controller == "'Slurm job 7\\n8'"


@pytest.mark.parametrize(
    "words",
    [
        ["--standalone"],
        ["--nnodes=1"],
        ["--nnodes=1:1"],
        ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=7"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"],
        ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29400"],
        ["--rdzv-endpoint=[::1]:29400"],
        ["--master-addr=localhost"],
    ],
)
@pytest.mark.parametrize("environ", [SLURM, JAX_JOB, VOLCANO, SKYPILOT])
def test_who_asks_for_one_node_gets_one(words: list[str], environ: dict[str, str]) -> None:
    with_controller, without = resolve(*words, environ=environ), resolve(*words, environ={})
    assert with_controller == without
    assert with_controller.rendezvous.network is None


def test_the_variable_of_an_option_wins_over_the_controller_whose_values_name_theirs() -> None:
    for environ in ({"LAUNCHER_STANDALONE": "1"}, {"PET_STANDALONE": "1"}, {"PET_NNODES": "1"}):
        assert resolve(environ={**SLURM, **environ}).rendezvous.network is None
    environ = {**SLURM, "LAUNCHER_NNODES": "2:8"}
    given = schedulers.resolve(resolve_values({"rdzv-id": "mine"}, environ), environ).values
    assert (given["nnodes"].text, given["nnodes"].origin) == ("2:8", "LAUNCHER_NNODES")
    assert (given["rdzv-id"].text, given["rdzv-id"].origin) == ("mine", "--rdzv-id")
    assert (given["rdzv-endpoint"].text, given["rdzv-endpoint"].origin) == (SLURM_PLACE, "SLURM_STEP_NODELIST")
    given = schedulers.resolve(resolve_values({}, SLURM), SLURM).values
    assert str(given["nnodes"]) == "--nnodes 4 (from SLURM_STEP_NUM_NODES)"
    assert refusal("--target-nodes=5", **SLURM)[0] == "--target-nodes 5 is outside of --nnodes 4"


@pytest.mark.parametrize(
    ("words", "bounds", "backend", "endpoint", "rank", "master"),
    [
        (["--nnodes=2:4"], (2, 4), "c10d", SLURM_PLACE, None, None),
        (["--rdzv-backend=c10d"], (4, 4), "c10d", SLURM_PLACE, None, None),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=gpu03:29500"], (4, 4), "c10d", "gpu03:29500", None, None),
        (["--rdzv-backend=etcd", "--rdzv-endpoint=e:2379"], (4, 4), "etcd", "e:2379", None, None),
        (["--rdzv-endpoint=etcds://e"], (4, 4), "etcd", "e:2379", None, None),
        (["--rdzv-backend=static"], (4, 4), "static", "gpu03:29501", 1, ("gpu03", 29500)),
        (["--master-port=1234"], (4, 4), "static", "gpu03:1235", 1, ("gpu03", 1234)),
        (["--master-addr=head"], (4, 4), "static", "head:29501", 1, ("head", 29500)),
        (["--rdzv-endpoint=head:77"], (4, 4), "static", "head:78", 1, ("head", 77)),
        (["--nnodes=4", "--master-addr=head", "--node-rank=3"], (4, 4), "static", "head:29501", 3, ("head", 29500)),
    ],
)
def test_what_is_given_takes_along_what_belongs_to_it(
    words: list[str],
    bounds: tuple[int, int],
    backend: str,
    endpoint: str,
    rank: int | None,
    master: tuple[str, int] | None,
) -> None:
    made = resolve(*words, environ=SLURM)
    meeting = made.rendezvous
    assert meeting.network is not None
    assert (nodes(made), meeting.rdzv_backend, meeting.network.endpoints) == (bounds, backend, (endpoint,))
    assert (meeting.node_rank, meeting.run_id) == (rank, "4711.2")
    assert master is None or (meeting.master_addr, meeting.master_port) == master
    assert not [note for note in made.notes if "no effect" in note]


def test_a_grid_takes_all_nodes_and_a_pods_number_does_not_reach_its_workers() -> None:
    made = resolve("--mesh=dp=*,tp=2", environ=SLURM)
    assert (nodes(made), made.rendezvous.settings) == ((1, 4), {"target_nodes": 4})
    made = resolve("--mesh=dp=*,tp=2", "--target-nodes=3", environ=SLURM)
    assert (nodes(made), made.rendezvous.settings) == ((1, 4), {"target_nodes": 3})
    assert nodes(resolve("--mesh=dp=*,tp=2", "--nnodes=4", environ=SLURM)) == (4, 4)
    assert list_step_variables({**JAX_JOB, "PATH": "/bin"}) == tuple(sorted(set(JAX_JOB) - {"PYTHONUNBUFFERED"}))
    assert list_step_variables(TRAINER_JAX) == tuple(sorted(set(TRAINER_JAX) - {"JOB_COMPLETION_INDEX"}))
    assert list_step_variables(XPK) == tuple(sorted(set(XPK) - {"JOB_COMPLETION_INDEX"}))
    # Somebody's own variables of these names stay.
    assert list_step_variables({"NUM_PROCESSES": "4", "NODE_RANK": "0", "JAX_COORDINATOR_ADDRESS": "h:1"}) == ()
    assert list_step_variables(LWS) == ()


def test_an_indexed_job_has_its_node_rank_and_needs_only_the_master() -> None:
    made = resolve(environ=INDEXED_JOB)
    meeting = made.rendezvous
    assert (meeting.network, meeting.node_rank, len(made.notes)) == (None, 0, 2)  # see test_alone
    made = resolve("--nnodes=4", "--master-addr=train-0.train", environ=INDEXED_JOB)
    meeting = made.rendezvous
    assert (meeting.rdzv_backend, meeting.node_rank, meeting.master_addr) == ("static", 3, "train-0.train")
    assert made.notes == ()
    meeting = resolve(environ={**INDEXED_JOB, "PET_NNODES": "4", "PET_MASTER_ADDR": "train-0.train"}).rendezvous
    assert (meeting.rdzv_backend, meeting.node_rank) == ("static", 3)
    assert meeting.origins["node_rank"] == "JOB_COMPLETION_INDEX"
    made = resolve("--nnodes=4", "--rdzv-backend=c10d", "--rdzv-endpoint=train-0.train", environ=INDEXED_JOB)
    meeting = made.rendezvous
    assert (meeting.rdzv_backend, meeting.node_rank, made.notes) == ("c10d", None, ())
    assert refusal("--nnodes=4", **INDEXED_JOB) == (
        "--nnodes 4: several nodes need a rendezvous",
        "set --master-addr train-0.SERVICE: this pod of an Indexed Job has node rank 3",
    )


def test_every_controller_is_looked_for_where_its_variables_are_and_nowhere_else() -> None:
    assert [names for *_, names in schedulers.list_schedulers() if not {*names} & {*config.SCHEDULER_VARIABLES}] == []
    assert schedulers.detect({"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "10.0.0.1"}) is None
    assert schedulers.detect({"MASTER_ADDR": "h", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "0"}) is None
    assert schedulers.detect({}) is None


@pytest.mark.parametrize("environ", [PYTORCH_JOB, ELASTIC])
def test_who_sets_pet_variables_is_recognised_and_adds_nothing(environ: dict[str, str]) -> None:
    found = schedulers.detect(environ)
    assert isinstance(found, Detection)
    assert (found.controller, found.values) == ("Kubeflow PyTorchJob", {})
    assert set(found.known_by) <= set(environ)


def test_pods_of_a_trainjob_meet_at_the_masters_host() -> None:
    elastic = {**TRAINER, "LAUNCHER_NNODES": "2:4", "LAUNCHER_RDZV_BACKEND": "c10d"}
    host = TRAINER["PET_MASTER_ADDR"]
    for rank in ("0", "1"):
        found = resolve(environ={**elastic, "PET_NODE_RANK": rank})
        meeting = found.rendezvous
        assert meeting.network is not None
        assert (meeting.network.endpoints, meeting.network.is_host) == ((f"{host}:29400",), rank == "0")
        assert (found.placement.nodes_min, meeting.node_rank, found.notes) == (2, None, ())
    given = resolve(environ={**elastic, "LAUNCHER_RDZV_ENDPOINT": "other:1"})
    assert given.rendezvous.network is not None
    assert (given.rendezvous.network.endpoints, given.notes) == (("other:1",), ())
    static = resolve(environ=TRAINER)
    assert (static.rendezvous.node_rank, static.notes) == (int(TRAINER["PET_NODE_RANK"]), ())
    assert resolve(environ={**elastic, "LAUNCHER_NNODES": "1"}).rendezvous.network is None
    mistaken = schedulers.detect({**elastic, "PET_MASTER_ADDR": "x-node-0-0.a b"})
    assert mistaken is not None
    assert mistaken.values == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login1", ["login1"]),
        ("a,b,c", ["a", "b", "c"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[1,3,7-8]", ["gpu1", "gpu3", "gpu7", "gpu8"]),
        ("gpu[008-011]", ["gpu008", "gpu009", "gpu010", "gpu011"]),
        ("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"]),
        ("gpu[01,2-3]", ["gpu01", "gpu2", "gpu3"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("r[0-1]n[0-2]", ["r0n0", "r0n1", "r0n2", "r1n0", "r1n1", "r1n2"]),
        ("a[1-2],b,c[3]d[4-5]", ["a1", "a2", "b", "c3d4", "c3d5"]),
        ("[7-8]", ["7", "8"]),
    ],
)
def test_a_list_stands_for_its_hosts_in_order(text: str, names: list[str]) -> None:
    assert list(expand_hostlist(text)) == names


@pytest.mark.parametrize(
    "text",
    ["", ",", "a,", "a[", "a]", "a[1", "a[1]]", "a[[1]]", "a[]", "a[-3]", "a[3-]", "a[x]", "a[1-2-3]", "a[3-1]",
     "a[1 - 2]", "a[²]", "a[1-9999999999999999999]", "a\nb", "a[1]b["],
)  # fmt: skip
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        list(expand_hostlist(text))


def test_the_first_of_very_many_hosts_is_there_at_once() -> None:
    assert list(islice(expand_hostlist("n[0-999999999]r[0-999999999]"), 2)) == ["n0r0", "n0r1"]


@given(st.text(alphabet="ab[]-,0129 \n²", max_size=12))
def test_any_text_gives_names_or_an_error(text: str) -> None:
    try:
        names = list(islice(expand_hostlist(text), 100))
    except ValueError:
        return
    assert names
    assert all(names)
