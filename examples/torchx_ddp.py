"""A component for TorchX whose command is meshrun: the options of `dist.ddp`, restarts, a mesh, and names of nodes.

    torchx run -s local_cwd examples/torchx_ddp.py:ddp -j 1x2 --script train.py
    torchx run -s kubernetes examples/torchx_ddp.py:ddp -j 2:4x8 --mesh 'dp=*,tp=8' --max_restarts 9 --script train.py

TorchX takes the path of such a file. A package that registered it as an entry point would switch off the components
that TorchX brings. The image needs meshrun.
"""

# TorchX reads the types of a component in their older spelling alone.
# ruff: noqa: UP006, UP035, UP045
from typing import Dict, List, Optional

import torchx
from torchx import specs
from torchx.components.dist import get_role_name, parse_nnodes
from torchx.components.structured_arg import StructuredNameArgument
from torchx.specs import macros


def ddp(
    *script_args: str,
    script: Optional[str] = None,
    m: Optional[str] = None,
    image: str = torchx.IMAGE,
    name: str = "/",
    h: Optional[str] = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,  # TorchX's spelling
    j: str = "1x2",
    env: Optional[Dict[str, str]] = None,
    max_retries: int = 0,
    max_restarts: int = 0,
    mesh: Optional[str] = None,
    rdzv_backend: str = "c10d",
    rdzv_endpoint: Optional[str] = None,
    rdzv_port: int = 29500,
    mounts: Optional[List[str]] = None,
) -> specs.AppDef:
    """Distributed training of one role, started and kept alive by meshrun.

    Args:
        script_args: arguments of the script or module
        script: script to run within the image
        m: module to run
        image: image (e.g. docker)
        name: name of the job as {experiment}/{run}; by default the run is called after the script or module
        h: a registered named resource, which takes precedence over cpu, gpu and memMB
        cpu: number of CPUs per node
        gpu: number of GPUs per node
        memMB: memory in MB per node
        j: [{min_nnodes}:]{nnodes}x{nproc_per_node}
        env: environment variables of the agents and workers (e.g. ENV1=v1,ENV2=v2)
        max_retries: how often the scheduler may start the job again
        max_restarts: how often meshrun may start the workers again
        mesh: the grid of ranks, outermost axis first (e.g. dp=*,tp=8)
        rdzv_backend: c10d for a store that the first node serves, etcd for servers of your own
        rdzv_endpoint: where the store is; by default rdzv_port of the first node
        rdzv_port: the port of the first node at which it serves the store
        mounts: mounts of the container (e.g. type=<bind/volume>,src=/host,dst=/job[,readonly])
    """
    if (script is None) == (m is None):
        raise ValueError("exactly one of --script and -m must be specified")
    min_nnodes, max_nnodes, nproc_per_node, nnodes = parse_nnodes(j)
    run = StructuredNameArgument.parse_from(name=name, m=m, script=script)
    role = get_role_name(script, m)

    words = ["--rdzv-id", macros.app_id, "--nnodes", nnodes, "--nproc-per-node", str(nproc_per_node), "--tee", "3"]
    words += ["--max-restarts", str(max_restarts)]
    if mesh is not None:
        words += ["--mesh", mesh]
    if max_nnodes > 1:
        # As the replica is called in TorchX, and different where several run on one host, as under local_cwd.
        words += ["--node-name", f"{role}-{macros.replica_id}", "--rdzv-backend", rdzv_backend]
    if rdzv_endpoint is not None:
        words += ["--rdzv-endpoint", rdzv_endpoint]
    words += ["-m", m] if m is not None else [str(script)]
    words += script_args
    entrypoint = "meshrun"
    if max_nnodes > 1 and rdzv_endpoint is None:
        # A variable of the scheduler's says where the first node is. On that node it is unset or localhost, which the
        # others could not reach; under local_cwd all of them are there.
        first = f'first="$${{{macros.rank0_env}:-localhost}}"'
        own = 'case "$$first $$TORCHX_JOB_ID" in "localhost local"*) ;; "localhost "*) first="$$(uname -n)";; esac'
        start = f'exec meshrun --rdzv-endpoint "$$first:{rdzv_port}" "$$@"'
        entrypoint, words = "sh", ["-c", f"{first}; {own}; {start}", "meshrun", *words]
    return specs.AppDef(
        name=run.run_name,
        roles=[
            specs.Role(
                name=role,
                image=image,
                min_replicas=min_nnodes,
                entrypoint=entrypoint,
                num_replicas=max_nnodes,
                resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
                args=words,
                env={**(env or {}), "TORCHX_TRACKING_EXPERIMENT_NAME": run.experiment_name},
                port_map={"c10d": rdzv_port},
                max_retries=max_retries,
                mounts=specs.parse_mounts(mounts) if mounts else [],
            )
        ],
    )
