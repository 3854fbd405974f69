"""Presence across a network that drops packets without a word: silence is told as silence, and proves nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.network.namespaces import Network, why_no_namespaces
from tests.support.protocol.presence import MemberProcess, boottime
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network() as network:
        yield network


def member(network: Network, name: str, holders: int = 0) -> MemberProcess:
    host = network.host(name)
    return MemberProcess(name, *host.prefix, host=host.address, holders=holders)


def test_a_cut_is_silence_on_both_sides_that_reconnect_once_it_heals(network: Network) -> None:
    with member(network, "leader") as leader, member(network, "follower", holders=1) as follower:
        follower.attend(leader)
        leader.wait_for("PeerUp", "follower", follower.address, True)
        follower.wait_for("PeerUp", "leader", leader.address, True)
        network.cut("follower")
        leader.wait_for("PeerDown", "follower")
        follower.wait_for("PeerDown", "leader")
        network.heal("follower")
        wait_until(lambda: leader.events.count(["PeerUp", "follower", follower.address, True]) == 2)
        assert not [event for event in leader.events + follower.events if event[0] == "PeerGone"]


def test_a_member_that_dies_while_it_is_cut_off_is_not_proven_gone(network: Network) -> None:
    with member(network, "leader") as leader, member(network, "follower") as follower:
        follower.attend(leader)
        leader.wait_for("PeerUp", "follower", follower.address, True)
        network.cut("follower")
        os.kill(follower.pid, signal.SIGKILL)
        leader.wait_for("PeerDown", "follower")
        network.heal("follower")
        healed_at = boottime()
        wait_until(lambda: boottime() > healed_at + 0.5)
        assert [event[0] for event in leader.events] == ["PeerUp", "PeerDown"]


def test_a_cut_after_a_death_was_told_leaves_the_proof_open_until_it_heals(network: Network) -> None:
    """A dial that never arrives is no refusal."""
    with member(network, "leader") as leader, member(network, "follower", holders=1) as follower:
        follower.attend(leader)
        leader.wait_for("PeerUp", "follower", follower.address, True)
        os.kill(follower.pid, signal.SIGKILL)
        leader.wait_for("PeerDown", "follower")
        network.cut("follower")
        os.kill(follower.holders[0], signal.SIGKILL)
        cut_at = boottime()
        wait_until(lambda: boottime() > cut_at + 0.5)
        assert [event[0] for event in leader.events] == ["PeerUp", "PeerDown"]
        network.heal("follower")
        leader.wait_for("PeerGone", "follower")
