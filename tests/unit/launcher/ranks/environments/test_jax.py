"""What a worker of JAX is told, and which devices it sees."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from launcher.model.node import Device, Slot
from tests.support.documents.pages import VARIABLES
from tests.support.sections import make_jax, make_torch
from tests.unit.launcher.ranks.environments.test_torch import PLACE, gpus


def devices(kind: str, *indices: int) -> Slot:
    found = tuple(Device(kind=kind, index=index, id=f"{kind}{index}", visible=str(index)) for index in indices)
    return Slot(index=0, devices=found)


def told(slot: Slot, parent: dict[str, str] | None = None, **job: Any) -> dict[str, str]:
    """All that torch's and JAX's environments say together."""
    place, binding = replace(PLACE, slot=slot), {"device_binding": job.pop("binding", "local-rank")}
    torch, jax = make_torch(**binding), make_jax(**binding, **job)
    return {**torch.variables(place, parent or {}), **jax.variables(place, parent or {})}


def test_initialize_finds_all_that_it_needs_and_nothing_of_mpirun_where_mpi_is_in_use() -> None:
    said = make_jax().variables(PLACE, {})
    assert said == {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.9:29400", "JAX_LOCAL_DEVICE_IDS": "2", "OMPI_MCA_orte_hnp_uri": "meshrun",
        "OMPI_COMM_WORLD_SIZE": "224", "OMPI_COMM_WORLD_RANK": "26", "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    }  # fmt: skip
    jax = make_jax(mpi_reason="mpi4py is installed")
    assert set(jax.variables(PLACE, {})) == {"JAX_COORDINATOR_ADDRESS", "JAX_LOCAL_DEVICE_IDS"}
    (sentence,) = jax.remarks([], {}, has_other_nodes=False)
    assert "launcher.worker.init_jax()" in sentence


@pytest.mark.parametrize(
    ("binding", "slot", "parent", "ids", "visible", "local_rank"),
    [
        ("local-rank", gpus(2), {}, "2", None, "2"),
        ("local-rank", gpus(2), {"CUDA_VISIBLE_DEVICES": "4,5,6"}, "2", None, "2"),
        ("local-rank", gpus(4, 5), {}, "0,1", "4,5", "2"),
        ("visible", gpus(2), {}, "0", "2", "0"),
        ("visible", gpus(4, 5), {}, "0,1", "4,5", "0"),
    ],
)
def test_a_worker_uses_its_own_gpus(
    binding: str, slot: Slot, parent: dict[str, str], ids: str, visible: str | None, local_rank: str
) -> None:
    said = told(slot, parent, binding=binding)
    assert said["JAX_LOCAL_DEVICE_IDS"] == ids
    assert said.get("CUDA_VISIBLE_DEVICES") == visible
    assert said["LOCAL_RANK"] == said["OMPI_COMM_WORLD_LOCAL_RANK"] == local_rank


OWN = Slot(index=2, devices=(Device(kind="npu", index=2, id="npu2", visible="2", variable="MY_VISIBLE"),))


@pytest.mark.parametrize(
    ("slot", "variable"),
    [
        (devices("nvidia", 2), "CUDA_VISIBLE_DEVICES"),
        (devices("intel", 2), "ZE_AFFINITY_MASK"),
        (OWN, "MY_VISIBLE"),  # a variable that the user has named
        (devices("cpu", 2), ""),
    ],
    ids=["nvidia", "intel", "own", "cpu"],
)
def test_visible_shows_each_worker_its_own_devices_of_any_kind(slot: Slot, variable: str) -> None:
    said = make_torch(device_binding="visible").variables(replace(PLACE, slot=slot), {})
    if variable:
        assert (said[variable], said["LOCAL_RANK"], said["LAUNCHER_LOCAL_RANK"]) == ("2", "0", "2")
    else:
        assert said == make_torch().variables(replace(PLACE, slot=slot), {})


def test_on_cpus_and_tpus_nothing_is_said_of_devices_and_one_process_of_a_tpu_host_has_no_number() -> None:
    assert "JAX_LOCAL_DEVICE_IDS" not in told(devices("cpu", 2))
    one = make_jax().variables(replace(PLACE, slot=devices("tpu", 0, 1, 2, 3), local_world_size=1), {})
    assert set(one) == {"JAX_COORDINATOR_ADDRESS"}
    several = make_jax().variables(replace(PLACE, slot=devices("tpu", 2)), {})
    assert several["OMPI_COMM_WORLD_RANK"] == "26"
    assert "JAX_LOCAL_DEVICE_IDS" not in several


def test_the_only_worker_of_a_node_keeps_the_device_ids_of_the_user_if_it_sees_all_devices() -> None:
    place, parent = replace(PLACE, local_world_size=1), {"JAX_LOCAL_DEVICE_IDS": "0,1,2,3"}
    assert "JAX_LOCAL_DEVICE_IDS" not in make_jax().variables(place, parent)
    assert make_jax().variables(PLACE, parent)["JAX_LOCAL_DEVICE_IDS"] == "2"
    jax = make_jax(device_binding="visible")
    assert jax.variables(place, {"JAX_LOCAL_DEVICE_IDS": "3"})["JAX_LOCAL_DEVICE_IDS"] == "0"
    place = replace(place, slot=devices("nvidia", 4, 5, 6))
    assert "JAX_LOCAL_DEVICE_IDS" not in jax.variables(place, {"JAX_LOCAL_DEVICE_IDS": "0,2"})


@pytest.mark.parametrize(
    ("address", "parent", "coordinator", "bind"),
    [
        ("10.0.0.9", {}, "10.0.0.9:29400", None),
        ("head.cluster", {}, "head.cluster:29400", None),
        ("127.0.0.1", {}, "127.0.0.1:29400", "127.0.0.1:29400"),
        ("::1", {}, "[::1]:29400", "[::1]:29400"),
        ("fd00::7", {}, "[fd00::7]:29400", None),
        ("10.0.0.9", {"JAX_COORDINATOR_BIND_ADDRESS": "[::]:1234"}, "10.0.0.9:29400", "[::]:29400"),
    ],
)
def test_the_coordinator_listens_there(
    address: str, parent: dict[str, str], coordinator: str, bind: str | None
) -> None:
    said = make_jax().variables(replace(PLACE, master_addr=address), parent)
    assert said["JAX_COORDINATOR_ADDRESS"] == coordinator
    assert said.get("JAX_COORDINATOR_BIND_ADDRESS") == bind


def test_a_proxy_and_what_does_not_go_with_visible_devices_are_pointed_out() -> None:
    jax, parent = make_jax(), {"https_proxy": "http://proxy:3128", "no_proxy": "x"}
    assert not jax.remarks([], parent, has_other_nodes=False)
    (sentence,) = jax.remarks([], parent, has_other_nodes=True)
    assert sentence.startswith("https_proxy is set")
    assert not jax.remarks([], {"no_proxy": "x", "HTTP_PROXY": ""}, has_other_nodes=True)
    visible = make_torch(device_binding="visible")
    assert "symmetric memory" in visible.remarks([gpus(0), gpus(1)], {}, False)[0]
    assert "has no effect" in visible.remarks([devices("cpu", 0)], {}, False)[0]
    assert not visible.remarks([gpus(0)], {}, False)
    assert not make_torch().remarks([gpus(0), gpus(1)], {}, False)


def test_the_table_has_a_row_for_exactly_each_variable_set_for_jax() -> None:
    given = make_jax().variables(replace(PLACE, master_addr="127.0.0.1"), {})
    assert sorted(given) == sorted(row.name for row in VARIABLES if row.framework == "jax")
