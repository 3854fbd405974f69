"""All calls to Ray that the driver makes: groups of bundles, actors in them, and the actors' answers.

Only here and in `actor` is ray imported. Most calls need Ray's control service, the GCS, and block while it is away,
some for ever where its machine hangs. So a thread makes them, and the last answer counts until there is a new one.
Calls of actors need no GCS: the driver starts no agent meanwhile, but stops agents and learns of their ends as always.

One function is private to Ray: no public one lists the nodes that Ray will remove (Ray Train uses the same). Without
it, a planned removal is a loss like any other.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from launcher.extensions.ray import agent_pool
from launcher.extensions.ray.actor import AgentEnd, AgentOrder, make_actor_class, make_node_name
from launcher.extensions.ray.bundles import ClusterNode, Demand, exclude_nodes
from launcher.extensions.ray.options import GCS_THREAD
from launcher.model.errors import TemporaryError, UsageError, sanitize
from rendezvous.stores.addresses import split_address

VERSION_MIN = (2, 51)  # labels in bundles and actors, and all that is used here
NODES_INTERVAL_S = 2.0  # between two questions for the nodes, and which of them are drained
PLACED_INTERVAL_S, PLACED_INTERVAL_MAX_S = 0.1, 0.5  # for the bundles' nodes, soon after a request, and later
SOON_S = 30.0
CONNECT_LIMIT_S = 10.0  # to the address of the cluster, and for its first answer
ANSWER_LIMIT_S = 0.5  # for other answers of the GCS: how much later a signal is noticed while it is away
CLOSE_LIMIT_S = 10.0  # to give back bundles, or to leave the cluster, in a process that goes on
AGAIN_S = 1.0  # until a request that the GCS has not taken is made again
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
        raise UsageError(f"Ray cannot be imported: {error}", "run pip install 'ray[default]>=2.51'") from None
    require_version(getattr(ray, "__version__", ""))


def require_version(version: str) -> None:
    """Raise UsageError for a version of Ray that is too old."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    if tuple(numbers) < VERSION_MIN:
        least = ".".join(map(str, VERSION_MIN))
        sentence = f"meshrun-ray needs Ray {least} or newer, but {version or 'an unknown version'} is installed"
        raise UsageError(sentence, "run pip install 'ray[default]>=2.51' on every node")


class RayCluster:
    """The cluster as one job uses it. Call `connect` first and `close` at the end, all from one thread."""

    def __init__(self, close_limit_s: float = CLOSE_LIMIT_S) -> None:
        self.address = ""
        """The address of this node, as other nodes of Ray reach it."""
        self.results: dict[str, bytes] = {}
        """The files of workers that ran a function, of all agents that have ended."""
        self._numbers: dict[int, int] = {}  # slot -> number of the last request for its bundle
        self._groups: dict[int, tuple[Any, tuple[int, ...]]] = {}  # number of the request -> group and slots
        self._gcs, self._close_limit_s = GcsThread(), close_limit_s
        self._error: Exception | None = None
        self._actor_class: Any = None
        self._actors: dict[int, Any] = {}
        self._orders: dict[int, AgentOrder] = {}
        self._pending: dict[Any, tuple[int, str]] = {}  # reference -> slot, and which call it is the answer of
        self._is_ours = False
        self._nodes: list[ClusterNode] = []
        self._draining: frozenset[str] = frozenset()
        self._placed: dict[tuple[int, int], str] = {}  # request and slot -> node
        self._requests = 0
        self._nodes_at = self._placed_at = self._requested_at = float("-inf")

    def connect(self, address: str) -> None:
        """Raises TemporaryError if there is no such cluster, UsageError for Ray Client."""
        try:
            self._connect(address)
        except BaseException:
            self.close()
            raise

    def _connect(self, address: str) -> None:
        import ray
        from ray.util.client import ray as client

        if client.is_connected():
            raise UsageError(
                "this process uses Ray Client, but the driver serves the job's store inside of the cluster",
                "call it inside: in a script that ray job submit starts, or on a node of the cluster",
            )
        if not ray.is_initialized():
            _require_listener(address)
            self._is_ours = True  # even if that is interrupted
            try:
                with _keep_handler(signal.SIGTERM):
                    ray.init(address=address, log_to_driver=True, logging_level="warning")
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise TemporaryError(
                    f"no Ray cluster can be reached at {address}: {_find_error(str(error))}",
                    "start one with ray start --head, or set --address or RAY_ADDRESS",
                ) from None
        self.address = ray.util.get_node_ip_address()
        self._actor_class = ray.remote(make_actor_class())

    def list_nodes(self) -> Sequence[ClusterNode]:
        """Return the nodes that are alive. Raises TemporaryError if Ray does not answer."""
        self._gcs.call(self._refresh, CONNECT_LIMIT_S)
        if not self._nodes:
            sentence = f"the Ray cluster has not answered within {CONNECT_LIMIT_S:g} s"
            raise TemporaryError(sentence, "run ray status to see whether it is healthy")
        return self._nodes

    def look(self) -> agent_pool.ClusterView:
        """Return the nodes and where the bundles are. Raises UsageError for bundles that Ray cannot understand."""
        self._gcs.call(self._refresh, ANSWER_LIMIT_S)
        if self._error is not None:
            raise self._error
        placed = {
            slot: node for (number, slot), node in dict(self._placed).items() if self._numbers.get(slot) == number
        }
        return agent_pool.ClusterView(nodes=self._nodes, placed=placed, draining=self._draining)

    def _refresh(self) -> None:
        """Ask the GCS, though not for everything every time."""
        now = time.monotonic()
        if now >= self._nodes_at + NODES_INTERVAL_S:
            self._nodes_at = now
            self._nodes = _ask(self._list_nodes, self._nodes)
            self._draining = _ask(self._list_draining, self._draining)
        is_soon = now < self._requested_at + SOON_S
        if now >= self._placed_at + (PLACED_INTERVAL_S if is_soon else PLACED_INTERVAL_MAX_S):
            self._placed_at = now
            self._placed = _ask(self._list_placed, self._placed)

    def _list_nodes(self) -> list[ClusterNode]:
        import ray

        alive = [node for node in ray.nodes() if node["Alive"]]
        return [ClusterNode(node["NodeID"], dict(node["Resources"]), dict(node.get("Labels") or {})) for node in alive]

    def _list_draining(self) -> frozenset[str]:
        from ray._private import state

        return frozenset(state.state.get_draining_nodes())

    def _list_placed(self) -> dict[tuple[int, int], str]:
        from ray.util import placement_group_table

        found: dict[tuple[int, int], str] = {}
        table = placement_group_table()  # of the whole cluster, but in one answer
        for number, (group, slots) in self._groups.items():
            nodes = table.get(group.id.hex(), {}).get("bundles_to_node_id") or {}
            found |= {(number, slot): nodes[at] for at, slot in enumerate(slots) if nodes.get(at)}
        return found

    def request_group(self, slots: tuple[int, ...], demand: Demand, excluded: Sequence[str]) -> None:
        """Ask for a bundle on a node of its own for each slot."""
        self._requests += 1
        number = self._requests
        self._numbers |= dict.fromkeys(slots, number)
        self._gcs.add(lambda: self._create_group(number, slots, demand, excluded))

    def _create_group(self, number: int, slots: tuple[int, ...], demand: Demand, excluded: Sequence[str]) -> None:
        from ray.util import placement_group

        selector = exclude_nodes(demand.label_selector, excluded)
        try:
            group = self._gcs.insist(
                lambda: placement_group(
                    [dict(demand.bundle)] * len(slots),
                    strategy="STRICT_SPREAD",
                    bundle_label_selector=[selector] * len(slots) if selector else None,
                )
            )
        except ValueError as error:
            self._error = UsageError(
                f"Ray refuses bundles of {demand}: {_find_error(str(error))}", "check --bundle and --label-selector"
            )
        except Exception as error:
            self._error = error
        else:
            self._groups[number] = group, slots
            self._requested_at, self._placed_at = time.monotonic(), float("-inf")

    def remove_group(self, slot: int) -> None:
        """Give back the slot's bundle, which is a group of its own."""
        number = self._numbers.pop(slot)
        self._gcs.add(lambda: self._remove_group(number))

    def _remove_group(self, number: int) -> None:
        from ray.util import remove_placement_group

        if number in self._groups:
            group, _ = self._groups.pop(number)
            self._gcs.insist(lambda: remove_placement_group(group))

    def _remove_all_groups(self) -> None:
        for number in list(self._groups):
            self._remove_group(number)

    def start_agent(self, slot: int, node: str, order: AgentOrder) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group, slots = self._groups[self._numbers[slot]]
        bundle = order.bundle
        actor = self._actor_class.options(
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

    def wait_for_events(self, limit_s: float) -> list[agent_pool.PoolEvent]:
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

    def _read_answer(self, reference: Any, slot: int, call: str) -> agent_pool.PoolEvent | None:
        import ray
        from ray import exceptions

        try:
            answer = ray.get(reference)
        except exceptions.ActorUnavailableError:
            return agent_pool.ActorUnreachable(slot)
        except exceptions.RayActorError as error:
            return agent_pool.ActorDied(slot, _describe_death(str(error)))
        except exceptions.RayError as error:
            return agent_pool.ActorDied(slot, _find_error(str(error)))
        if call == "start" or answer is None:
            self._pending[self._actors[slot].wait.remote()] = slot, "wait"
            return agent_pool.StartReported(slot, answer) if answer is not None else None
        end: AgentEnd = answer
        self.results |= end.files
        return agent_pool.EndReported(slot, end.exit_code, end.outcome)

    def close(self) -> None:
        """Disconnect, which gives back all bundles; only give them back if the caller was connected before."""
        import ray

        if self._is_ours:
            self._gcs.add(ray.shutdown)
        else:
            for slot in list(self._actors):
                self.discard_actor(slot)
            self._gcs.add(self._remove_all_groups)
        if not self._gcs.close(self._close_limit_s) and self._is_ours:
            atexit.unregister(ray.shutdown)  # it would block this process, with whose end Ray ends the job anyway


class GcsThread:
    """Makes calls that need the GCS one after the other, since any may block while that is away."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._is_idle, self._is_closed = threading.Event(), threading.Event()
        self._is_idle.set()
        self._thread = threading.Thread(target=self._run, name=GCS_THREAD, daemon=True)
        self._thread.start()

    def add(self, call: Callable[[], object]) -> None:
        self._calls.put(call)

    def call(self, call: Callable[[], object], limit_s: float) -> None:
        """Make the call and wait for it, up to the limit; or only wait, if an earlier one has not returned."""
        if self._is_idle.is_set():
            self._is_idle.clear()
            self._calls.put(call)
            self._calls.put(self._is_idle.set)
        self._is_idle.wait(limit_s)

    def insist(self, call: Callable[[], _Answer]) -> _Answer | None:
        """Return what the call returns, which is made again as long as the GCS does not take it; None once closed."""
        from ray import exceptions

        while not self._is_closed.is_set():
            with contextlib.suppress(exceptions.RayError):
                return call()
            self._is_closed.wait(AGAIN_S)
        return None

    def close(self, limit_s: float) -> bool:
        """Wait up to the limit until all calls have returned; False if they have not."""
        self._calls.put(self._is_closed.set)
        self._thread.join(limit_s)
        self._is_closed.set()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            _ask(self._calls.get(), None)


def _require_listener(address: str) -> None:
    """Raise TemporaryError if nothing listens at HOST:PORT: Ray would try for many minutes."""
    if ":" not in address:
        return  # "auto" or "local": Ray looks for it
    try:
        socket.create_connection(split_address(address), CONNECT_LIMIT_S).close()
    except (OSError, ValueError) as error:
        raise TemporaryError(
            f"no Ray cluster can be reached at {sanitize(address)}: {error}",
            "set --address or RAY_ADDRESS to the address of ray start --head, port 6379 by default",
        ) from None


@contextlib.contextmanager
def _keep_handler(signum: int) -> Iterator[None]:
    """Keep the program's handler of a signal: ray.init sets one, in the main thread, that stays."""
    before = signal.getsignal(signum)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signum, before)


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
