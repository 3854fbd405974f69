"""The recipe for KubeRay: its entrypoint is a command of meshrun-ray, and the pods are what that command asks for."""

from __future__ import annotations

import shlex

import pytest
import yaml

from launcher.agent import command
from launcher.config.options import command_line
from launcher.extensions.ray.bundles import ClusterNode, choose_demand, list_fitting
from launcher.extensions.ray.options import OPTIONS, STOP_MARGIN_S, make_agent_words, split
from tests.support.documents.recipes import KUBERNETES, Document, documents

STORE = ["--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--rdzv-conf=is_host=0"]


@pytest.fixture
def spec() -> Document:
    (found,) = documents(KUBERNETES / "rayjob.yaml")
    return found["spec"]


def test_the_entrypoint_is_a_valid_command_that_the_pods_can_hold(spec: Document) -> None:
    program, *words = shlex.split(spec["entrypoint"])
    assert program == "meshrun-ray"
    own, rest = split(command_line.parse(words, OPTIONS), {})
    config = command.parse([*STORE, *make_agent_words(rest, {})], {})
    assert config.notes == ()
    assert config.workers.max_restarts
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    limits = container["resources"]["limits"]
    pod = ClusterNode(id="p", resources={"CPU": float(limits["cpu"]), "GPU": limits["nvidia.com/gpu"]}, labels={})
    assert own.bundle is not None
    demand = choose_demand(config.placement, [pod], own.bundle, own.label_selector, own.spares)
    assert (demand.least, demand.most) == (group["minReplicas"], group["maxReplicas"])
    assert list_fitting([pod], own.bundle, {})
    assert own.bundle["GPU"] == config.devices.worker_count == limits["nvidia.com/gpu"]
    assert container["ports"] == [{"name": "metrics", "containerPort": config.extensions["metrics-port"].read()[1]}]
    kept = {each["mountPath"] for each in container["volumeMounts"] if each["name"] == "checkpoints"}
    assert {(config.output.log_dir or "").rpartition("/")[0]} == kept
    assert spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_ray_waits_for_the_workers_whose_pods_share_memory_and_know_their_machine(spec: Document) -> None:
    _, *words = shlex.split(spec["entrypoint"])
    timeout_s = float(command_line.parse(words, OPTIONS).values["shutdown-timeout"])
    wait_s = float(yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"])
    assert wait_s == timeout_s + STOP_MARGIN_S
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert group["template"]["spec"]["terminationGracePeriodSeconds"] >= timeout_s + 15
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    assert pod["containers"][0]["env"] == [
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    ]
