"""What an agent inherits of the actor that starts it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from launcher.extensions.ray.environment import format_labels, make_agent_environment
from launcher.locality.kubernetes import Source, parse_labels

RAYS = {
    "RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": "7", "RAY_CLIENT_MODE": "0",
    "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace", "OMP_NUM_THREADS": "1",
}  # fmt: skip


def make(
    inherited: Mapping[str, str],
    sent: Mapping[str, str] | None = None,
    own: Mapping[str, str] | None = None,
    bundle: Mapping[str, float] | None = None,
    granted: Mapping[str, list[str]] | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, str]:
    return make_agent_environment(
        inherited, sent or {}, own=own or {}, bundle=bundle or {"GPU": 1, "TPU": 1}, granted=granted or {},
        labels=labels or {},
    )  # fmt: skip


def test_what_ray_sets_for_itself_is_left_out_and_what_the_driver_sends_counts_for_more() -> None:
    assert make({**RAYS, "PATH": "/bin", "RAY_ADDRESS": "h:1"}) == {"PATH": "/bin", "RAY_ADDRESS": "h:1"}
    assert make({"A": "node", **RAYS}, {"A": "driver", "OMP_NUM_THREADS": "1"}) == {
        "A": "driver",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.parametrize("name", RAYS)
def test_what_the_user_has_set_stays(name: str) -> None:
    assert make({name: RAYS[name]}, own={name: RAYS[name]}) == {name: RAYS[name]}


def test_an_agent_sees_the_devices_that_it_was_granted_and_no_others() -> None:
    assert make({"CUDA_VISIBLE_DEVICES": "0,1"}, bundle={"CPU": 4}) == {
        "CUDA_VISIBLE_DEVICES": "", "TPU_VISIBLE_CHIPS": "",
    }  # fmt: skip
    assert make({"CUDA_VISIBLE_DEVICES": "2,3"}, bundle={"GPU": 2, "TPU": 1}) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert make({}, granted={"GPU": ["2", "3"]}) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert make({"HIP_VISIBLE_DEVICES": "0"}, granted={"GPU": ["0"]}) == {"HIP_VISIBLE_DEVICES": "0"}


def test_labels_of_the_ray_node_reach_the_agent_and_name_levels() -> None:
    given = {"LAUNCHER_NODE_LABELS": 'zone="a b",rack=r2'}
    text = make(given, labels={"rack": "r1", "ray.io/gpu-domain": "d1", "bad": "x,y"})["LAUNCHER_NODE_LABELS"]
    assert parse_labels(text) == {"rack": "r2", "ray.io/gpu-domain": "d1", "zone": "a b"}
    json = '{"rack": "r2"}'
    assert make({"LAUNCHER_NODE_LABELS": json}, labels={"rack": "r1"}) == {"LAUNCHER_NODE_LABELS": json}
    labels = {
        "ray.io/node-id": "f00", "ray.io/availability-zone": "z1", "ray.io/gpu-domain": "d1",
        "ray.io/tpu-slice-name": "s1", "ray.io/tpu-worker-id": "1",
    }  # fmt: skip
    environ = {"LAUNCHER_NODE_LABELS": format_labels(labels)}
    assert Source().is_likely(environ)
    found = Source().look(environ, 1.0)
    assert [(level.name, level.domain) for level in found.levels] == [("zone", "z1"), ("nvl", "d1"), ("slice", "s1")]
    assert found.levels[1].origin == "LAUNCHER_NODE_LABELS: ray.io/gpu-domain"
