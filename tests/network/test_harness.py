"""The hosts of these tests themselves: cuts are silent, one-way where asked, and heal; nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess

import pytest

from tests.support.network.namespaces import Direction, Network, loopback_hosts, why_no_namespaces
from tests.support.processes.tree import is_alive

pytestmark = pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())

SILENCE_S = 0.3


class Pair:
    """A connection between two hosts, both ends in this process."""

    def __init__(self, network: Network, near: str, far: str) -> None:
        address = network.host(far).address
        with network.inside(far):
            listener = socket.create_server((address, 0))
        with network.inside(near), listener:
            self.near = socket.create_connection(listener.getsockname(), 5)
            self.far, _ = listener.accept()

    def passes(self, sender: socket.socket, receiver: socket.socket) -> bool:
        """Whether a byte gets through; one that was dropped is sent again by the kernel once the cut has healed."""
        sender.send(b"x")
        receiver.settimeout(SILENCE_S)
        try:
            return receiver.recv(1) == b"x"
        except TimeoutError:
            return False

    def close(self) -> None:
        self.near.close()
        self.far.close()


def test_a_cut_is_silent_and_heals(network: Network) -> None:
    network.host("n1")
    pair = Pair(network, "n1", "n2")
    assert pair.passes(pair.near, pair.far)
    network.cut("n1")
    assert not pair.passes(pair.near, pair.far)
    network.heal("n1")
    pair.far.settimeout(20)
    assert pair.far.recv(1) == b"x"
    pair.close()


def test_a_cut_from_one_host_leaves_the_others_alone(network: Network) -> None:
    for name in ("n1", "n2", "store"):
        network.host(name)
    pairs = {far: Pair(network, "n1", far) for far in ("n2", "store")}
    network.cut("n1", "store")
    assert pairs["n2"].passes(pairs["n2"].near, pairs["n2"].far)
    assert not pairs["store"].passes(pairs["store"].near, pairs["store"].far)
    for pair in pairs.values():
        pair.close()


@pytest.mark.parametrize(("way", "dropped", "passed"), [("from", "n1", "n2"), ("to", "n2", "n1")])
def test_a_cut_can_be_one_way(network: Network, way: Direction, dropped: str, passed: str) -> None:
    """Datagrams, for a connection with one way cut is soon stuck in both."""
    ends = {}
    for name in ("n1", "n2"):
        host = network.host(name)
        with network.inside(name):
            ends[name] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            ends[name].bind((host.address, 0))
            ends[name].settimeout(SILENCE_S)
    network.cut("n1", "n2", direction=way)
    ends[dropped].sendto(b"x", ends[passed].getsockname())
    with pytest.raises(TimeoutError):
        ends[passed].recv(1)
    ends[passed].sendto(b"x", ends[dropped].getsockname())
    assert ends[dropped].recv(1) == b"x"
    for end in ends.values():
        end.close()


def test_a_host_has_its_own_name_and_its_processes_end_with_the_network() -> None:
    with Network() as network, Network() as other:
        host = network.host("n1")
        assert other.host("n1").prefix != host.prefix
        command = [*host.prefix, "sh", "-c", "hostname; exec sleep 1000"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "n1\n"
        assert is_alive(process.pid)
    assert process.wait(20) == -signal.SIGKILL
    process.stdout.close()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"meshrun-test-{os.getpid()}-" not in left


def test_hosts_on_loopback_differ_in_name_and_address() -> None:
    hosts = loopback_hosts(2)
    names = [subprocess.run([*host.prefix, "hostname"], capture_output=True, text=True, check=True) for host in hosts]
    assert [name.stdout for name in names] == ["n1\n", "n2\n"]
    assert [host.address for host in hosts] == ["127.0.0.2", "127.0.0.3"]
