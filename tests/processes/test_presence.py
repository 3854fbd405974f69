"""Presence between real processes: what a kernel says of a dead one, and what a stopped or cut-off one does not."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from contextlib import suppress

import pytest

from rendezvous.events import ConnectTo, PeerDown, PeerGone, PeerMessage, PeerUp, SendToPeer
from tests.support.processes.tree import freeze, is_refused
from tests.support.protocol.presence import LIMIT_S, Member, MemberProcess, boottime
from tests.support.waiting import wait_until


def test_both_sides_learn_of_each_other_and_what_is_told_arrives_in_order() -> None:
    with Member("leader") as leader, Member("follower") as follower:
        follower.attend(leader)
        follower.wait_for_up(leader)
        leader.wait_for_up(follower)
        for number in range(100):
            follower.presence.carry_out(SendToPeer("leader", f"from below {number}"))
            leader.presence.carry_out(SendToPeer("follower", f"from above {number} ä\n\0"))
        follower.wait_for(PeerMessage("leader", "from above 99 ä\n\0"))
        leader.wait_for(PeerMessage("follower", "from below 99"))
        assert [event.text for event in leader.events if isinstance(event, PeerMessage)] == [
            f"from below {number}" for number in range(100)
        ]


@pytest.mark.parametrize("holders", [0, 3])
def test_a_member_is_proven_gone_once_the_last_holder_of_its_listener_dies(holders: int) -> None:
    with Member("leader") as leader, MemberProcess("follower", holders=holders) as follower:
        follower.attend(leader)
        leader.wait_for_up(follower)
        for pid in [follower.pid, *follower.holders]:
            assert PeerGone("follower") not in leader.events
            os.kill(pid, signal.SIGKILL)
            leader.wait_for(PeerDown("follower"))
        leader.wait_for(PeerGone("follower"))
        assert [type(event) for event in leader.of("follower")] == [PeerUp, PeerDown, PeerGone]


def test_whoever_dialled_proves_it_just_as_well() -> None:
    with Member("follower") as follower, MemberProcess("leader", holders=1) as leader:
        follower.attend(leader)
        follower.wait_for_up(leader)
        os.kill(leader.pid, signal.SIGKILL)
        follower.wait_for(PeerDown("leader"))
        os.kill(leader.holders[0], signal.SIGKILL)
        follower.wait_for(PeerGone("leader"))


def test_a_stopped_member_is_silent_and_that_proves_nothing() -> None:
    with Member("leader", silence_s=1.0) as leader, MemberProcess("follower") as follower:
        follower.attend(leader)
        leader.wait_for_up(follower)
        freeze(follower.pid)
        leader.wait_for(PeerDown("follower"))
        os.kill(follower.pid, signal.SIGKILL)
        follower_host, port = follower.address.rsplit(":", 1)
        wait_until(lambda: is_refused(int(port), follower_host))
        assert leader.of("follower")[1:] == [PeerDown("follower")]


def test_a_stopped_member_whose_connection_is_reset_is_not_proven_gone() -> None:
    """The listener is there, so dials are taken and hear nothing."""
    with Member("leader", silence_s=30.0) as leader, Cutter(leader) as cutter, MemberProcess("follower") as follower:
        follower.do("ConnectTo", "leader", cutter.address)
        wait_until(lambda: leader.of("follower"))
        freeze(follower.pid)
        cutter.reset()
        leader.wait_for(PeerDown("follower"))
        ended_at = boottime()
        wait_until(lambda: boottime() > ended_at + 0.5)
        assert PeerGone("follower") not in leader.events
        os.kill(follower.pid, signal.SIGCONT)
        wait_until(lambda: isinstance(leader.of("follower")[-1], PeerUp))
        assert PeerGone("follower") not in leader.events


def test_a_reset_without_a_death_is_followed_by_another_connection() -> None:
    with Member("leader") as leader, Member("follower") as follower, Cutter(leader) as cutter:
        follower.presence.carry_out(ConnectTo("leader", cutter.address))
        leader.wait_for_up(follower)
        for count in range(1, 5):
            # The leader dials as well, so for a moment there may be a connection that is not cut.
            while leader.events.count(PeerDown("follower")) < count:
                cutter.reset()
                with suppress(AssertionError):
                    leader.wait_for(PeerDown("follower"), count, limit_s=0.3)
            leader.wait_for(PeerUp("follower", follower.address, True), count + 1)
        assert PeerGone("follower") not in leader.events
        assert PeerGone("leader") not in follower.events


class Cutter:
    """A proxy in front of a member's listener that can end all connections through it by RST."""

    def __init__(self, member: Member) -> None:
        self._target = member.listener.getsockname()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Cutter:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            outer = socket.create_connection(self._target)
            self._pairs.append((inner, outer))
            for source, sink in ((inner, outer), (outer, inner)):
                thread = threading.Thread(target=self._pass_on, args=(source, sink), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)

    def reset(self) -> None:
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with suppress(OSError):  # the other end may have gone
                    end.shutdown(socket.SHUT_RD)  # wakes the thread that reads there
                end.close()
