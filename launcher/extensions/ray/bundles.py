"""What a job asks Ray for: how much of a node, and on how many nodes. Pure.

One agent runs in one bundle, which holds all that its workers use of a node: Ray then gives it the devices, and keeps
others off them. Ray counts devices by names of its own, GPU for those of three makers. How a bundle becomes an agent:
`agent_pool` says when, and `cluster` starts the `actor` in it that starts the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from launcher.config.config import DeviceOptions, PlacementOptions
from launcher.model.errors import TemporaryError, UsageError
from launcher.model.text import format_count, format_list

# Kind of device, as --devices has it -> its resource in Ray (_private/accelerators).
RESOURCES = {"nvidia": "GPU", "amd": "GPU", "intel": "GPU", "tpu": "TPU", "cpu": "CPU"}
_ACCELERATORS = ("GPU", "TPU", "HPU", "NPU", "neuron_cores")
_NODE_ID = "ray.io/node-id"
_WORDS = {"gpu": "GPU", "xpu": "GPU", "cpu": "CPU", "hpu": "HPU", "npu": "NPU"}  # of --nproc-per-node


class ClusterNode(Struct, frozen=True):
    """A node of Ray that is alive."""

    id: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]


class Demand(Struct, frozen=True):
    """`least` bundles have to be there before anything starts, `most` are wanted, spares included."""

    bundle: Mapping[str, float]
    label_selector: Mapping[str, str]
    least: int
    most: int

    def __str__(self) -> str:
        return format_bundle(self.bundle, self.label_selector)


def choose_bundle(options: DeviceOptions, nodes: Sequence[ClusterNode]) -> tuple[dict[str, float], str]:
    """Return the resources that --nproc-per-node needs here, and a remark, "" if there is none. Raises UsageError."""
    resource = _choose_resource(options, nodes)
    amounts = sorted({node.resources[resource] for node in nodes if node.resources.get(resource)})
    workers, width = options.worker_count, options.devices_per_worker
    is_whole = width == "all" or (resource == "TPU" and width is None)  # JAX takes all chips of a host
    if isinstance(workers, int) and not is_whole:
        return {resource: float(workers * (width if isinstance(width, int) else 1))}, ""
    if resource == "CPU" and workers != "cpu":
        return {"CPU": float(workers) if isinstance(workers, int) else 1.0}, ""
    if not amounts:
        sentence = f"no node of the Ray cluster has {resource}, which --nproc-per-node needs"
        raise UsageError(sentence, f"set --bundle {resource}=N if an autoscaler can add such nodes")
    remark = ""
    if len(amounts) > 1:
        counts = format_list([f"{amount:g}" for amount in amounts])
        remark = f"nodes have {counts} {resource}: every agent takes {amounts[0]:g}; --bundle {resource}=N overrides it"
    return {resource: amounts[0]}, remark


def _choose_resource(options: DeviceOptions, nodes: Sequence[ClusterNode]) -> str:
    if options.request is not None:
        return RESOURCES.get(options.request.kind, "CPU")
    if isinstance(options.worker_count, str) and options.worker_count in _WORDS:
        return _WORDS[options.worker_count]
    return next((name for name in _ACCELERATORS if any(node.resources.get(name) for node in nodes)), "CPU")


def choose_demand(
    options: PlacementOptions,
    nodes: Sequence[ClusterNode],
    bundle: Mapping[str, float],
    selector: Mapping[str, str],
    spares: int,
) -> Demand:
    """Return how many bundles are wanted: by --nnodes, else one on every node that can hold it.

    Raises TemporaryError if there is no such node.
    """
    if options.origins["nodes_min"] != "default" and options.nodes_max is not None:
        return Demand(bundle, selector, options.nodes_min, options.nodes_max + spares)
    count = len(list_fitting(nodes, bundle, selector))
    if not count and options.origins["nodes_min"] == "default":
        sentence = f"none of the {len(nodes)} nodes of the Ray cluster has {format_bundle(bundle, selector)}"
        raise TemporaryError(sentence, "set --nnodes MIN:MAX to wait for such nodes")
    least = options.nodes_min if options.mesh is not None or options.origins["nodes_min"] != "default" else count
    return Demand(bundle, selector, least, max(least, count) + spares)


def list_fitting(
    nodes: Iterable[ClusterNode], bundle: Mapping[str, float], selector: Mapping[str, str]
) -> list[ClusterNode]:
    """Return the nodes on which such a bundle fits, if nothing else is there."""
    return [
        node
        for node in nodes
        if all(node.resources.get(name, 0.0) >= amount for name, amount in bundle.items())
        and all(is_selected(node.labels.get(key), condition) for key, condition in selector.items())
    ]


def is_selected(label: str | None, condition: str) -> bool:
    """Whether a label, None where the node has none, meets Ray's condition: v, !v, in(a,b), !in(a,b)."""
    return (label is not None and label in _list_values(condition)) != condition.startswith("!")


def _list_values(condition: str) -> list[str]:
    positive = condition.removeprefix("!")
    values = positive[3:-1].split(",") if positive.startswith("in(") and positive.endswith(")") else [positive]
    return [value.strip() for value in values]


def exclude_nodes(selector: Mapping[str, str], used: Iterable[str]) -> dict[str, str]:
    """Return the selector for a bundle that may not be on the nodes of these ids."""
    excluded, condition = set(used), selector.get(_NODE_ID, "!")
    if not excluded:
        return dict(selector)
    is_chosen, values = not condition.startswith("!"), set(_list_values(condition)) - {""}
    # "none" is no node's id: the bundle waits, where all that the user chose are in use.
    ids = sorted(values - excluded) or ["none"] if is_chosen else sorted(values | excluded)
    text = f"in({','.join(ids)})" if len(ids) > 1 else ids[0]
    return {**selector, _NODE_ID: text if is_chosen else f"!{text}"}


def format_bundle(bundle: Mapping[str, float], selector: Mapping[str, str]) -> str:
    """Return "GPU=8,CPU=8 and ray.io/market-type=spot"."""
    text = ",".join(f"{name}={amount:g}" for name, amount in bundle.items())
    return text + "".join(f" and {key}={condition}" for key, condition in selector.items())


def describe_shortage(
    demand: Demand, wanted: int, present: int, starting: int, nodes: Sequence[ClusterNode], since: str
) -> str:
    """Return what is wanted and what is there. `present`: nodes whose agent runs."""
    fitting = list_fitting(nodes, demand.bundle, demand.label_selector)
    begun = f", starting {starting}" if starting else ""
    return (
        f"wanted {format_count(wanted, 'node')} with {demand}, present {present}{begun}, since {since}: "
        f"of {format_count(len(nodes), 'node')} in the Ray cluster {len(fitting)} can hold that when idle"
    )
