"""Every variable of a worker's environment: its readers, its value and the source. The docs are generated from it.

A name with <AXIS> stands for one variable per axis of the mesh. `framework`: with which choice of `--framework`, or on
which devices, it is given; "" always. Lines of a source are those of the version named.
"""

from __future__ import annotations

from typing import NamedTuple


class Variable(NamedTuple):
    """One row. `readers`: what acts on it; `description`: its value, in the words of the reference page."""

    variable: str
    framework: str
    readers: str
    description: str
    source: str


_TORCHRUN = "torch 2.13, torch/distributed/elastic/agent/server/local_elastic_agent.py"
_ENV_INIT = "torch 2.13, torch/distributed/rendezvous.py"
_JAX = "JAX 0.10.2, jax/_src/distributed.py"
_OMPI = "JAX 0.10.2, jax/_src/clusters/ompi_cluster.py"
_MEGASCALE = "ray 2.60, util/tpu.py; JAX 0.10.2, jax/_src/clusters/cloud_tpu_cluster.py"
_TORCH_XLA = "torch_xla, _internal/tpu.py"
_PJRT = "torch_xla, core/xla_env_vars.py and _internal/pjrt.py"
_OURS = "meshrun"

VARIABLE_DESCRIPTIONS: tuple[Variable, ...] = (
    Variable("RANK", "", "torch (env://), and nearly everything on top of it", "the worker's number in the job, 0 to "
            "`WORLD_SIZE` - 1", _ENV_INIT),
    Variable("WORLD_SIZE", "", "torch (env://)", "workers in the job", _ENV_INIT),
    Variable("LOCAL_RANK", "", "scripts and libraries that pick a device by it", "its number on this node; 0 for all "
            "with `--virtual-local-rank` or `--device-binding visible`", _TORCHRUN),
    Variable("LOCAL_WORLD_SIZE", "", "scripts and libraries", "workers on this node", _TORCHRUN),
    Variable("GROUP_RANK", "", "scripts", "the node's number in the round; where nodes are given a `--node-rank`, that",
            _TORCHRUN),
    Variable("GROUP_WORLD_SIZE", "", "scripts", "how many nodes take part in the round", _TORCHRUN),
    Variable("ROLE_NAME", "", "scripts", "`--role`", _TORCHRUN),
    Variable("ROLE_RANK", "", "scripts", "the worker's number among the workers of this role", _TORCHRUN),
    Variable("ROLE_WORLD_SIZE", "", "scripts", "workers of this role", _TORCHRUN),
    Variable("MASTER_ADDR", "", "torch (env://)", "where rank 0 listens in this round; the master's address where it "
            "was given", _ENV_INIT),
    Variable("MASTER_PORT", "", "torch (env://)", "the port of rank 0, new in every round; the master's port where it "
            "was given", _ENV_INIT),
    Variable("TORCHELASTIC_RUN_ID", "", "torch (is_torchelastic_launched)", "`--rdzv-id`, or a random name", _TORCHRUN),
    Variable("TORCHELASTIC_RESTART_COUNT", "", "scripts, torch", "failures that were charged so far", _TORCHRUN),
    Variable("TORCHELASTIC_MAX_RESTARTS", "", "scripts", "`--max-restarts`", _TORCHRUN),
    Variable("TORCHELASTIC_USE_AGENT_STORE", "", "torch (env://)", "`False`: rank 0 hosts the store", _ENV_INIT),
    Variable("TORCHELASTIC_ERROR_FILE", "", "torch's `record`, and what starts workers under JAX", "where a worker "
            "leaves the exception that ends it", "torch 2.13, torch/distributed/elastic/multiprocessing/errors"),
    Variable("TORCHELASTIC_SIGNALS_TO_HANDLE", "", "torch.distributed.elastic", "`--signals-to-handle`", _TORCHRUN),
    Variable("TORCHELASTIC_TIMER_FILE", "", "torch.distributed.elastic.timer", "with "
            "`TORCHELASTIC_ENABLE_FILE_TIMER=1`: the pipe to which timers are written; a new one unless the agent's "
            "environment names one", _TORCHRUN),
    Variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "", "torch (NCCL)", "`1`, unless the agent's environment has another "
            "value", _TORCHRUN),
    Variable("OMP_NUM_THREADS", "", "OpenMP, torch", "`1` if there are several workers on the node and the agent's "
            "environment has no value; with `--numa-binding` the cores that are the worker's own",
            "torch 2.13, torch/distributed/run.py"),
    Variable("CUDA_VISIBLE_DEVICES", "", "CUDA", "the worker's own GPUs, with `--virtual-local-rank`, "
            "`--device-binding visible` or `--devices-per-worker` above 1; else as in the agent's environment. Other "
            "kinds of devices have other variables: see the rules of devices",
            "CUDA programming guide, environment variables"),
    Variable("LAUNCHER_LOCAL_RANK", "", "scripts", "with `--device-binding visible`: the worker's number on this node, "
            "which `LOCAL_RANK` does not say then", _OURS),
    Variable("MESH_AXES", "", "scripts, launcher.worker", "names of the axes, outermost first", _OURS),
    Variable("MESH_SHAPE", "", "scripts, launcher.worker", "their sizes in this round", _OURS),
    Variable("MESH_COORDS", "", "scripts, launcher.worker", "where this rank stands", _OURS),
    Variable("MESH_GROUPS", "", "launcher.worker", "the groups that were declared: every axis, and those over several "
            "axes that `--traffic` names, as `dp+cp`", _OURS),
    Variable("MESH_<AXIS>_RANK", "", "scripts", "the coordinate on one axis", _OURS),
    Variable("MESH_<AXIS>_SIZE", "", "scripts", "the size of one axis", _OURS),
    Variable("LAUNCHER_ROUND", "", "launcher.worker, scripts", "the number of the round, 1 for the first; counts every "
            "restart", _OURS),
    Variable("LAUNCHER_PLACE", "", "the agent", "a mark by which an agent that is started again finds what its "
            "predecessor left behind", _OURS),
    Variable("LAUNCHER_WORKER_DEVICES", "", "launcher.worker", "the worker's own devices, as `KIND:COUNT`: `nvidia:1`, "
            "`cpu:1`", _OURS),
    Variable("LAUNCHER_BOARD", "", "launcher.worker", "where the page is that the agent and the workers of a node "
            "share, for `stop_requested()` and `heartbeat()`: descriptor, device, inode, and the worker's line", _OURS),
    Variable("LAUNCHER_AGENT_SOCKET", "", "launcher.worker", "with `--grow checkpoint`: where `checkpoint_saved()` "
            "tells the agent that the workers have saved", _OURS),
    Variable("JAX_COORDINATOR_ADDRESS", "jax", "jax.distributed.initialize", "where the process of rank 0 serves JAX's "
            "coordinator: `MASTER_ADDR:MASTER_PORT`", _JAX),
    Variable("JAX_COORDINATOR_BIND_ADDRESS", "jax", "jax.distributed.initialize, in rank 0", "where it listens: on "
            "loopback if `MASTER_ADDR` is, or the host that the agent's environment has here; else JAX listens "
            "everywhere", _JAX),
    Variable("JAX_LOCAL_DEVICE_IDS", "jax", "jax.distributed.initialize", "the worker's own GPUs among those that it "
            "sees; not on other devices", _JAX),
    Variable("OMPI_MCA_orte_hnp_uri", "jax", "jax.distributed.initialize", "`meshrun`: JAX reads the three below where "
            "this one is; none of the four is given where MPI is in use", _OMPI),
    Variable("OMPI_COMM_WORLD_SIZE", "jax", "jax.distributed.initialize", "`WORLD_SIZE`", _OMPI),
    Variable("OMPI_COMM_WORLD_RANK", "jax", "jax.distributed.initialize", "`RANK`", _OMPI),
    Variable("OMPI_COMM_WORLD_LOCAL_RANK", "jax", "jax.distributed.initialize", "`LOCAL_RANK`", _OMPI),
    Variable("MEGASCALE_COORDINATOR_ADDRESS", "tpu", "libtpu, jax.distributed.initialize", "with several slices, or "
            "where a controller has set it: the host of rank 0, worker 0 of slice 0 in this round", _MEGASCALE),
    Variable("MEGASCALE_NUM_SLICES", "tpu", "libtpu, jax.distributed.initialize", "likewise: slices of this round",
            _MEGASCALE),
    Variable("MEGASCALE_SLICE_ID", "tpu", "libtpu, jax.distributed.initialize", "likewise: the number of this slice in "
            "this round", _MEGASCALE),
    Variable("MEGASCALE_PORT", "tpu", "libtpu", "likewise, where a host has several processes: 8081, or what was set, "
            "plus the worker's number on this node", _MEGASCALE),
    Variable("TPU_VISIBLE_CHIPS", "tpu", "libtpu", "the worker's own chips, unless it has all of the host; also "
            "`TPU_VISIBLE_DEVICES`, where that is set", _TORCH_XLA),
    Variable("TPU_CHIPS_PER_PROCESS_BOUNDS", "tpu", "libtpu", "likewise: the box that they form", _TORCH_XLA),
    Variable("TPU_PROCESS_BOUNDS", "tpu", "libtpu", "likewise: the grid of all processes of the slice", _TORCH_XLA),
    Variable("TPU_PROCESS_ADDRESSES", "tpu", "libtpu", "where a host has several processes: where each of the slice "
            "listens, host by host, from port 8476 on", _TORCH_XLA),
    Variable("TPU_PROCESS_PORT", "tpu", "libtpu", "likewise: where this one listens", _TORCH_XLA),
    Variable("CLOUD_TPU_TASK_ID", "tpu", "libtpu", "likewise: its number in the slice, worker id times processes of a "
            "host plus the worker's number on this node", _TORCH_XLA),
    Variable("ALLOW_MULTIPLE_LIBTPU_LOAD", "tpu", "libtpu", "likewise: `1`, unless the agent's environment has another "
            "value", "torch_xla and JAX, in their tests"),
    Variable("PJRT_DEVICE", "xla", "torch_xla", "`TPU`, `CUDA` or `CPU` by the worker's devices, unless the agent's "
            "environment has a value", _PJRT),
    Variable("PJRT_LOCAL_PROCESS_RANK", "xla", "torch_xla", "the worker's number on this node", _PJRT),
    Variable("PJRT_LOCAL_PROCESS_COUNT", "xla", "torch_xla", "workers on this node", _PJRT),
)  # fmt: skip
