"""What a worker of Paddle is told, and which device it uses."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from launcher.model.errors import UsageError
from launcher.model.node import Device, Slot
from tests.support.sections import make_paddle
from tests.unit.launcher.ranks.environments.test_torch import PLACE, gpus

CPU = Slot(index=0, devices=(Device(kind="cpu", index=0, id="cpu0", visible=""),))
NPU = Slot(index=0, devices=(Device(kind="npu", index=0, id="npu0", visible="0"),))
SMALL = replace(PLACE, slot=CPU, rank=2, world_size=3, local_rank=0, local_world_size=1, group_world_size=2)


def test_init_parallel_env_finds_what_it_needs_and_what_needs_more_is_named() -> None:
    assert make_paddle().variables(SMALL, {}) == {
        "PADDLE_TRAINER_ID": "2", "PADDLE_TRAINERS_NUM": "3", "PADDLE_MASTER": "10.0.0.9:29400",
        "PADDLE_TRAINER_ENDPOINTS": "10.0.0.9:29400,10.0.0.9:29401,10.0.0.9:29402",
        "PADDLE_CURRENT_ENDPOINT": "10.0.0.9:29402", "PADDLE_GLOBAL_RANK": "2", "PADDLE_GLOBAL_SIZE": "3",
        "PADDLE_LOCAL_RANK": "0", "PADDLE_LOCAL_SIZE": "1", "PADDLE_RANK_IN_NODE": "0", "PADDLE_NNODES": "2",
        "PADDLE_DISTRI_BACKEND": "gloo",
    }  # fmt: skip
    outer = {name: "outer" for name in make_paddle().variables(SMALL, {}) if name != "PADDLE_DISTRI_BACKEND"}
    assert make_paddle().variables(SMALL, outer) == make_paddle().variables(SMALL, {})
    (sentence,) = make_paddle().remarks([NPU], {}, has_other_nodes=False)
    assert "for npu devices" in sentence
    assert not make_paddle().remarks([CPU, gpus(0)], {}, has_other_nodes=False)
    assert (
        not {"FLAGS_selected_gpus", "PADDLE_DISTRI_BACKEND"}
        & make_paddle().variables(replace(SMALL, slot=NPU), {}).keys()
    )


@pytest.mark.parametrize("given", ["heter", "nonsense"])
def test_a_backend_of_the_user_stays(given: str) -> None:
    assert make_paddle().variables(SMALL, {"PADDLE_DISTRI_BACKEND": given})["PADDLE_DISTRI_BACKEND"] == given
    assert "PADDLE_DISTRI_BACKEND" not in make_paddle().variables(replace(PLACE, slot=gpus(2)), {})


@pytest.mark.parametrize(
    ("binding", "is_virtual", "slot", "selected"),
    [
        ("local-rank", False, gpus(2), "2"),
        ("visible", False, gpus(2), "0"),
        ("local-rank", True, gpus(2), "0"),
        ("local-rank", False, gpus(4, 5), "0,1"),
    ],
)
def test_a_worker_selects_its_gpus_of_those_it_sees(binding: str, is_virtual: bool, slot: Slot, selected: str) -> None:
    paddle = make_paddle(device_binding=binding, virtual_local_rank=is_virtual)
    found = paddle.variables(replace(PLACE, slot=slot), {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5"})
    assert found["FLAGS_selected_gpus"] == selected


@pytest.mark.parametrize("port", [29400, 65535, 1])
def test_512_workers_have_endpoints_of_their_own(port: int) -> None:
    place = replace(SMALL, rank=511, world_size=512, master_port=port)
    found = make_paddle().variables(place, {})
    endpoints = found["PADDLE_TRAINER_ENDPOINTS"].split(",")
    assert len(set(endpoints)) == 512
    assert endpoints[0] == found["PADDLE_MASTER"] == f"10.0.0.9:{port}"
    assert endpoints[511] == found["PADDLE_CURRENT_ENDPOINT"]
    assert all(1 <= int(endpoint.partition(":")[2]) <= 65535 for endpoint in endpoints)


def test_more_endpoints_than_linux_passes_on_and_an_ipv6_address_are_refused() -> None:
    host = "node-17.cluster.example"
    with pytest.raises(UsageError, match=r"10,000,000 workers at node-17\.cluster\.example, and Linux allows 131,046"):
        make_paddle().variables(replace(SMALL, world_size=10_000_000, master_addr=host), {})
    most = next(size for size in range(4600, 0, -1) if is_possible(size, host))
    text = make_paddle().variables(replace(SMALL, world_size=most, master_addr=host), {})
    assert 120_000 < len("PADDLE_TRAINER_ENDPOINTS=" + text["PADDLE_TRAINER_ENDPOINTS"]) < 128 * 1024
    with pytest.raises(UsageError, match="rank 0 at fd00::7") as caught:
        make_paddle().variables(replace(SMALL, master_addr="fd00::7"), {})
    assert "--local-addr" in caught.value.hint
    assert make_paddle().variables(replace(SMALL, master_addr="n1"), {})["PADDLE_MASTER"] == "n1:29400"


def is_possible(size: int, host: str) -> bool:
    try:
        return bool(make_paddle().variables(replace(SMALL, world_size=size, master_addr=host), {}))
    except UsageError:
        return False
