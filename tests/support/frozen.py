"""What others read of us, as text: documents, the environments of workers, names that other programs look for.

Programs read the documents, scripts read the environments, plug-ins are found by their groups. None of these may change
because a class or a field of ours has another name. So each is written out once, from samples, and a test compares
(tests/unit/test_frozen.py).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from launcher.extensions.devices.tpu_environment import TpuEnvironment, XlaEnvironment
from launcher.meshctl.doctor.examine import examine
from launcher.views.run_json import encode_run
from rendezvous.stores.memory.store import MemoryStore
from tests.support.documents.pages import ROOT
from tests.support.sections import make_jax
from tests.support.stores.stored_job import StoredJob
from tests.unit.launcher.extensions.devices.test_tpu_environment import place
from tests.unit.launcher.ranks.environments.test_torch import PLACE, gpus, variables

FOLDER = ROOT / "tests/unit/frozen"


def worker_environments() -> Iterator[str]:
    """By framework, with what differs by device."""
    sliced = place(0, 1, 2, 3, nodes=2, slice=(1, 2))
    visible = variables({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, device_binding="visible")
    for name, found in {
        "torch": variables(),
        "torch, visible": visible,
        "jax": make_jax().variables(replace(PLACE, slot=gpus(0, 1)), {}),
        "jax, MPI": make_jax(mpi_reason="mpirun is here").variables(PLACE, {}),
        "tpu": TpuEnvironment().variables(sliced, {}),
        "xla": XlaEnvironment().variables(sliced, {}),
    }.items():
        yield from (f"{name}: {variable}={found[variable]}" for variable in sorted(found))


def names() -> Iterator[str]:
    """Of commands and plug-ins, by which scripts call us and other packages are found."""
    project = (ROOT / "pyproject.toml").read_text()
    for group, entries in re.findall(
        r"^\[project\.(scripts|entry-points.*)\]\n((?:\w+ = .*\n)+)", project, re.MULTILINE
    ):
        yield f"{group}: {re.findall(r'(?m)^[a-z]+(?= =)', entries)}"
    texts = (path.read_text() for path in (ROOT / "launcher").rglob("*.py"))
    groups = (re.findall(r'(?m)^GROUP = "(.*)"', text) for text in texts)
    yield from sorted(f"plug-ins {group}" for found in groups for group in found)


def status() -> Iterator[str]:
    """`meshctl status --json` of a job in its second round."""
    store = MemoryStore(clock=lambda: 0.0)
    job = StoredJob(store)
    job.join(0, 1, locality=(("pod", "p7"), ("leaf", "l1")))
    job.join(2)
    job.seal(2, 1, 0)
    job.lead(1)
    job.spares({2: "no whole replica left"})
    job.status(0, 2, outcome="failed", rank=5, exit_code=3)
    yield json.dumps(encode_run(replace(job.view(), at=1_767_225_600.0)))
    store.close()


def plan() -> Iterator[str]:
    """`meshctl plan --json` of four nodes."""
    command = [sys.executable, "-m", "launcher.meshctl.main", "plan", "dgx:4x8x8", "--mesh", "pp=2,dp=*,tp=8", "--json"]
    yield subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


def doctor_fields() -> Iterator[str]:
    """The fields of `meshctl doctor --json`; their values are this machine's."""
    found = examine(["--nproc-per-node", "2"], {"PATH": "/usr/bin:/bin"})
    yield from (f"{name}: {' '.join(one) if isinstance(one, dict) else ''}".strip() for name, one in found.items())


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "environments": worker_environments, "names": names, "status": status, "plan": plan, "doctor": doctor_fields,
}  # fmt: skip
