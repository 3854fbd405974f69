"""A cluster of Ray on this machine, in a process of its own: `RayTestCluster` starts it, adds nodes and kills them.

A node is a raylet with an address of its own on loopback, and labels. The process that holds them is this module as a
program: it takes a line of JSON for each request and answers with one. Ray keeps its cluster in the process that
starts it, and a driver that dies would take it with it; so no test has the cluster in itself.

127.0.0.1 is no node's address: Ray would take the machine's outer one for it. Ports are given beforehand, since on a
busy machine Ray gives up waiting for those that its agents choose. A raylet needs 3 to 8 s of two busy cores to start:
use one cluster for many tests.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

LEAF = "fabric.topograph.run/tier-0"  # the label of a node's leaf, as Topograph writes it
HEAD_ADDRESS = "127.0.0.2"
STORE_BYTES = 80_000_000  # the least that Ray takes
START_LIMIT_S = 240.0  # of a raylet, with every retry, beside other work
RETRIES = 4
_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")


class RayNode(NamedTuple):
    """`number` is the test's name of it, `id` Ray's; `pid` is the raylet's. `leaf`: by its labels, "" without one."""

    number: int
    id: str
    address: str
    pid: int
    leaf: str = ""


class RayTestCluster:
    """A head without resources, and nodes. With `has_dashboard` jobs can be submitted, at `dashboard_url`.

    With `redis`, a server's HOST:PORT, Ray's control service keeps its state there, and can be restarted.
    """

    def __init__(self, *, has_dashboard: bool = False, redis: str = "") -> None:
        self.directory = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # the paths of sockets must be short
        self.nodes: dict[int, RayNode] = {}
        self.drained: set[int] = set()
        os.mkdir(f"{self.directory}/ray")
        environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("RAY_")},
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": self.directory,
            "PYTHONUNBUFFERED": "1",
            **({"RAY_REDIS_ADDRESS": redis} if redis else {}),
        }
        for left in reversed(range(RETRIES)):
            self._process = self._start(environment)
            try:
                answer = self._ask("head", has_dashboard=has_dashboard)
                break
            except RuntimeError:  # a head that gave up leaves parts of itself: all anew
                self.close()
                if not left:
                    raise
        self.address: str = answer["address"]
        self.head_id: str = answer["id"]
        self.dashboard_url: str = answer["dashboard"]

    def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        self._log = open(f"{self.directory}/cluster.log", "ab")  # noqa: SIM115 - closed in `close`
        return subprocess.Popen(
            [sys.executable, "-m", __name__ if __name__ != "__main__" else "tests.support.ray_cluster"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
            start_new_session=True,
        )

    def add(
        self, labels: Mapping[str, str] | None = None, *, cpus: int = 2, gpus: int = 0, **resources: int
    ) -> RayNode:
        """Start a raylet and wait until Ray knows it."""
        asked = {"labels": dict(labels or {}), "cpus": cpus, "gpus": gpus, "resources": resources}
        node = RayNode(**self._ask("add", **asked), leaf=(labels or {}).get(LEAF, ""))
        self.nodes[node.number] = node
        return node

    def kill(self, number: int) -> RayNode:
        """End a node by SIGKILL, and everything of Ray's on it."""
        self._ask("kill", number=number)
        return self.nodes.pop(number)

    def drain(self, number: int, deadline_s: float = 60.0) -> None:
        """Have Ray announce that the node will be taken for preemption."""
        self._ask("drain", number=number, deadline_s=deadline_s)
        self.drained.add(number)

    def restart_gcs(self) -> None:
        """End Ray's control service and start it again, as after a fault of the head."""
        self._ask("restart_gcs")

    def pause_gcs(self, is_paused: bool) -> None:
        """Have Ray's control service answer nothing, as on a machine that hangs; or let it go on."""
        self._ask("pause_gcs", is_paused=is_paused)

    def count_alive(self) -> int:
        """How many nodes Ray holds for alive, the head among them: one that was killed counts for some 12 s."""
        return int(self._ask("count")["count"])

    def find_number(self, node: str) -> int:
        """The number of a node by the beginning of Ray's id."""
        return next(one.number for one in self.nodes.values() if one.id.startswith(node))

    def make_environment(self) -> dict[str, str]:
        """The environment of a driver on this cluster's head."""
        base = {name: text for name, text in os.environ.items() if not name.startswith("RAY_")}
        return {**base, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": self.directory, "RAY_ADDRESS": self.address}

    def read_log(self) -> str:
        with open(f"{self.directory}/cluster.log", errors="replace") as file:
            return file.read()

    def close(self) -> None:
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()  # which is its end
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, 9)
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> RayTestCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _ask(self, request: str, **values: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(START_LIMIT_S, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps({"request": request, **values}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise RuntimeError(f"the cluster has ended at {request}:\n{self.read_log()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{request}: {answer['error']}\n{self.read_log()[-4000:]}")
        return answer


# --- the process that holds the cluster ---


def make_ports() -> dict[str, int]:
    """Free ports for what a raylet starts."""
    listeners = [socket.create_server(("0.0.0.0", 0)) for _ in _PORTS]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return dict(zip(_PORTS, ports, strict=True))


class ClusterHolder:
    """The cluster of `ray.cluster_utils`, and its nodes by number."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        self._nodes: dict[int, Any] = {}
        self._count = 0

    def head(self, has_dashboard: bool) -> dict[str, Any]:
        port = {"dashboard_port": make_ports()["metrics_agent_port"]} if has_dashboard else {}
        node = self._add(HEAD_ADDRESS, num_cpus=0, include_dashboard=has_dashboard, dashboard_host=HEAD_ADDRESS, **port)
        url = f"http://{self._cluster.webui_url}" if has_dashboard else ""
        return {"address": self._cluster.address, "id": node.node_id, "dashboard": url}

    def add(self, labels: dict[str, str], cpus: int, gpus: int, resources: dict[str, int]) -> dict[str, Any]:
        self._count += 1
        number = self._count
        address = f"127.0.0.{10 + number}"
        node = self._add(address, num_cpus=cpus, num_gpus=gpus, resources=resources, labels=labels)
        self._nodes[number] = node
        pid = node.all_processes["raylet"][0].process.pid
        return {"number": number, "id": node.node_id, "address": address, "pid": pid}

    def kill(self, number: int) -> dict[str, Any]:
        self._cluster.remove_node(self._nodes.pop(number), allow_graceful=False)
        return {}

    def drain(self, number: int, deadline_s: float) -> dict[str, Any]:
        import time

        from ray._raylet import GcsClient
        from ray.core.generated import autoscaler_pb2

        client = GcsClient(address=self._cluster.address)
        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        until = int((time.time() + deadline_s) * 1000)
        is_accepted, why = client.drain_node(self._nodes[number].node_id, reason, "taken by a test", until)
        return {} if is_accepted else {"error": why}

    def count(self) -> dict[str, Any]:
        return {"count": sum(node["Alive"] for node in self._cluster.global_state.node_table())}

    def restart_gcs(self) -> dict[str, Any]:
        self._cluster.head_node.kill_gcs_server(check_alive=False)
        self._cluster.head_node.start_gcs_server()
        return {}

    def pause_gcs(self, is_paused: bool) -> dict[str, Any]:
        process = self._cluster.head_node.all_processes["gcs_server"][0].process
        process.send_signal(signal.SIGSTOP if is_paused else signal.SIGCONT)
        return {}

    def close(self) -> None:
        self._cluster.shutdown()

    def _add(self, address: str, **arguments: Any) -> Any:
        for left in reversed(range(1 if address == HEAD_ADDRESS else RETRIES)):
            try:
                return self._cluster.add_node(
                    node_ip_address=address, object_store_memory=STORE_BYTES, **make_ports(), **arguments
                )
            except Exception as error:  # noqa: PERF203 - Ray fails in many ways
                print(f"a node at {address} did not start: {error}", file=sys.stderr)
                if not left:
                    raise
        raise AssertionError


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints, too
    holder = ClusterHolder()
    try:
        for line in sys.stdin:
            values = json.loads(line)
            try:
                answer = getattr(holder, values.pop("request"))(**values)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        holder.close()


if __name__ == "__main__":
    main()
