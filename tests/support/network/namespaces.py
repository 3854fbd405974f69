"""Several hosts on one machine: a network namespace each, joined by a bridge, and cuts that are as silent as in life.

    namespace of the bridge          one namespace per host
    +--------------------+
    | br0 -- port of n1 -|--- eth0   n1      10.77.0.1
    |     -- port of n2 -|--- eth0   n2      10.77.0.2
    |     -- port of etcd|--- eth0   store   10.77.0.3
    +--------------------+

A cut is a classic BPF program on a host's port that drops packets, all of them or those to and from one address:
nobody is told, connections stay open and silent. Nothing of this touches the machine's own network. The names of
the namespaces carry the pid of the test run, so that runs do not meet, and one that was killed is swept up later.
"""

from __future__ import annotations

import ctypes
import functools
import os
import random
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import IPv4Address
from typing import Literal, NamedTuple

from tests.support.processes.tree import is_alive
from tests.support.waiting import wait_until

_PREFIX = "meshrun-test"
DROP, NO_OPINION = 2, 0xFFFFFFFF  # TC_ACT_SHOT; TC_ACT_UNSPEC: the next filter is asked
# A frame on a port: 14 bytes of Ethernet, then IPv4 with the source at 12 and the destination at 16.
_SOURCE_AT, _DESTINATION_AT = 26, 30

Direction = Literal["both", "from", "to"]


class Host(NamedTuple):
    """What looks like a machine to an agent: a name, an address, and what to put before a command to run it there."""

    name: str
    address: str
    prefix: tuple[str, ...]


def named(name: str) -> tuple[str, ...]:
    """What gives a command a host name of its own; it stays the same process."""
    return ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name)


def loopback_hosts(count: int) -> list[Host]:
    """Hosts n1, n2, ... that differ in name and in address, 127.0.0.2 and on, and share everything else."""
    return [Host(f"n{index}", f"127.0.0.{index + 1}", named(f"n{index}")) for index in range(1, count + 1)]


def free_port(address: str, family: socket.AddressFamily = socket.AF_INET, count: int = 1) -> int:
    """A port of the address that is free, and so are the next ones if `count` is more than 1.

    None of those that the kernel gives to whoever asks for any: somebody would have it before the test has.
    """
    for port in random.sample(range(10_000, 30_000), 100):
        with ExitStack() as stack, suppress(OSError):
            for one in range(port, port + count):
                stack.enter_context(socket.create_server((address, one), family=family))
            return port
    raise AssertionError(f"no {count} free ports in a row")


@functools.cache
def why_no_namespaces() -> str:
    """Why this machine can make no such network; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces are for root"
    try:
        with Network() as network:
            network.host("probe")
            network.cut("probe")
    except OSError as error:
        return f"no network namespaces here: {error}"
    return ""


class Network:
    """A bridge and the hosts on it; at its end every process in them is killed by pid, and all of it is removed."""

    def __init__(self) -> None:
        self._name = f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(3)}"
        self._hosts: dict[str, Host] = {}
        _sweep()
        run_ip("netns", "add", self._name)
        self._in_bridge("link", "add", "br0", "type", "bridge")
        self._in_bridge("link", "set", "br0", "up")

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            _remove(self._namespace(host))
        _remove(self._name)

    def host(self, name: str) -> Host:
        """The host of this name, made when it is first asked for."""
        if name not in self._hosts:
            namespace, number = self._namespace(name), len(self._hosts) + 1
            address = f"10.77.0.{number}"
            self._hosts[name] = Host(name, address, ("ip", "netns", "exec", namespace, *named(name)))
            run_ip("netns", "add", namespace)
            self._in_bridge("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            self._in_bridge("link", "set", name, "master", "br0", "up")
            run_tc("-netns", self._name, "qdisc", "add", "dev", name, "clsact")
            run_ip("-netns", namespace, "address", "add", f"{address}/24", "dev", "eth0")
            run_ip("-netns", namespace, "link", "set", "eth0", "up")
            run_ip("-netns", namespace, "link", "set", "lo", "up")
        return self._hosts[name]

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """What this thread opens and whom it starts meanwhile is on that host; sockets stay there afterwards."""
        with open(f"/run/netns/{self._namespace(name)}") as target, open("/proc/thread-self/ns/net") as home:
            _enter(target.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def cut(self, name: str, *others: str, direction: Direction = "both") -> None:
        """Drop what goes between this host and the others named, or everything, silently, until `heal`.

        `direction` "from" drops only what this host sends, "to" only what is sent to it. Cuts add up.
        """
        addresses: Sequence[str | None] = [self._hosts[other].address for other in others] or [None]
        for address in addresses:
            if direction != "to":  # what a host sends comes in at its port
                self._drop(name, "ingress", _program(_DESTINATION_AT, address))
            if direction != "from":
                self._drop(name, "egress", _program(_SOURCE_AT, address))

    def heal(self, name: str) -> None:
        """Undo every cut of this host's port."""
        for side in ("ingress", "egress"):
            run_tc("-netns", self._name, "filter", "delete", "dev", name, side)

    def _drop(self, name: str, side: str, program: str) -> None:
        run_tc("-netns", self._name, "filter", "add", "dev", name, side, "bpf", "direct-action", "bytecode", program)

    def _in_bridge(self, *words: str) -> None:
        run_ip("-netns", self._name, *words)

    def _namespace(self, host: str) -> str:
        return f"{self._name}-{host}"


def _program(offset: int, address: str | None) -> str:
    """Classic BPF as tc reads it: drop every frame, or those with `address` at `offset`."""
    if address is None:
        return f"1,6 0 0 {DROP}"
    # load a word; equal: next, else one further
    return f"4,32 0 0 {offset},21 0 1 {int(IPv4Address(address))},6 0 0 {DROP},6 0 0 {NO_OPINION}"


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0x40000000):  # CLONE_NEWNET, of this thread alone
        raise OSError(ctypes.get_errno(), "setns")


def _sweep() -> None:
    """Remove what a test run left behind that was killed."""
    for line in run_ip("netns", "list").splitlines():
        namespace = line.partition(" ")[0]
        pid = namespace.removeprefix(f"{_PREFIX}-").partition("-")[0]
        if namespace.startswith(f"{_PREFIX}-") and pid.isdigit() and not is_alive(int(pid)):
            _remove(namespace)


def _remove(namespace: str) -> None:
    def nobody() -> bool:
        left = [int(word) for word in run_ip("netns", "pids", namespace).split()]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not any(map(is_alive, left))

    wait_until(nobody, 20, f"the end of every process in {namespace}")
    run_ip("netns", "delete", namespace)


def run_ip(*words: str) -> str:
    return _run("ip", *words)


def run_tc(*words: str) -> str:
    return _run("tc", *words)


def _run(*words: str) -> str:
    """Raises OSError with what the command said."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
