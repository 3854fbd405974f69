"""What `launcher.worker` makes of a worker's variables: its groups, and which devices are its own."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest

from launcher.model import mesh as meshes
from launcher.worker import WorkerMesh, init_jax
from launcher.worker.frameworks import local_device_ids
from launcher.worker.grid import read
from tests.support.processes.tree import REPOSITORY


def variables(mesh: str, rank: int, *products: str) -> dict[str, str]:
    """What the launcher tells a worker of this mesh."""
    axes = meshes.parse(mesh).axes
    names, sizes = [axis.name for axis in axes], [axis.size or 1 for axis in axes]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(math.prod(sizes)),
        "MESH_AXES": ",".join(names),
        "MESH_SHAPE": ",".join(map(str, sizes)),
        "MESH_GROUPS": ",".join((*names, *products)),
    }


def place(mesh: str, rank: int, *products: str) -> WorkerMesh:
    return read(variables(mesh, rank, *products))


def test_a_worker_finds_its_groups_by_name_and_over_two_axes_in_any_order() -> None:
    found = place("pp=2,dp=3,tp=4", 17)
    assert found.coordinates == (1, 1, 1)
    assert (found.group("pp"), found.group("dp"), found.group("tp")) == ((5, 17), (13, 17, 21), (16, 17, 18, 19))
    assert [found.size(axis) for axis in found.axes] == [2, 3, 4]
    assert (found.world_size, str(found)) == (24, "pp=2,dp=3,tp=4")
    found = place("dp=2,pp=2,cp=2,tp=2", 5, "dp+cp")
    assert found.group("dp+cp") == found.group("cp + dp") == (5, 7, 13, 15)
    assert (found.size("dp+cp"), found.coordinate("dp+cp")) == (4, 0)


@pytest.mark.parametrize("mesh", ["dp=5", "pp=2,dp=3", "pp=2,dp=1,cp=3,tp=2"])
def test_the_groups_of_an_axis_hold_every_rank_once_and_each_its_own(mesh: str) -> None:
    axes = [axis.name for axis in meshes.parse(mesh).axes]
    names = ["+".join(some) for count in (1, 2) for some in itertools.combinations(axes, count)]
    for name in names:
        groups = place(mesh, 0, *names).groups(name)
        world = sorted(itertools.chain(*groups))
        assert world == list(range(len(world)))
        assert [group[0] for group in groups] == sorted(group[0] for group in groups)
        for group in groups:
            for position, rank in enumerate(group):
                one = place(mesh, rank, *names)
                assert (one.group(name), one.coordinate(name), one.size(name)) == (group, position, len(group))


def test_one_axis_is_there_under_torchrun_and_an_undeclared_one_refused() -> None:
    found = place("pp=2,dp=2", 0)
    with pytest.raises(
        LookupError, match=r"mesh pp=2,dp=2 has no axis 'tp': its axes are pp, dp; declare others with --mesh"
    ):
        found.group("tp")
    with pytest.raises(
        LookupError, match=r"no group over pp\+dp was declared: .* are pp, dp; declare another with --traffic pp\+dp="
    ):
        found.groups("dp+pp")
    assert str(read({"RANK": "1", "WORLD_SIZE": "4"})) == "dp=4"
    with pytest.raises(RuntimeError, match="start the script with meshrun"):
        read({})


@pytest.mark.parametrize(
    "change", [{"MESH_SHAPE": "2,3"}, {"MESH_SHAPE": "4"}, {"RANK": "4"}, {"WORLD_SIZE": "8"}, {"RANK": "one"}]
)
def test_variables_that_do_not_agree_are_named(change: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match=r"contradict each other: MESH_AXES=pp,dp, MESH_SHAPE=.*they were changed"):
        read({**variables("pp=2,dp=2", 0), **change})


@pytest.mark.parametrize(
    ("told", "devices", "ids"),
    [
        ("3 of 8", {"LAUNCHER_WORKER_DEVICES": "nvidia:1"}, [3]),
        ("0 of 1", {"LAUNCHER_WORKER_DEVICES": "nvidia:1"}, [0]),
        ("3 of 4", {"LAUNCHER_WORKER_DEVICES": "nvidia:2"}, None),  # sees its own two
        ("0 of 8", {"LAUNCHER_WORKER_DEVICES": "nvidia:1", "CUDA_VISIBLE_DEVICES": "GPU-5"}, None),
        ("1 of 2", {}, [1]),  # another launcher, by torch's convention
        ("0 of 1", {}, None),  # one worker, all devices
        ("1 of 2", {"JAX_LOCAL_DEVICE_IDS": "5"}, None),  # JAX reads that itself
    ],
)
def test_jax_is_told_which_devices_are_the_workers_own_where_it_sees_more(
    told: str, devices: dict[str, str], ids: list[int] | None
) -> None:
    rank, count = told.split(" of ")
    assert local_device_ids({"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count, **devices}) == ids


@pytest.mark.parametrize("address", ["10.0.0.9", "fd00::9", "127.0.0.1"])
def test_jax_is_given_every_argument_and_searches_for_no_cluster(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, object]] = []
    distributed = SimpleNamespace(is_initialized=lambda: bool(calls), initialize=lambda **given: calls.append(given))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(distributed=distributed))  # type: ignore[arg-type]
    told = {"MASTER_ADDR": address, "MASTER_PORT": "29400", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
    for name, value in {**variables("dp=2,tp=4", 6), **told}.items():
        monkeypatch.setenv(name, value)
    for name in ("JAX_LOCAL_DEVICE_IDS", "JAX_COORDINATOR_BIND_ADDRESS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    init_jax(num_processes=9, initialization_timeout=5)
    init_jax()
    where = f"[{address}]:29400" if ":" in address else f"{address}:29400"
    assert calls == [
        {
            "coordinator_address": where, "num_processes": 9, "process_id": 6, "local_device_ids": [2],
            "cluster_detection_method": "deactivate", "initialization_timeout": 5,
            **({"coordinator_bind_address": where} if address == "127.0.0.1" else {}),
        }
    ]  # fmt: skip


def test_the_import_needs_neither_framework_nor_much_of_the_library() -> None:
    words = "import sys; before = set(sys.modules); import launcher.worker; print(*set(sys.modules) - before)"
    shown = subprocess.run(
        [sys.executable, "-S", "-c", words], cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60
    )
    heavy = {"torch", "jax", "numpy", "socket", "asyncio", "grpc", "threading", "logging", "dataclasses", "mmap"}
    assert not heavy & set(shown.stdout.split())
