"""What libtpu and torch_xla are told: values that public programs use, and nothing that the slice says itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from launcher.extensions.devices.tpu_environment import TpuEnvironment, XlaEnvironment, compute_host_bounds
from launcher.hardware import slice_identity
from launcher.hardware.metadata_server import LINK_LOCAL
from launcher.model.errors import UsageError
from launcher.model.node import Device, Slot
from launcher.ranks.environments.contract import WorkerAssignment
from tests.support.sections import make_jax
from tests.unit.launcher.hardware.test_slice_identity import GKE
from tests.unit.launcher.ranks.environments.test_torch import PLACE, gpus

SKIP = {"TPU_SKIP_MDS_QUERY": "true"}
V4_16 = {
    **SKIP, "TPU_ACCELERATOR_TYPE": "v4-16", "TPU_PROCESS_BOUNDS": "1,1,2", "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
    "TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "w0,w1",
}  # fmt: skip
STALE = {
    "MEGASCALE_COORDINATOR_ADDRESS": "gone",
    "MEGASCALE_NUM_SLICES": "9",
    "MEGASCALE_SLICE_ID": "8",
    "MEGASCALE_PORT": "9000",
}


def chips(*numbers: int, model: str = "") -> Slot:
    devices = (Device(kind="tpu", index=n, id=f"chip{n}", visible=str(n), model=model) for n in numbers)
    return Slot(index=0, devices=tuple(devices))


def place(
    *numbers: int, workers: int = 1, nodes: int = 1, slice: tuple[int, int] = (0, 0), model: str = ""
) -> WorkerAssignment:
    """Of the worker with these chips. `slice`: number and count."""
    return replace(
        PLACE, slot=chips(*numbers, model=model), local_rank=numbers[0] // len(numbers), local_world_size=workers,
        group_world_size=nodes, slice_index=slice[0], slice_count=slice[1],
    )  # fmt: skip


def told(where: WorkerAssignment, parent: Mapping[str, str] = SKIP) -> dict[str, str]:
    return TpuEnvironment().variables(where, parent)


@pytest.mark.parametrize(
    ("where", "parent"),
    [
        (place(0), SKIP),
        (place(0, 1, 2, 3), SKIP),
        (place(0, 1, 2, 3), GKE),
        (place(0, 1, 2, 3, nodes=4, slice=(0, 1)), {**GKE, "MEGASCALE_NUM_SLICES": ""} | dict.fromkeys(STALE, "")),
        (place(*range(8)), {**SKIP, "TPU_ACCELERATOR_TYPE": "v6e-8"}),
        (replace(PLACE, slot=gpus(0)), {**GKE, **STALE}),
    ],
)
def test_one_process_with_all_chips_of_a_host_hears_nothing(where: WorkerAssignment, parent: Mapping[str, str]) -> None:
    assert told(where, parent) == {}


# JAX's own tests of several processes on one host, and torch_xla's of several hosts.
@pytest.mark.parametrize(
    ("own", "workers", "parent", "process_bounds", "chip_bounds"),
    [
        (1, 4, SKIP, "2,2,1", "1,1,1"),
        (2, 2, SKIP, "2,1,1", "1,2,1"),
        (1, 8, SKIP, "4,2,1", "1,1,1"),
        (4, 2, SKIP, "1,2,1", "2,2,1"),
        (1, 4, {**SKIP, "TPU_ACCELERATOR_TYPE": "v4-8", "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1"}, "2,2,1", "1,1,1"),
        (1, 8, {**SKIP, "TPU_CHIPS_PER_HOST_BOUNDS": "2,4,1"}, "2,4,1", "1,1,1"),
    ],
)
def test_processes_share_a_host_in_boxes(
    own: int, workers: int, parent: Mapping[str, str], process_bounds: str, chip_bounds: str
) -> None:
    for local_rank in range(workers):
        numbers = range(local_rank * own, (local_rank + 1) * own)
        addresses = ",".join(f"localhost:{8476 + rank}" for rank in range(workers))
        assert told(place(*numbers, workers=workers), parent) == {
            "TPU_VISIBLE_CHIPS": ",".join(map(str, numbers)),
            "TPU_PROCESS_BOUNDS": process_bounds,
            "TPU_CHIPS_PER_PROCESS_BOUNDS": chip_bounds,
            "TPU_PROCESS_ADDRESSES": addresses,
            "TPU_PROCESS_PORT": str(8476 + local_rank),
            "CLOUD_TPU_TASK_ID": str(local_rank),
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }


@pytest.mark.parametrize(
    ("parent", "process_bounds"),
    [
        (V4_16, "2,2,2"),
        (GKE, "4,4,1"),
        ({**GKE, "TPU_HOST_BOUNDS": ""}, "4,4,1"),  # by the topology
        ({**GKE, "TPU_HOST_BOUNDS": "", "TPU_TOPOLOGY": ""}, "4,4,1"),  # by the type
        ({**GKE, "TPU_CHIPS_PER_HOST_BOUNDS": ""}, "4,4,1"),
        ({**SKIP, "TPU_ACCELERATOR_TYPE": "v2-32", "TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b,c,d"}, "4,4,1"),
    ],
)  # fmt: skip
def test_over_several_hosts_the_bounds_are_those_of_all_chips(parent: Mapping[str, str], process_bounds: str) -> None:
    said = told(place(2, workers=4, nodes=4, slice=(0, 1)), parent)
    worker_id, hosts = int(parent["TPU_WORKER_ID"]), parent["TPU_WORKER_HOSTNAMES"].split(",")
    assert said["TPU_PROCESS_BOUNDS"] == process_bounds
    assert said["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,1,1"
    assert said["CLOUD_TPU_TASK_ID"] == str(worker_id * 4 + 2)
    assert said["TPU_PROCESS_PORT"] == "8478"
    addresses = said["TPU_PROCESS_ADDRESSES"].split(",")
    assert len(addresses) == 4 * len(hosts)
    assert addresses[worker_id * 4 + 2] == f"{hosts[worker_id]}:8478"


def test_tpu7x_has_a_fourth_side() -> None:
    """As torch_xla writes it; which libtpu takes it was not tried."""
    assert told(place(0, workers=4, model="tpu7x"))["TPU_PROCESS_BOUNDS"] == "2,2,1,2"


@pytest.mark.parametrize(("own", "bounds"), [(1, "1,1,1"), (2, "1,2,1")])
def test_one_process_with_some_chips_of_its_host_is_kept_to_them(own: int, bounds: str) -> None:
    parent = {**SKIP, "TPU_ACCELERATOR_TYPE": "v4-8", "TPU_VISIBLE_DEVICES": "0,1,2,3"}
    assert told(place(*range(own)), parent) == {
        "TPU_VISIBLE_CHIPS": "0,1"[: 2 * own - 1],
        "TPU_VISIBLE_DEVICES": "0,1"[: 2 * own - 1],
        "TPU_CHIPS_PER_PROCESS_BOUNDS": bounds,
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }


@pytest.mark.parametrize(
    ("where", "parent", "sentence"),
    [
        (place(0, workers=2), GKE,
         "2 of this host's 4 TPU chips would be used, which libtpu cannot do with several processes"),
        (place(0, nodes=4, slice=(0, 1)), GKE,
         "1 of this host's 4 TPU chips would be used, which libtpu cannot do on a slice of several hosts"),
        (place(0, 1, workers=4), SKIP,
         "2 TPU chips per process: the position of such a part of a host with 8 is unknown"),
        (place(0, workers=4, nodes=4), {**GKE, "TPU_WORKER_HOSTNAMES": "", "TPU_NAME": "t"},
         "several processes on each TPU host need the names and the grid of the slice's hosts: "
         "TPU_WORKER_HOSTNAMES lists 0, and they form a grid of 2x2x1"),
        (place(0, workers=4, nodes=4), {**SKIP, "TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "a,b"},
         "several processes on each TPU host need the names and the grid of the slice's hosts: "
         "TPU_WORKER_HOSTNAMES lists 2, and their grid is unknown"),
    ],
)  # fmt: skip
def test_what_libtpu_cannot_do_is_refused(where: WorkerAssignment, parent: Mapping[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        told(where, parent)
    assert str(raised.value) == sentence
    assert raised.value.hint
    assert "--devices-per-worker" in raised.value.hint


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        (place(0, 1, 2, 3, nodes=8, slice=(1, 2)), ("2", "1")),
        (place(0, 1, 2, 3, nodes=4, slice=(0, 1)), ("1", "0")),  # one slice that is left is told so
        (place(0, 1, 2, 3, nodes=4), None),  # where slices are unknown, the controller's word stands
    ],
)
def test_slices_are_joined_by_numbers_of_this_round(where: WorkerAssignment, numbers: tuple[str, str] | None) -> None:
    joined = dict(zip(("MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID"), numbers or (), strict=False))
    rank_0 = {"MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.9"}  # worker 0 of slice 0
    assert told(where, {**GKE, **STALE}) == ({**rank_0, **joined} if joined else {})


@pytest.mark.parametrize(("parent", "port"), [(GKE, "8083"), ({**GKE, **STALE}, "9002")])
def test_several_processes_on_a_host_listen_on_ports_of_their_own(parent: Mapping[str, str], port: str) -> None:
    assert told(place(2, workers=4, nodes=8, slice=(0, 2)), parent)["MEGASCALE_PORT"] == port


@pytest.mark.parametrize("workers", [1, 4])
def test_what_the_slice_says_of_itself_is_left_alone(workers: int) -> None:
    own = range(4 // workers)
    said = told(place(*own, workers=workers, nodes=8, slice=(1, 2)), {**GKE, **STALE})
    assert not set(said) & {
        "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE", "TPU_TOPOLOGY", "TPU_HOST_BOUNDS",
        "TPU_CHIPS_PER_HOST_BOUNDS",
    }  # fmt: skip


def test_what_the_metadata_server_said_is_used_where_variables_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {name: value for name, value in V4_16.items() if name not in SKIP} | {"MEGASCALE_NUM_SLICES": "2"}
    answer = slice_identity.TpuMetadata(variables, "by the metadata server")
    monkeypatch.setattr(slice_identity, "_cache", {LINK_LOCAL: answer})
    said = told(place(0, workers=4, nodes=2, slice=(0, 1)), {})
    assert (said["TPU_PROCESS_BOUNDS"], said["CLOUD_TPU_TASK_ID"]) == ("2,2,2", "4")
    assert said["MEGASCALE_NUM_SLICES"] == "1", "JAX asks the server for what is not set, which would say 2"


@pytest.mark.parametrize(
    ("slots", "has_other_nodes", "parent", "words"),
    [
        ([chips(0, 1, 2, 3)], True, GKE, ""),
        ([chips(0), chips(1), chips(2), chips(3)], True, GKE, "as torch_xla does it, not tried on hardware"),
        ([chips(0), chips(1)], True, SKIP, ""),
        ([chips(0, 1, 2, 3)], False, GKE, "this host is worker 2 of a TPU slice of 4 hosts"),
        ([gpus(0)], False, GKE, ""),
    ],
)
def test_the_unusual_is_said(slots: list[Slot], has_other_nodes: bool, parent: Mapping[str, str], words: str) -> None:
    remarks = TpuEnvironment().remarks(slots, parent, has_other_nodes)
    assert words in "".join(remarks)
    assert bool(words) == bool(remarks)


@pytest.mark.parametrize(("workers", "is_numbered_here"), [(1, False), (4, True)])
def test_jax_gets_numbers_from_its_slice_unless_hosts_have_many_processes(workers: int, is_numbered_here: bool) -> None:
    """JAX's own classes for TPUs count hosts: several processes of one would all have its number."""
    said = make_jax().variables(place(*range(4 // workers), workers=workers), GKE)
    assert ("OMPI_COMM_WORLD_RANK" in said) == is_numbered_here
    assert said["JAX_COORDINATOR_ADDRESS"] == "10.0.0.9:29400"


@pytest.mark.parametrize(
    ("slot", "parent", "device"),
    [(chips(2), {}, "TPU"), (gpus(2), {}, "CUDA"), (chips(2), {"PJRT_DEVICE": "CPU"}, "CPU")],
)
def test_torch_xla_is_told_its_device_and_local_place(slot: Slot, parent: Mapping[str, str], device: str) -> None:
    assert XlaEnvironment().variables(replace(PLACE, slot=slot), parent) == {
        "PJRT_DEVICE": device,
        "PJRT_LOCAL_PROCESS_RANK": "2",
        "PJRT_LOCAL_PROCESS_COUNT": "8",
    }


@pytest.mark.parametrize(
    ("topology", "chips_per_host", "bounds"),
    [
        ((4, 4), 4, (2, 2, 1)),
        ((2, 2, 2), 4, (1, 1, 2)),
        ((4, 4, 8), 4, (2, 2, 8)),
        ((2, 4), 8, (1, 1, 1)),
        ((3, 4), 4, None),
    ],
)
def test_hosts_lie_in_the_grid_as_boxes_of_four_chips(
    topology: tuple[int, ...], chips_per_host: int, bounds: tuple[int, ...] | None
) -> None:
    assert compute_host_bounds(topology, chips_per_host) == bounds
