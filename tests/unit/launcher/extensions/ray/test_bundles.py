"""What a job asks Ray for: a bundle from the options and the nodes, how many, and why they do not fit."""

from __future__ import annotations

import pytest

from launcher.agent import command
from launcher.extensions.ray.bundles import (
    ClusterNode,
    Demand,
    choose_bundle,
    choose_demand,
    describe_shortage,
    exclude_nodes,
    is_selected,
    list_fitting,
)
from launcher.model.errors import TemporaryError, UsageError

STORE = ("--rdzv-backend=c10d", "--rdzv-endpoint=h:1", "--rdzv-conf=is_host=0")


def make_nodes(*resources: dict[str, float], **labels: str) -> list[ClusterNode]:
    return [ClusterNode(id=f"n{at}", resources=one, labels=labels) for at, one in enumerate(resources)]


GPUS = make_nodes({"CPU": 0}, {"GPU": 8, "CPU": 64}, {"GPU": 8, "CPU": 64})
TPUS = make_nodes({"TPU": 4, "CPU": 96})
CPUS = make_nodes({"CPU": 4}, {"CPU": 4})


@pytest.mark.parametrize(
    ("words", "nodes", "bundle"),
    [
        ([], GPUS, {"GPU": 8}),
        (["--nproc-per-node=4"], GPUS, {"GPU": 4}),
        (["--nproc-per-node=4", "--devices-per-worker=2"], GPUS, {"GPU": 8}),
        (["--nproc-per-node=2", "--devices-per-worker=all"], GPUS, {"GPU": 8}),
        (["--nproc-per-node=gpu"], GPUS, {"GPU": 8}),
        (["--nproc-per-node=4", "--devices=cpu"], GPUS, {"CPU": 4}),
        (["--nproc-per-node=4", "--devices=amd"], GPUS, {"GPU": 4}),
        ([], TPUS, {"TPU": 4}),
        (["--nproc-per-node=1"], TPUS, {"TPU": 4}),  # one process of JAX has all chips of its host
        (["--nproc-per-node=4", "--devices-per-worker=1"], TPUS, {"TPU": 4}),
        ([], CPUS, {"CPU": 1}),
        (["--nproc-per-node=2"], CPUS, {"CPU": 2}),
        (["--nproc-per-node=cpu"], CPUS, {"CPU": 4}),
    ],
)
def test_a_bundle_has_the_workers_devices(words: list[str], nodes: list[ClusterNode], bundle: dict[str, float]) -> None:
    assert choose_bundle(command.parse([*STORE, *words, "t.py"], {}).devices, nodes) == (bundle, "")


def test_of_unequal_nodes_the_smallest_counts_and_some_are_excluded_by_id() -> None:
    bundle, remark = choose_bundle(command.parse([*STORE, "t.py"], {}).devices, make_nodes({"GPU": 8}, {"GPU": 4}))
    assert bundle == {"GPU": 4}
    assert remark == "nodes have 4, 8 GPU: every agent takes 4; --bundle GPU=N overrides it"
    with pytest.raises(UsageError, match="no node of the Ray cluster has GPU"):
        choose_bundle(command.parse([*STORE, "--nproc-per-node=gpu", "t.py"], {}).devices, CPUS)
    with pytest.raises(TemporaryError, match="none of the 2 nodes of the Ray cluster has GPU=8"):
        choose_demand(command.parse([*STORE, "t.py"], {}).placement, CPUS, {"GPU": 8}, {}, spares=0)
    assert exclude_nodes({"a": "b"}, []) == {"a": "b"}
    assert exclude_nodes({"a": "b"}, ["n2", "n1"]) == {"a": "b", "ray.io/node-id": "!in(n1,n2)"}
    assert exclude_nodes({}, ["n1"]) == {"ray.io/node-id": "!n1"}


@pytest.mark.parametrize(
    ("words", "least", "most"),
    [
        ([], 2, 3),
        (["--nnodes=4"], 4, 5),
        (["--nnodes=2:6"], 2, 7),
        (["--nnodes=1:"], 1, 3),
        (["--mesh=dp=*,tp=8"], 1, 3),
    ],
)
def test_how_many_bundles_are_wanted(words: list[str], least: int, most: int) -> None:
    demand = choose_demand(command.parse([*STORE, *words, "t.py"], {}).placement, GPUS, {"GPU": 8}, {}, spares=1)
    assert (demand.least, demand.most) == (least, most)


@pytest.mark.parametrize(
    ("label", "condition", "is_met"),
    [
        ("a", "a", True), ("b", "a", False), (None, "a", False), ("a", "!a", False), ("b", "!a", True),
        (None, "!a", True), ("a", "in(a,b)", True), ("c", "in(a, b)", False), ("a", "!in(a,b)", False),
        ("c", "!in(a,b)", True),
    ],
)  # fmt: skip
def test_a_label_meets_a_condition_as_in_ray(label: str | None, condition: str, is_met: bool) -> None:
    assert is_selected(label, condition) is is_met


@pytest.mark.parametrize(
    ("condition", "then"),
    [
        ("n3", "n3"),
        ("n1", "none"),  # no node has this id: the bundle waits
        ("in(n1, n2)", "n2"),
        ("in(n1,n2,n3)", "in(n2,n3)"),
        ("!n2", "!in(n1,n2)"),
        ("!in(n1,n2)", "!in(n1,n2)"),
    ],
)
def test_nodes_are_excluded_among_those_that_the_user_chose(condition: str, then: str) -> None:
    assert exclude_nodes({"ray.io/node-id": condition}, ["n1"]) == {"ray.io/node-id": then}
    assert exclude_nodes({"ray.io/node-id": condition}, []) == {"ray.io/node-id": condition}


def test_a_shortage_says_what_is_wanted_and_what_is_there() -> None:
    nodes = [
        ClusterNode(id="a", resources={"GPU": 8}, labels={"rack": "r1"}),
        ClusterNode(id="b", resources={"GPU": 8}, labels={"rack": "r1"}),
        ClusterNode(id="c", resources={"GPU": 8}, labels={}),
        ClusterNode(id="d", resources={"CPU": 8}, labels={}),
    ]
    demand = Demand(bundle={"GPU": 8}, label_selector={"rack": "r1"}, least=3, most=3)
    assert describe_shortage(demand, 3, 1, 0, nodes, "08:00") == (
        "wanted 3 nodes with GPU=8 and rack=r1, present 1, since 08:00: of 4 nodes in the Ray cluster 2 can hold that "
        "when idle"
    )
    assert [node.id for node in list_fitting(nodes, {"GPU": 8}, {})] == ["a", "b", "c"]
