"""Trees of shaped links: a link has its rate, a fast domain its own way, and packets are lost as told."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support.network.trees import MBIT, TreeNetwork, why_no_trees
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(why_no_trees()), reason=why_no_trees())

PAYLOAD = 1448 / 1514  # of a full frame
LEAVES = {"h1": ("p0", "l0"), "h2": ("p0", "l0"), "h3": ("p0", "l1"), "h4": ("p1", "l2")}


def connect(network: TreeNetwork, near: str, far: str) -> tuple[socket.socket, socket.socket]:
    with network.inside(far):
        listener = socket.create_server((network.host(far).address, 0))
    with network.inside(near), listener:
        ours = socket.create_connection(listener.getsockname(), 20)
        theirs, _ = listener.accept()
        return ours, theirs


def send(network: TreeNetwork, near: str, far: str, count: int) -> float:
    """Send so many bytes over a connection; payload bits per second from the first read to the last."""
    ours, theirs = connect(network, near, far)
    with ours, theirs:
        threading.Thread(target=ours.sendall, args=(bytes(count),), daemon=True).start()
        first = left = count - len(theirs.recv(1 << 16))
        began_s = time.monotonic()
        while left:
            left -= len(theirs.recv(1 << 16))
        return first * 8 / (time.monotonic() - began_s)


def has_rate(network: TreeNetwork, near: str, far: str, rate: int) -> Callable[[], bool]:
    """What other processes take of the CPU makes a flow slower at times: one of several must have the rate."""
    return lambda: 0.95 < send(network, near, far, rate // 16) / (rate * PAYLOAD) < 1.05


def test_a_flow_has_the_rate_of_the_slowest_link_on_its_way() -> None:
    rates = {"host": 40 * MBIT, "leaf": 30 * MBIT, "pod": 20 * MBIT, "leaf:l1": 10 * MBIT}
    with TreeNetwork(LEAVES, ("pod", "leaf"), rates) as network:
        for far, rate in (("h2", 40), ("h3", 10), ("h4", 20)):
            wait_until(has_rate(network, "h1", far, rate * MBIT), what=f"{rate} Mbit/s from h1 to {far}")
        network.set_rate("leaf:l1", 20 * MBIT)
        wait_until(has_rate(network, "h1", "h3", 20 * MBIT), what="the new rate of leaf:l1")


def test_a_link_counts_what_it_has_carried() -> None:
    count = 400_000
    with TreeNetwork(LEAVES, ("pod", "leaf"), {"host": 100 * MBIT, "leaf": 100 * MBIT}) as network:
        before = network.count_carried()
        send(network, "h1", "h3", count)
        after = network.count_carried()
    out = {link: (after[link].out - before[link].out) * PAYLOAD / count for link in network.links}
    into = {link: (after[link].into - before[link].into) * PAYLOAD / count for link in network.links}
    assert {link for link, share in out.items() if 0.95 < share < 1.1} == {"host:h1", "leaf:l0"}
    assert {link for link, share in into.items() if 0.95 < share < 1.1} == {"host:h3", "leaf:l1"}
    assert max(out["pod:p0"], into["pod:p0"]) < 0.1


def test_a_fast_domain_has_its_own_links_and_the_same_addresses() -> None:
    hosts = {"h1": ("l0", "n0"), "h2": ("l0", "n0"), "h3": ("l0", "n1"), "h4": ("l1", "n2")}
    with TreeNetwork(hosts, ("leaf", "nvl"), {"host": 200 * MBIT, "nvl/host": 20 * MBIT}) as network:
        for far in ("h2", "h3", "h4"):
            send(network, "h1", far, 100_000)
        out = {link: carried.out for link, carried in network.count_carried().items()}
    assert network.links == (
        "leaf:l0", "nvl/host:h1", "host:h1", "nvl/host:h2", "host:h2", "nvl/host:h3", "host:h3",
        "leaf:l1", "nvl/host:h4", "host:h4",
    )  # fmt: skip
    assert 100_000 < out["host:h1"] < 150_000
    assert 200_000 < out["nvl/host:h1"] < 250_000
    assert 100_000 < out["leaf:l0"] < 150_000


def test_hosts_without_levels_are_on_one_switch() -> None:
    with TreeNetwork({"h1": (), "h2": ()}) as network:
        assert network.links == ("host:h1", "host:h2")
        assert send(network, "h1", "h2", 1_000_000) > 0


def send_datagrams(network: TreeNetwork, near: str, far: str, count: int) -> int:
    """How many arrive. After each few a mark is sent until one arrives, so that no queue here overflows."""
    ends = []
    for name in (near, far):
        with network.inside(name):
            ends.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        ends[-1].bind((network.host(name).address, 0))
    with ends[0], ends[1]:
        received = 0
        for sent in range(1, count + 1):
            ends[0].sendto(b"x", ends[1].getsockname())
            if sent % 50 == 0:
                received += drain(*ends, mark=b"%d" % sent)
        return received


def drain(near: socket.socket, far: socket.socket, mark: bytes) -> int:
    """Read until the mark arrives; how many datagrams came before it."""
    far.settimeout(0.01)
    received = 0
    for _ in range(1000):
        near.sendto(mark, far.getsockname())
        with suppress(TimeoutError):
            while (found := far.recv(16)) != mark:
                received += found == b"x"
            return received
    raise AssertionError("no mark arrives")


def test_a_share_of_the_packets_is_lost_until_it_heals() -> None:
    with TreeNetwork({"h1": (), "h2": ()}) as network:
        network.lose("h1", 0.33)
        for near, far in (("h1", "h2"), ("h2", "h1")):
            assert 0.6 < send_datagrams(network, near, far, 1_000) / 1_000 < 0.74  # more than four standard deviations
        network.heal("h1")
        assert send_datagrams(network, "h1", "h2", 1_000) == 1_000


def test_datagrams_can_be_blocked_while_streams_pass() -> None:
    with TreeNetwork({"h1": (), "h2": ()}) as network:
        with network.inside("h1"):  # an address that looks like UDP's number where ARP has it
            subprocess.run(["ip", "link", "set", "eth0", "address", "02:11:00:00:00:01"], check=True)
        network.block_udp("h1")
        assert send_datagrams(network, "h1", "h2", 10) == send_datagrams(network, "h2", "h1", 10) == 0
        assert send(network, "h1", "h2", 1_000_000) > 0
