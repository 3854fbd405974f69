"""Environments and command lines that speak of others, and an agent that would run alone in silence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config import config
from launcher.extensions.hints import alone
from tests.support.options import resolve

PODS = {"MASTER_ADDR": "train-0.train", "MASTER_PORT": "23456", "WORLD_SIZE": "2", "RANK": "1"}
MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_RANK": "2"}
VERTEX = '{"cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]}, "task": {"type": "worker", "index": 1}}'
ALONE = "runs alone, as rank 0 of a job of its own"


def meet(nodes: object, place: str = "HOST") -> str:
    return f"--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint {place} to run them as one job"


@pytest.mark.parametrize(
    ("environ", "read", "hint"),
    [
        (PODS, "WORLD_SIZE=2: this is one of 2 pods or processes", meet(2, "train-0.train:29400")),
        ({**PODS, "RANK": "0"}, "WORLD_SIZE=2: this is one of 2 pods or processes", meet(2, "train-0.train:29400")),
        # The master's pod of Kubeflow's older operators.
        ({**PODS, "RANK": "0", "MASTER_ADDR": "localhost", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
         "WORLD_SIZE=2: this is one of 2 pods or processes", meet(2)),
        ({**PODS, "MASTER_ADDR": "127.0.0.1"}, "WORLD_SIZE=2: this is one of 2 pods or processes", meet(2)),
        ({**PODS, "AZUREML_NODE_COUNT": "3"}, "AZUREML_NODE_COUNT=3: this is one of 3 nodes of an Azure ML job",
         meet(3, "train-0.train:29400")),
        ({"JOB_COMPLETION_INDEX": "1"},
         "JOB_COMPLETION_INDEX=1: this is one of at least 2 pods of an Indexed Job", meet("N")),
        ({"JOB_COMPLETION_INDEX": "7"},
         "JOB_COMPLETION_INDEX=7: this is one of at least 8 pods of an Indexed Job", meet("N")),
        ({"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"},
         'SM_HOSTS=["algo-1","algo-2"]: this is one of 2 hosts of a SageMaker job', meet(2)),
        ({"AWS_BATCH_JOB_NUM_NODES": "4", "AWS_BATCH_JOB_NODE_INDEX": "0"},
         "AWS_BATCH_JOB_NUM_NODES=4: this is one of 4 nodes of an AWS Batch job", meet(4)),
        ({"AWS_BATCH_JOB_NUM_NODES": "4", "AWS_BATCH_JOB_NODE_INDEX": "2",
          "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.4"},
         "AWS_BATCH_JOB_NUM_NODES=4: this is one of 4 nodes of an AWS Batch job", meet(4, "10.0.0.4:29400")),
        ({"VC_TASK_INDEX": "0", "VC_MASTER_NUM": "1", "VC_WORKER_NUM": "3", "VC_WORKER_HOSTS": "a,b,c"},
         "VC_MASTER_NUM=1, VC_WORKER_NUM=3: this is one of 4 pods of a Volcano job", meet(4)),
        ({"TPU_WORKER_HOSTNAMES": "t-0,t-1,t-2,t-3", "TPU_WORKER_ID": "1"},
         "TPU_WORKER_HOSTNAMES=t-0,t-1,t-2,t-3: this is one of 4 hosts of a TPU slice", meet(4)),
        ({"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "0"},
         "MEGASCALE_NUM_SLICES=2: this is one of 2 TPU slices", meet(2)),
        ({"CLOUD_TPU_TASK_ID": "3"}, "CLOUD_TPU_TASK_ID=3: this is one of at least 4 hosts of a TPU slice", meet("N")),
        ({"LWS_GROUP_SIZE": "4", "LWS_LEADER_ADDRESS": "serve-1.serve"},
         "LWS_GROUP_SIZE=4: this is one of 4 pods of a LeaderWorkerSet", meet(4, "serve-1.serve:29400")),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"}, "JAX_NUM_PROCESSES=2: this is one of 2 JAX processes",
         meet(2)),
        ({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}, "NNODES=2: this is one of 2 nodes",
         meet(2, "10.0.0.1:29400")),
        ({"MLP_WORKER_NUM": "2", "MLP_ROLE_INDEX": "0", "MLP_WORKER_0_HOST": "w0"},
         "MLP_WORKER_NUM=2: this is one of 2 nodes of a job", meet(2, "w0:29400")),
        ({"PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINER_ID": "0"},
         "PADDLE_TRAINERS_NUM=2: this is one of 2 Paddle trainers", meet(2)),
        ({"TF_CONFIG": VERTEX}, f"TF_CONFIG={VERTEX}: this is one of 3 tasks of a cluster", meet(3)),
        ({"PMIX_RANK": "1"}, "PMIX_RANK=1: this is one of at least 2 tasks of mpirun", meet("N")),
    ],
)  # fmt: skip
def test_who_runs_alone_among_others_is_told_so(environ: dict[str, str], read: str, hint: str) -> None:
    made = resolve(environ=environ)
    assert (made.placement.nodes_max, made.rendezvous.network) == (1, None)
    assert made.notes == (f"{read}, and each {ALONE}", f"hint: add {hint}, or --standalone if this is intended")
    for words in (["--standalone"], ["--nnodes=1"], ["--nnodes", "1:1"], ["--rdzv-endpoint=localhost:0"]):
        assert not [note for note in resolve(*words, environ=environ).notes if ALONE in note]


@pytest.mark.parametrize(
    ("environ", "sentence", "hint"),
    [
        (MPI, "OMPI_COMM_WORLD_SIZE=4: mpirun has started 4 tasks",
         "start meshrun once, without mpirun: --nproc-per-node 4 starts the workers"),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "OMPI_COMM_WORLD_SIZE=4: mpirun has started 4 tasks",
         f"add {meet(4)}"),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE=4: mpirun has started 4 tasks",
         f"start one task on each node (mpirun --map-by ppr:1:node), and add {meet('N')}"),
        ({"PMI_SIZE": "2", "PMI_RANK": "0", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
         "PMI_SIZE=2: mpiexec has started 2 tasks", f"add {meet(2)}"),
        ({"PMI_SIZE": "2", "PMI_RANK": "1"}, "PMI_SIZE=2: mpiexec has started 2 tasks",
         f"start one task on each node (mpiexec -ppn 1), and add {meet('N')}"),
        ({"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_LOCAL_SIZE": "2"},
         "MV2_COMM_WORLD_SIZE=2: mpirun has started 2 tasks",
         "start meshrun once, without mpirun: --nproc-per-node 2 starts the workers"),
        ({"JSM_NAMESPACE_SIZE": "12", "JSM_NAMESPACE_RANK": "5", "JSM_NAMESPACE_LOCAL_SIZE": "6"},
         "JSM_NAMESPACE_SIZE=12: jsrun has started 12 tasks",
         f"start one task on each node (jsrun --rs_per_host 1 --tasks_per_rs 1), and add {meet('N')}"),
        ({"FLUX_JOB_SIZE": "2", "FLUX_TASK_RANK": "0"}, "FLUX_JOB_SIZE=2: flux run has started 2 tasks",
         f"start one task on each node (flux run --tasks-per-node=1), and add {meet('N')}"),
        ({"HOROVOD_SIZE": "4", "HOROVOD_RANK": "1", "HOROVOD_LOCAL_SIZE": "4"},
         "HOROVOD_SIZE=4: horovodrun has started 4 tasks",
         "start meshrun once, without horovodrun: --nproc-per-node 4 starts the workers"),
        # In the shell of an allocation, and in a step whose variables make one job of other tasks.
        ({**MPI, "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}, "OMPI_COMM_WORLD_SIZE=4: mpirun has started 4 tasks",
         "start meshrun once, without mpirun: --nproc-per-node 4 starts the workers"),
        ({**MPI, "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4"}, "OMPI_COMM_WORLD_SIZE=4: mpirun has started 4 tasks",
         "start meshrun once, without mpirun: --nproc-per-node 4 starts the workers"),
        ({**PODS, **MPI}, "OMPI_COMM_WORLD_SIZE=4: mpirun has started 4 tasks",
         "start meshrun once, without mpirun: --nproc-per-node 4 starts the workers"),
    ],
)  # fmt: skip
def test_a_task_of_a_launcher_of_processes_is_told_so(environ: dict[str, str], sentence: str, hint: str) -> None:
    assert resolve(environ=environ).notes == (f"{sentence}, and each {ALONE}", f"hint: {hint}")
    assert resolve("--standalone", environ=environ).notes == ()


@pytest.mark.parametrize(
    "environ",
    [
        {**PODS, "WORLD_SIZE": "1", "RANK": "0"},
        {"WORLD_SIZE": "8"},  # WORLD_SIZE=8 before a command of many guides, which starts 8 workers
        {"WORLD_SIZE": "8", "RANK": "0"},
        {"RANK": "1", "MASTER_ADDR": "h"}, {**PODS, "RANK": ""}, {**PODS, "MASTER_ADDR": ""},
        {**PODS, "WORLD_SIZE": ""}, {**PODS, "WORLD_SIZE": "x"}, {**PODS, "WORLD_SIZE": "-2"},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"OMPI_COMM_WORLD_SIZE": "4"},
        {"PMI_SIZE": "1", "PMI_RANK": "0"}, {"PMIX_RANK": "0"}, {"PMIX_RANK": "x"},
        {"JOB_COMPLETION_INDEX": "0"}, {"JOB_COMPLETION_INDEX": ""},
        {"SM_HOSTS": '["algo-1"]'}, {"SM_HOSTS": "algo-1"}, {"SM_HOSTS": ""}, {"SM_HOSTS": '{"a": 1}'},
        {"AZUREML_NODE_COUNT": "1"},
        {"AWS_BATCH_JOB_NUM_NODES": "1", "AWS_BATCH_JOB_NODE_INDEX": "0"}, {"AWS_BATCH_JOB_NUM_NODES": "4"},
        {"VC_TASK_INDEX": "0", "VC_WORKER_NUM": "1"}, {"VC_WORKER_NUM": "4"},
        {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, {"TPU_WORKER_HOSTNAMES": "a,b"},
        {"MEGASCALE_NUM_SLICES": "1", "MEGASCALE_SLICE_ID": "0"}, {"CLOUD_TPU_TASK_ID": "0"},
        {**PODS, "WORLD_SIZE": "8", "RANK": "0", "NNODES": "1", "NODE_RANK": "0"},
        {"HOROVOD_SIZE": "1", "HOROVOD_RANK": "0"},
        {"NNODES": "2"}, {"NNODES": "1", "NODE_RANK": "0"}, {"NUM_PROCESSES": "4"},
        {"TF_CONFIG": '{"cluster": {"chief": ["a"]}}'}, {"TF_CONFIG": "[]"}, {"TF_CONFIG": '{"cluster": 7}'},
        {"TF_CONFIG": '{"cluster": {"chief": ["a"], "evaluator": ["b"]}}'},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_NUM_NODES": "1"},
        # What was inherited from a launcher, a notebook, Ray.
        {**PODS, "TORCHELASTIC_RUN_ID": "x"}, {**PODS, "LAUNCHER_ROUND": "1"}, {**PODS, "RAY_JOB_ID": "1"},
        {**PODS, "JPY_PARENT_PID": "7"}, {**MPI, "TORCHELASTIC_RUN_ID": "x"},
        {"JOB_COMPLETION_INDEX": "1", "LAUNCHER_ROUND": "1"},
    ],
)  # fmt: skip
def test_who_is_one_of_one_or_was_told_by_inheritance_is_told_nothing(environ: dict[str, str]) -> None:
    assert resolve(environ=environ).notes == ()


def test_a_world_of_the_workers_that_start_here_is_no_other() -> None:
    left = {**PODS, "RANK": "0", "MASTER_ADDR": "localhost", "WORLD_SIZE": "4"}
    assert resolve("--nproc-per-node=4", environ=left).notes == ()
    assert len(resolve("--nproc-per-node=2", environ=left).notes) == 2
    assert len(resolve("--nproc-per-node=4", environ={**left, "RANK": "1"}).notes) == 2
    assert len(resolve("--nproc-per-node=4", environ={**left, "MASTER_ADDR": "h"}).notes) == 2


# At least one is set where others may be found in the environment.
SIGNS = frozenset({*alone._INDICES, *(one.count for one in (*alone._TASKS, *alone._GROUPS)), "VC_TASK_INDEX"})


def test_the_signs_are_those_of_the_tables_and_a_job_of_several_nodes_has_none() -> None:
    assert SIGNS == config.SIGNS_OF_OTHERS
    words = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h"]
    assert resolve(*words, environ={**PODS, **MPI, "JOB_COMPLETION_INDEX": "1"}).notes == ()
    assert resolve(environ={**PODS, "PET_NNODES": "2", "PET_MASTER_ADDR": "h", "PET_NODE_RANK": "1"}).notes == ()


@given(st.sampled_from(sorted(SIGNS)), st.text(max_size=20))
def test_rubbish_in_a_variable_stops_no_start(name: str, text: str) -> None:
    every = dict.fromkeys(SIGNS, "0") | {need: "0" for group in alone._GROUPS for need in group.needs}
    notes = resolve(environ={**every, name: text.replace("\0", "")}).notes
    assert all(note.isprintable() for note in notes)
