"""The hosts of these tests themselves: cuts are one-way where asked, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess

import pytest

from tests.support.network.namespaces import Direction, Network, why_no_namespaces
from tests.support.processes.tree import is_alive

pytestmark = pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())

SILENCE_S = 0.3


@pytest.mark.parametrize(("way", "dropped", "passed"), [("from", "n1", "n2"), ("to", "n2", "n1")])
def test_a_cut_can_be_one_way_and_is_from_one_host_alone(
    network: Network, way: Direction, dropped: str, passed: str
) -> None:
    """Datagrams, for a connection with one way cut is soon stuck in both."""
    ends = {}
    for name in ("n1", "n2", "n3"):
        host = network.host(name)
        with network.inside(name):
            ends[name] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            ends[name].bind((host.address, 0))
            ends[name].settimeout(20)
    network.cut("n1", "n2", direction=way)
    ends[dropped].sendto(b"x", ends[passed].getsockname())
    ends[passed].settimeout(SILENCE_S)
    with pytest.raises(TimeoutError):
        ends[passed].recv(1)
    ends[passed].sendto(b"x", ends[dropped].getsockname())
    assert ends[dropped].recv(1) == b"x"
    ends["n1"].sendto(b"x", ends["n3"].getsockname())
    assert ends["n3"].recv(1) == b"x"
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
