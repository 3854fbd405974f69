"""Every call of Ray's that the driver makes, in one place: groups of bundles, actors in them, and what became of them.

Only here and in `actor` is ray imported. An answer that does not come (Ray's GCS restarts) or a function that another
version lacks changes nothing: the last answer counts until there is a new one.

Two functions are private to Ray: nothing public tells which nodes are about to be taken, which Ray Train asks the same
way, or what is free on each node. Without the first a planned removal is a loss like any other, without the second a
shortage is described by what nodes have.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from launcher.hosts.ray.actor import AgentActor, AgentEnd, AgentOrder, make_node_name
from launcher.hosts.ray.agent_pool import (
    ActorDied,
    ActorUnreachable,
    ClusterView,
    EndReported,
    PoolEvent,
    StartReported,
)
from launcher.hosts.ray.bundles import ClusterNode, Demand, exclude_nodes
from launcher.model.errors import TemporaryError, UsageError, sanitize
from rendezvous.stores.addresses import split_address

VERSION_MIN = (2, 51)  # labels in bundles and actors, and all that is used here
NODES_INTERVAL_S = 2.0  # between two questions for the nodes, and which of them are drained
PLACED_INTERVAL_S, PLACED_INTERVAL_MAX_S = 0.1, 0.5  # for the bundles' nodes, soon after a request, and later
SOON_S = 30.0
CONNECT_LIMIT_S = 10.0  # to the address of the cluster
_ACCELERATORS = ("TPU", "HPU", "NPU", "neuron_cores")  # what an actor has to ask for itself, beside GPU
_THREADS = 16  # of an actor: each unanswered `wait` keeps one, for a minute at most
_Answer = TypeVar("_Answer")


def require_ray() -> None:
    """Raise UsageError if Ray is not installed, or too old."""
    # Before the import: the driver prints what its actors print, and equal lines of different ranks are no repetition.
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError(f"meshrun-ray needs the package ray: {error}", "pip install 'meshrun[ray]'") from None
    require_version(getattr(ray, "__version__", ""))


def require_version(version: str) -> None:
    """Raise UsageError for a version of Ray that is too old."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    if tuple(numbers) < VERSION_MIN:
        least = ".".join(map(str, VERSION_MIN))
        raise UsageError(
            f"meshrun-ray needs Ray {least} or newer, and {version or 'one without a version'} is installed",
            "pip install 'meshrun[ray]', on every node",
        )


class RayCluster:
    """The cluster as one job uses it. Call `connect` first and `close` at the end, all from one thread."""

    def __init__(self) -> None:
        self.address = ""
        """The address of this node, as other nodes of Ray reach it."""
        self.results: dict[str, bytes] = {}
        """The files of workers that ran a function, of all agents that have ended."""
        self._groups: dict[int, tuple[Any, tuple[int, ...]]] = {}
        self._actors: dict[int, Any] = {}
        self._orders: dict[int, AgentOrder] = {}
        self._pending: dict[Any, tuple[int, str]] = {}  # reference -> slot, and which call it is the answer of
        self._is_ours = False
        self._nodes: list[ClusterNode] = []
        self._draining: frozenset[str] = frozenset()
        self._placed: dict[int, str] = {}
        self._nodes_at = self._placed_at = self._requested_at = float("-inf")

    def connect(self, address: str) -> None:
        """Raises TemporaryError if there is no such cluster, UsageError for Ray Client."""
        import ray
        from ray.util.client import ray as client

        if client.is_connected():
            raise UsageError(
                "through Ray Client the driver, which serves the job's store, is outside of the cluster",
                "call it inside: in a script that ray job submit starts, or on a node of the cluster",
            )
        if not ray.is_initialized():
            _require_listener(address)
            try:
                ray.init(address=address, log_to_driver=True, logging_level="warning")
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise TemporaryError(
                    f"no Ray cluster can be reached at {address}: {_find_error(str(error))}",
                    "ray start --head begins one; --address or RAY_ADDRESS names another",
                ) from None
            self._is_ours = True
        self.address = ray.util.get_node_ip_address()

    def list_nodes(self) -> list[ClusterNode]:
        """Return the nodes that are alive."""
        import ray

        nothing: Mapping[str, Mapping[str, float]] = {}
        free = _ask(self._list_free, nothing)
        return [
            ClusterNode(
                id=node["NodeID"],
                address=node["NodeManagerAddress"],
                resources=dict(node["Resources"]),
                labels=dict(node.get("Labels") or {}),
                free=free.get(node["NodeID"]),
            )
            for node in ray.nodes()
            if node["Alive"]
        ]

    def look(self) -> ClusterView:
        """Return the nodes and where the bundles are; not everything is asked anew every time."""
        now = time.monotonic()
        if now >= self._nodes_at + NODES_INTERVAL_S:
            self._nodes_at = now
            self._nodes = _ask(self.list_nodes, self._nodes)
            self._draining = _ask(self._list_draining, self._draining)
        is_soon = now < self._requested_at + SOON_S
        if now >= self._placed_at + (PLACED_INTERVAL_S if is_soon else PLACED_INTERVAL_MAX_S):
            self._placed_at = now
            self._placed = _ask(self._list_placed, self._placed)
        return ClusterView(nodes=self._nodes, placed=self._placed, draining=self._draining)

    def _list_free(self) -> Mapping[str, Mapping[str, float]]:
        from ray._private import state

        found: Mapping[str, Mapping[str, float]] = state.available_resources_per_node()
        return found

    def _list_draining(self) -> frozenset[str]:
        from ray._private import state

        return frozenset(state.state.get_draining_nodes())

    def _list_placed(self) -> dict[int, str]:
        from ray.util import placement_group_table

        found: dict[int, str] = {}
        table = placement_group_table()  # of the whole cluster, but in one answer
        for group, slots in self._groups.values():
            nodes = table.get(group.id.hex(), {}).get("bundles_to_node_id") or {}
            found |= {slot: nodes[at] for at, slot in enumerate(slots) if nodes.get(at)}
        return found

    def request_group(self, slots: tuple[int, ...], demand: Demand, excluded: Sequence[str]) -> None:
        """Ask for a bundle on a node of its own for each slot. Raises UsageError for what Ray cannot understand."""
        from ray.util import placement_group

        selector = exclude_nodes(demand.label_selector, excluded)
        try:
            group = placement_group(
                [dict(demand.bundle)] * len(slots),
                strategy="STRICT_SPREAD",
                bundle_label_selector=[selector] * len(slots) if selector else None,
            )
        except ValueError as error:
            raise UsageError(
                f"Ray refuses bundles of {demand}: {_find_error(str(error))}", "see --bundle and --label-selector"
            ) from None
        self._groups[slots[0]] = group, slots
        self._requested_at, self._placed_at = time.monotonic(), float("-inf")

    def remove_group(self, slot: int) -> None:
        from ray.util import remove_placement_group

        group, slots = self._groups.pop(slot)
        for one in slots:
            self._placed.pop(one, None)
        _ask(lambda: remove_placement_group(group), None)

    def start_agent(self, slot: int, node: str, order: AgentOrder) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group, slots = next(one for one in self._groups.values() if slot in one[1])
        bundle = order.bundle
        actor = ray.remote(AgentActor).options(
            num_cpus=0,
            num_gpus=bundle.get("GPU", 0),
            resources={name: bundle[name] for name in _ACCELERATORS if bundle.get(name)},
            max_restarts=0,
            max_concurrency=_THREADS,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=slots.index(slot)
            ),
        )
        self._orders[slot] = order
        self._actors[slot] = actor.remote(make_node_name(node, order.number))
        self._pending[self._actors[slot].start.remote(order)] = slot, "start"

    def ask_again(self, slot: int) -> None:
        """Ask an actor that could not be reached: it has the same agent, if it is there."""
        if slot in self._actors:
            self._pending[self._actors[slot].start.remote(self._orders[slot])] = slot, "start"

    def stop_agent(self, slot: int) -> None:
        if slot in self._actors:
            self._actors[slot].stop.remote()  # whose answer is the agent's end

    def discard_actor(self, slot: int) -> None:
        """End the actor, and with it its agent, if one is left."""
        import ray

        actor = self._actors.pop(slot, None)
        self._pending = {reference: one for reference, one in self._pending.items() if one[0] != slot}
        if actor is not None:
            _ask(lambda: ray.kill(actor), None)

    def wait_for_events(self, limit_s: float) -> list[PoolEvent]:
        """Wait until an actor answers, and return what the answers say."""
        import ray

        if not self._pending:
            time.sleep(limit_s)
            return []
        ready, _ = ray.wait(list(self._pending), num_returns=1, timeout=limit_s)
        more, _ = ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        found = dict.fromkeys([*ready, *more])
        events = [self._read_answer(reference, *self._pending.pop(reference)) for reference in found]
        return [event for event in events if event is not None]

    def _read_answer(self, reference: Any, slot: int, call: str) -> PoolEvent | None:
        import ray
        from ray import exceptions

        try:
            answer = ray.get(reference)
        except exceptions.ActorUnavailableError:
            return ActorUnreachable(slot)
        except exceptions.RayActorError as error:
            return ActorDied(slot, _describe_death(str(error)))
        except exceptions.RayError as error:
            return ActorDied(slot, _find_error(str(error)))
        if call == "start" or answer is None:
            self._pending[self._actors[slot].wait.remote()] = slot, "wait"
            return StartReported(slot, *answer) if answer is not None else None
        end: AgentEnd = answer
        self.results |= end.files
        return EndReported(slot, end.exit_code, end.outcome)

    def close(self) -> None:
        """Leave the cluster, which gives back all bundles; or only do that, where the caller was in it before."""
        import ray

        if self._is_ours:
            ray.shutdown()
            return
        for slot in list(self._actors):
            self.discard_actor(slot)
        for slot in list(self._groups):
            self.remove_group(slot)


def _require_listener(address: str) -> None:
    """Raise TemporaryError if nothing listens at HOST:PORT: Ray would try for many minutes."""
    if ":" not in address:
        return  # "auto" or "local": Ray looks for it
    try:
        socket.create_connection(split_address(address), CONNECT_LIMIT_S).close()
    except (OSError, ValueError) as error:
        raise TemporaryError(
            f"no Ray cluster can be reached at {sanitize(address)}: {error}",
            "--address or RAY_ADDRESS is where ray start --head listens, on port 6379 by default",
        ) from None


def _ask(question: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
    """Return the answer, or `otherwise` where Ray gives none: a restart of its GCS, another version."""
    with contextlib.suppress(Exception):
        return question()
    return otherwise


def _describe_death(text: str) -> str:
    """Return the sentence of Ray's that says why an actor has died, of the many lines around it."""
    if "node has died" in text or "node was terminated" in text or "node is dead" in text:
        return "Ray reports the node as dead"
    return f"its actor has died ({_find_error(text)})"


def _find_error(text: str) -> str:
    """Return the line with the exception, where a text of Ray's contains a traceback; else its first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return sanitize((errors or lines[:1] or ["no reason given"])[-1])
