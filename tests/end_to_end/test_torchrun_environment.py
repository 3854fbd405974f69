"""torchrun itself is the yardstick for the variables that workers get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.modules import needs
from tests.support.sections import make_torch
from tests.unit.launcher.ranks.environments.test_torch import PLACE

pytestmark = needs("torch")

DUMP = """
import json, os, sys
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    json.dump(dict(os.environ), file)
"""
# Drawn by torchrun in every run; MASTER_ADDR is a name of this host. The store is rank 0's with us, torchrun's there.
CHOSEN = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE"}
OURS = {
    *("LAUNCHER_ROUND", "LAUNCHER_WORKER_DEVICES"),
    *("MESH_AXES", "MESH_SHAPE", "MESH_COORDS", "MESH_GROUPS", "MESH_DP_RANK", "MESH_DP_SIZE"),
}


# Two workers of a machine that is alone.
ALONE = replace(
    PLACE, run_id="a job", round=1, restart_count=0, max_restarts=2, world_size=2, local_world_size=2, group_rank=0,
    group_world_size=1, role_world_size=2, mesh_axes=("dp",), mesh_shape=(2,),
)  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "extra", "is_virtual"),
    [
        ([], {}, False),
        (
            ["--virtual-local-rank"],
            {"CUDA_VISIBLE_DEVICES": "4, 6", "OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
            True,
        ),
    ],
)
def test_our_variables_are_those_torchrun_exports(
    tmp_path: Path, flags: list[str], extra: dict[str, str], is_virtual: bool
) -> None:
    script = tmp_path / "dump.py"
    script.write_text(DUMP)
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    parent = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **extra}
    subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1:1", "--rdzv-backend=c10d"),
            *("--rdzv-endpoint=localhost:0", "--rdzv-id=a job", "--nproc-per-node=2", "--max-restarts=2"),
            *("--role=trainer", *flags, str(script), str(dumps)),
        ],
        env=parent,
        check=True,
        timeout=120,
        stderr=subprocess.DEVNULL,
    )
    ours = make_torch(virtual_local_rank=is_virtual)
    for local_rank in range(2):
        theirs: dict[str, str] = json.loads((dumps / str(local_rank)).read_text())
        theirs.pop("LC_CTYPE", None)  # set by Python itself in a bare environment
        place = replace(
            ALONE, rank=local_rank, local_rank=local_rank, role_rank=local_rank, mesh_coordinates=(local_rank,)
        )
        told = ours.variables(place, parent)
        assert {**parent, **told}.keys() - OURS == theirs.keys()
        assert told.keys() >= OURS
        assert {name: value for name, value in {**parent, **told}.items() if name in theirs.keys() - CHOSEN} == {
            name: value for name, value in theirs.items() if name not in CHOSEN
        }
