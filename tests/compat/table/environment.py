"""What a worker finds in its environment."""

from __future__ import annotations

import os

from tests.compat.looks import address, console, holds, is_refused, port, variable, yes
from tests.compat.runs import DUMP, Case, Seen, case

_ENVIRON = {"ODD": "a\nb=c", "EMPTY": "", "BYTES": os.fsdecode(b"\xff"), "NODE_RANK": "7", "RANK": "9", "HOSTNAME": "h"}


# The same for every launcher that torch's own code is to work under.
_TORCHRUNS = (
    "GROUP_RANK GROUP_WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS RANK ROLE_NAME "
    "ROLE_RANK ROLE_WORLD_SIZE TORCHELASTIC_ERROR_FILE TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RESTART_COUNT "
    "TORCHELASTIC_RUN_ID TORCHELASTIC_SIGNALS_TO_HANDLE TORCHELASTIC_USE_AGENT_STORE TORCH_NCCL_ASYNC_ERROR_HANDLING "
    "WORLD_SIZE"
)


def _torchruns(seen: Seen) -> str:
    return " ".join(name for name in _TORCHRUNS.split() if name in seen.worker()["environ"])


def _own(seen: Seen) -> str:
    """What else has come from nobody but the launcher."""
    agents = {*_ENVIRON, *_TORCHRUNS.split(), "PATH", "HOME", "TMPDIR", "PYTHONPATH", "LC_CTYPE", "MESHRUN_TEST_TOKEN"}
    agents |= {"LAUNCHER_LOG_TIMES"}  # how lines are read here
    return " ".join(sorted(seen.worker()["environ"].keys() - agents)) or "(none)"


def _passes(seen: Seen) -> bool:
    environ = seen.worker()["environ"]
    return all(environ.get(name) == value for name, value in _ENVIRON.items() if name != "RANK")


def _error_file(seen: Seen) -> str:
    path = seen.directory / seen.environ("TORCHELASTIC_ERROR_FILE", 1)
    (run,) = (path for path in (seen.directory / "logs").iterdir() if not path.is_symlink())
    return str(path).replace(str(run), "RUN")


def _run_directory(seen: Seen) -> str:
    (run,) = (path for path in (seen.directory / "logs").iterdir() if not path.is_symlink())
    name, mark, random = run.name[:-9], run.name[-9:-8], run.name[-8:]  # there may be a _ among the random letters
    return f"{name}_RANDOM" if mark == "_" and len(random) == 8 else run.name


_COUNTS = {
    "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "default", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2",
    "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip

_MEET = (
    DUMP
    + """
import torch, torch.distributed as dist
from torch.distributed import is_torchelastic_launched
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = {"env": "env://", "tcp": f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"}[sys.argv[1]]
more = {} if sys.argv[1] == "env" else {"rank": rank, "world_size": world}
dist.init_process_group("gloo", init_method=where, **more)
total = torch.tensor([rank + 1])
dist.all_reduce(total)
sys.stdout.write(f"sum {int(total)} {is_torchelastic_launched()}\\n")
dist.destroy_process_group()
"""
)

CASES: tuple[Case, ...] = (
    case(
        "two workers",
        "--nproc-per-node 2 --log-dir logs",
        *((f"{name} of rank 1 of 2", variable(name, 1), value) for name, value in _COUNTS.items()),
        ("the variables of a launcher that a worker has", _torchruns, _TORCHRUNS),
        ("variables that only one of the launchers sets", _own, "(none)"),
        holds("the launcher's own environment reaches workers", _passes),
        ("MASTER_ADDR of a single-node job", address(), "this host's name"),
        ("MASTER_PORT", port(), "a free port"),
        ("TORCHELASTIC_ERROR_FILE", _error_file, "RUN/attempt_0/1/error.json"),
        (
            "TORCHELASTIC_ERROR_FILE when --log-dir is relative",
            lambda seen: "absolute" if seen.environ("TORCHELASTIC_ERROR_FILE").startswith("/") else "relative",
            "relative",
        ),
        holds(
            "TORCHELASTIC_RUN_ID when no --rdzv-id is given", lambda seen: len(seen.environ("TORCHELASTIC_RUN_ID")) > 6
        ),
        holds(
            "workers of one run have one TORCHELASTIC_RUN_ID",
            lambda seen: seen.environ("TORCHELASTIC_RUN_ID") == seen.environ("TORCHELASTIC_RUN_ID", 1),
        ),
        environ=_ENVIRON,
    ),
    case(
        "one worker",
        "",
        ("OMP_NUM_THREADS of the only worker", variable("OMP_NUM_THREADS"), "(not set)"),
        (
            "number of workers when --nproc-per-node is not given and there is no accelerator",
            variable("WORLD_SIZE"),
            "1",
        ),
    ),
    *(
        case(
            f"as many workers as {word}",
            f"--nproc-per-node {word}",
            (
                f"--nproc-per-node {word} without an accelerator: workers",
                lambda seen: "one per CPU" if len(seen.workers) == os.cpu_count() else str(len(seen.workers)),
                "one per CPU",
            ),
            environ={"OMP_NUM_THREADS": "1"},
        )
        for word in ("cpu", "auto")
    ),
    case("no GPU", "--nproc-per-node gpu", ("--nproc-per-node gpu without a GPU", is_refused, "refused, exit code 1")),
    case(
        "CPUs near a device that is not there",
        "--numa-binding node",
        ("--numa-binding node without a GPU", lambda seen: "runs" if seen.workers else "fails", "fails"),
    ),
    case(
        "variables that were set before",
        "--nproc-per-node 2",
        ("OMP_NUM_THREADS that was set", variable("OMP_NUM_THREADS"), "3"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING that was set", variable("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "0"),
        ("CUDA_VISIBLE_DEVICES that was set", variable("CUDA_VISIBLE_DEVICES", 1), "4,6"),
        environ={"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "CUDA_VISIBLE_DEVICES": "4,6"},
    ),
    case(
        "a named run",
        "--rdzv-id night --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --log-dir logs",
        ("--rdzv-id with c10d", variable("TORCHELASTIC_RUN_ID"), "night"),
        ("the directory of a run's log files", _run_directory, "night_RANDOM"),
    ),
    case(
        "a named run without a backend",
        "--rdzv-id night",
        (
            "--rdzv-id without any other rendezvous option names the run",
            yes(lambda seen: seen.environ("TORCHELASTIC_RUN_ID") == "night"),
            "no",
        ),
    ),
    case(
        "a static rendezvous of one node",
        "--master-addr 127.0.0.1 --master-port {port} --node-rank 0 --nproc-per-node 2",
        ("--master-addr: MASTER_ADDR", variable("MASTER_ADDR"), "127.0.0.1"),
        ("--master-port: MASTER_PORT", port(), "the given port"),
        ("a static rendezvous: TORCHELASTIC_RUN_ID", variable("TORCHELASTIC_RUN_ID"), "none"),
    ),
    case(
        "a static rendezvous by its endpoint",
        "--rdzv-backend static --rdzv-endpoint localhost:{port} --rdzv-id night",
        ("a static --rdzv-endpoint: MASTER_ADDR", variable("MASTER_ADDR"), "localhost"),
        ("a static --rdzv-endpoint: MASTER_PORT", port(), "the given port"),
        ("a static rendezvous: --rdzv-id", variable("TORCHELASTIC_RUN_ID"), "night"),
    ),
    *(
        case(
            f"torch meets by {how}://",
            "--nproc-per-node 2",
            (f"init_process_group by {how}://", console("sum"), "sum 3 True; sum 3 True"),
            target=f"train.py {how}",
            script=_MEET,
        )
        for how in ("env", "tcp")
    ),
    case(
        "torch meets at a static master",
        "--nproc-per-node 2 --master-addr 127.0.0.1 --master-port {port}",
        ("init_process_group by env:// at a given master", console("sum"), "sum 3 True; sum 3 True"),
        target="train.py env",
        script=_MEET,
    ),
)
