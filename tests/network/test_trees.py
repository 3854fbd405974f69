"""Trees of shaped links: a fast domain has its own way, and packets are lost as told.

That links have their rates, and are counted, is what test_measure.py and test_truth_steps.py rest on.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from contextlib import suppress

import pytest

from tests.support.network.trees import MBIT, TreeNetwork, why_no_trees

pytestmark = pytest.mark.skipif(bool(why_no_trees()), reason=why_no_trees())


def send(network: TreeNetwork, near: str, far: str, count: int) -> None:
    """Send so many bytes over a connection, and wait until all have arrived."""
    with network.inside(far):
        listener = socket.create_server((network.host(far).address, 0))
    with network.inside(near), listener:
        ours = socket.create_connection(listener.getsockname(), 20)
        theirs, _ = listener.accept()
    with ours, theirs:
        threading.Thread(target=ours.sendall, args=(bytes(count),), daemon=True).start()
        left = count
        while left:
            left -= len(theirs.recv(1 << 16))


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
        send(network, "h1", "h2", 1_000_000)
