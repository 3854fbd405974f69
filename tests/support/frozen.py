"""What others read of us, as text: bytes on the wire and in the store, documents, environments, names.

Agents of two versions meet in one job, programs read the documents, scripts read the environments. None of these may
change because a class or a field of ours has another name. So each is written out once, from samples that set every
field, and a test compares (tests/unit/test_frozen.py).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec.structs import replace

from launcher.agent.startup import stale_agents
from launcher.hardware.linux import control_group, shared_page
from launcher.meshctl.doctor.examine import examine
from launcher.meshctl.status.render import encode_overview
from launcher.placement.adapter.description import Description, NodeAssignment, encode_assignment, encode_description
from launcher.ranks.environments.jax import JaxEnvironment
from launcher.ranks.environments.tpu import TpuEnvironment, XlaEnvironment
from launcher.supervisor.messages import (
    KEEPER_NAME,
    SUPERVISOR_NAME,
)
from launcher.worker import SOCKET_VARIABLE
from rendezvous import records
from rendezvous.peers import messages
from rendezvous.peers.handshake import Handshake, PeerIdentity
from rendezvous.stores.memory.store import MemoryStore
from tests.support.documents.pages import ROOT
from tests.support.stores.stored_job import StoredJob
from tests.unit.launcher.ranks.environments.test_torch import PLACE, gpus, variables
from tests.unit.launcher.ranks.environments.test_tpu import place

FOLDER = ROOT / "tests/unit/frozen"
SECRET = b"a job's secret"
SHARE = NodeAssignment(
    ranks=(4, 5), world_size=6, shape=(3, 2), group_rank=2, group_world_size=3, role_ranks=(4, 5), role_world_size=6,
    master_addr="10.0.0.1", master_port=29500, summary="3 nodes", slice_index=1, slice_count=2,
)  # fmt: skip
"""A node of the middle of a job."""


def renames(section: str) -> dict[str, str]:
    """What was called otherwise when the section was frozen: old -> new."""
    found: dict[str, dict[str, str]] = json.loads((FOLDER / "renames.json").read_text())
    return found.get(section, {})


def value(kind: Any, number: int) -> object:
    """A value of a type, one that is nobody's default."""
    kinds = [one for one in get_args(kind) if one is not type(None)]
    if get_origin(kind) is tuple:
        items = kinds[:1] * 2 if kinds[-1] is ... else kinds
        return tuple(value(one, number + at) for at, one in enumerate(items))
    if get_origin(kind) in (Annotated, Union, UnionType):
        return value(kinds[0], number)
    if get_origin(kind) in (Literal, Mapping):
        return f"text {number}" if get_origin(kind) is Literal else {"later": [number]}
    return {str: f"text {number}", int: number, float: number + 0.5, bool: True}[kind]


def sample(kind: Any) -> Any:
    """A value of this class with every field set; what only a later version knows comes last."""
    kinds = {name: one for name, one in get_type_hints(kind, include_extras=True).items() if not name.startswith("_")}
    names = sorted(kinds, key=lambda name: name == "unknown")
    return kind(**{name: value(kinds[name], at) for at, name in enumerate(names, 1)})


def stored_records() -> Iterator[str]:
    """Each record as it lies in the store, without and with a secret."""
    for kind in records.Record.__subclasses__():
        if kind.__module__ != records.__name__:
            continue
        yield f"{kind.__name__} {records.encode(sample(kind), 'key').decode()}"
        yield f"{kind.__name__} {records.encode(sample(kind), 'key', SECRET).decode()}"


def store_keys() -> Iterator[str]:
    job = records.make_job_keys("prefix", "run", "job")
    yield f"current {records.make_current_key('prefix', 'run')}"
    yield f"numbers {records.make_node_number_prefix('prefix', 'run', 3)}"
    for name in sorted(vars(job).keys() - {"root"}):
        yield f"{name} {getattr(job, name)}"
    for name, key in (
        ("member", job.make_member_key("m")),
        ("status", job.make_status_key("m")),
        ("lease", job.make_lease_key("m")),
        ("drain", job.make_drain_key("n")),
        ("command", job.make_command_key("t")),
        ("past", job.make_history_key(7)),
        ("assignments", job.make_assignments_prefix(7)),
        ("assignments", job.make_assignments_prefix(7, "t")),
        ("assignment", job.make_assignment_key(7, "t", "m")),
    ):
        yield f"{name} {key}"


def launcher_texts() -> Iterator[str]:
    """The two texts that agreement carries without reading them."""
    yield encode_description(sample(Description))
    yield encode_assignment(sample(NodeAssignment))


def peer_messages() -> Iterator[str]:
    """What agents tell each other over presence connections, from the first byte on."""
    for kind in get_args(messages.Message):
        yield messages.encode_message(sample(kind))
    for secret in (b"", SECRET):
        first = Handshake(PeerIdentity("job", "a", "10.0.0.1:7"), expected="b", secret=secret, nonce=bytes(16))
        second = Handshake(PeerIdentity("job", "b", "10.0.0.2:7"), expected="", secret=secret, nonce=bytes(range(16)))
        hello = first.open()[0]
        answer = second.take(hello)[0]
        for words in (hello, answer, first.take(answer)[0]):
            yield json.dumps(words)


def worker_environments() -> Iterator[str]:
    """By framework, with what differs by device."""
    sliced = place(0, 1, 2, 3, nodes=2, slice=(1, 2))
    visible = variables({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, device_binding="visible")
    for name, found in {
        "torch": variables(),
        "torch, visible": visible,
        "jax": JaxEnvironment().variables(replace(PLACE, slot=gpus(0, 1)), {}),
        "jax, MPI": JaxEnvironment(mpi_reason="mpirun is here").variables(PLACE, {}),
        "tpu": TpuEnvironment().variables(sliced, {}),
        "xla": XlaEnvironment().variables(sliced, {}),
    }.items():
        yield from (f"{name}: {variable}={found[variable]}" for variable in sorted(found))


def names() -> Iterator[str]:
    """Of processes, locks, marks, plug-ins and shared memory, which two versions or other programs look for."""
    yield f"processes {KEEPER_NAME} {SUPERVISOR_NAME}"
    yield f"variables {stale_agents.LOCK_VARIABLE} {shared_page.VARIABLE} {SOCKET_VARIABLE}"
    yield f"group {control_group._PREFIX}"
    yield (
        f"folders {[folder.replace(str(stale_agents.os.geteuid()), 'UID') for folder in stale_agents.list_lock_dirs()]}"
    )
    offsets = shared_page.NUMBER_SIZE, shared_page.TIMEOUT_MS, shared_page.HEARTBEAT_COUNT, shared_page.POLLED_ROUND
    yield f"board {shared_page.LINE_SIZE} {' '.join(map(str, offsets))}"
    project = (ROOT / "pyproject.toml").read_text()
    for group, entries in re.findall(
        r"^\[project\.(scripts|entry-points.*)\]\n((?:\w+ = .*\n)+)", project, re.MULTILINE
    ):
        yield f"{group}: {re.findall(r'(?m)^[a-z]+(?= =)', entries)}"
    texts = (path.read_text() for path in (ROOT / "launcher").rglob("*.py"))
    groups = (re.findall(r'(?m)^GROUP = "(.*)"', text) for text in texts)
    yield from sorted(f"plug-ins {group}" for found in groups for group in found)


def lock(folder: Path) -> Iterator[str]:
    """The file that keeps two agents from one place, and the mark of what is started there."""
    taken = stale_agents.take_node_lock("run", "node", {"CUDA_VISIBLE_DEVICES": "1"}, folder=str(folder))
    ((variable, mark),) = taken.environment.items()
    yield f"{Path(taken.path).name} {variable}={mark.rpartition('-')[0]}"
    taken.release()


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
    yield json.dumps(encode_overview(replace(job.overview(), at=1_767_225_600.0)))
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
    "records": stored_records,
    "keys": store_keys,
    "texts": launcher_texts,
    "peers": peer_messages,
    "environments": worker_environments,
    "names": names,
    "status": status,
    "plan": plan,
    "doctor": doctor_fields,
}
