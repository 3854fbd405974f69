"""The simulated presence network: connections between agents, and what kernels say about machines.

The stand-in for `rendezvous.peers.connections`. A kernel ends the connections of a process that dies, refuses a dial
when nobody holds the listener any more (agent, warden and workers inherit it), and accepts one for a process that is
stopped. A network that is cut, or a machine without power, says nothing at all. From that every event follows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from rendezvous.events import Event, PeerDown, PeerGone, PeerMessage, PeerUp

if TYPE_CHECKING:
    from rendezvous.testing.simulation.cluster import Cluster
    from rendezvous.testing.simulation.node import Node

DIAL_LIMIT_S = 1.0
REDIAL_S = 0.1
PROOF_DIAL_S = 0.02
SILENCE_S = 2.5  # without a word for so long a connection is given up
BYE = "\0bye"  # this connection is not needed any more, which says nothing about who says so
Dialled = Literal["answered", "mute", "refused", "silence"]


class PresenceNetwork:
    """All listeners and connections there are."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.listeners: dict[str, SimulatedPeers] = {}
        self.is_forging_refusals = False  # a middlebox answers dials with RST in the name of a host that is well
        self._waiting: dict[Node, list[Callable[[], None]]] = defaultdict(list)

    def passes(self, source: Node, target: Node) -> bool:
        """Whether what one node sends reaches the other."""
        is_walled = source.is_walled or target.is_walled or source.is_powered_off or target.is_powered_off
        return not is_walled and not self.cluster.cuts.is_cut(source.name, target.name, self.cluster.now)

    def dial(self, source: SimulatedPeers, address: str, then: Callable[[Dialled], None]) -> None:
        self.cluster.later(self.cluster.delay(), self._arrive, source, address, then)

    def _arrive(self, source: SimulatedPeers, address: str, then: Callable[[Dialled], None]) -> None:
        target = self.listeners.get(address)
        delay = self.cluster.delay()
        if target is None:
            result: Dialled = "silence"
        elif not (self.passes(source.node, target.node) and self.passes(target.node, source.node)):
            result, delay = "silence", DIAL_LIMIT_S
        elif self.is_forging_refusals or not target.is_held:
            result = "refused"
        else:
            result = "answered" if target.is_open and not target.node.is_frozen else "mute"
        self.cluster.later(delay, source.awake, lambda: then(result))

    def connect(self, source: SimulatedPeers, address: str) -> None:
        """A dial was answered and both sides know each other."""
        link = Link(self, source, self.listeners[address])
        for end in link.ends:
            self.cluster.later(self.cluster.delay(), end.awake, end.opened, link)

    def when_changed(self, node: Node, then: Callable[[], None]) -> None:
        """Once something about this node has changed, or after a while: an answer to a dial may be another now."""
        is_done = False

        def once() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                then()

        self._waiting[node].append(once)
        self.cluster.later(DIAL_LIMIT_S, once)

    def changed(self, node: Node) -> None:
        """This node's processes, its power or its ways have changed."""
        for then in self._waiting.pop(node, []):
            self.cluster.later(PROOF_DIAL_S, then)
        for presence in self.listeners.values():
            for link in presence.links():
                if node in (link.ends[0].node, link.ends[1].node):
                    link.review()

    def reset(self) -> None:
        """A middlebox resets every connection."""
        for presence in list(self.listeners.values()):
            for link in list(presence.links()):
                link.reset()


class Link:
    """One connection. Direction 0 leads from ends[0] to ends[1], direction 1 back."""

    def __init__(self, network: PresenceNetwork, source: SimulatedPeers, target: SimulatedPeers) -> None:
        self._network = network
        self.ends = (source, target)
        self.member_ids = (source.member_id, target.member_id)
        self.is_provable = not (source.node.is_masked or target.node.is_masked)
        self._held: tuple[list[str | None], list[str | None]] = ([], [])  # None: FIN
        self._last_at = [0.0, 0.0]
        self._still_since = [math.inf, math.inf]
        self._is_closed = [False, False]

    def side(self, end: SimulatedPeers) -> int:
        return 0 if end is self.ends[0] else 1

    def peer_id(self, end: SimulatedPeers) -> str:
        return self.member_ids[1 - self.side(end)]

    def send(self, end: SimulatedPeers, text: str | None) -> None:
        """Send a message, or with None a FIN; what the network does not pass now waits for its heal."""
        direction = self.side(end)
        if self._is_closed[direction]:
            return
        self._is_closed[direction] = text in (None, BYE)
        if end.node.is_powered_off:
            return
        self._held[direction].append(text)
        self._flush(direction)
        self.review()

    def reset(self) -> None:
        for direction in (0, 1):
            if not self._is_closed[1 - direction]:
                self._is_closed[direction] = True
                self._later(direction, None)

    def review(self) -> None:
        """Look which directions have fallen still, or move again."""
        for direction in (0, 1):
            source, target = self.ends[direction], self.ends[1 - direction]
            # Which of a paused agent's messages are still in its kernel does not matter: nobody waits for one.
            moves = self._network.passes(source.node, target.node) and source.is_open and not source.node.is_frozen
            if moves:
                self._still_since[direction] = math.inf
            elif self._still_since[direction] == math.inf:
                now = self._still_since[direction] = self._network.cluster.now
                self._network.cluster.later(SILENCE_S, self._fall_silent, direction, now)
            self._flush(direction)

    def _flush(self, direction: int) -> None:
        source, target = self.ends[direction], self.ends[1 - direction]
        if self._network.passes(source.node, target.node):
            held = self._held[direction]
            while held:
                self._later(direction, held.pop(0))

    def _later(self, direction: int, text: str | None) -> None:
        cluster = self._network.cluster
        at = max(self._last_at[direction], cluster.now + cluster.delay())
        self._last_at[direction] = at
        target = self.ends[1 - direction]
        cluster.at(at, target.awake, target.received, self, text)

    def _fall_silent(self, direction: int, since: float) -> None:
        target = self.ends[1 - direction]
        if self._still_since[direction] == since:
            target.awake(target.closed, self, True)


class SimulatedPeers:
    """One agent's part, with the calls of `rendezvous.peers.connections.Presence`."""

    def __init__(self, network: PresenceNetwork, node: Node, address: str) -> None:
        self._network = network
        self.node = node
        self.address = address
        self.is_open = True
        self.job = self.member_id = ""
        self._attended = ("", "")
        self._links: dict[str, list[Link]] = {}
        self._proving: set[str] = set()
        network.listeners[address] = self

    @property
    def is_held(self) -> bool:
        """Whether agent, warden or workers hold the listener."""
        return self.is_open or (self.node.presence is self and self.node.running is not None)

    def links(self) -> list[Link]:
        return [link for links in self._links.values() for link in links]

    def awake(self, call: Callable[..., None], *arguments: object) -> None:
        """Do this when the agent runs; never once it is gone."""
        if self.is_open and not self.node.when_thawed(self.awake, call, *arguments):
            call(*arguments)

    def set_identity(self, job: str, member_id: str) -> None:
        """Be another member from now on: connections that knew the one before are of no use."""
        if (job, member_id) != (self.job, self.member_id):
            for link in self.links():
                link.send(self, BYE)
                self._drop(link, True)
            self._proving.clear()
        self.job, self.member_id = job, member_id

    def connect_to(self, member_id: str, address: str) -> None:
        if (member_id, address) == self._attended:
            return
        left, self._attended = self._attended[0], (member_id, address)
        for link in list(self._links.get(left, [])):
            if link.side(self) == 0:  # one that this side has dialled
                link.send(self, BYE)
                self._drop(link, True)
        if member_id:
            self._dial(member_id, address)

    def send(self, member_id: str, text: str) -> None:
        for link in self._links.get(member_id, [])[-1:]:
            link.send(self, text)

    def close(self) -> None:
        """The agent is gone, and its kernel says so to all it was connected with."""
        self.is_open = False
        for link in self.links():
            link.send(self, None)
        self._links.clear()

    # --- connections ---

    def _dial(self, member_id: str, address: str) -> None:
        def dialled(result: Dialled) -> None:
            if self._attended != (member_id, address) or self._is_dialled(member_id):
                return
            target = self._network.listeners.get(address)
            if result == "answered" and target is not None and (target.job, target.member_id) == (self.job, member_id):
                self._network.connect(self, address)
            elif target is not None and result in ("mute", "silence"):
                self._network.when_changed(target.node, lambda: self._dial(member_id, address))
            else:
                self._network.cluster.later(REDIAL_S * 5, self._dial, member_id, address)

        if self.is_open and self._attended == (member_id, address):
            self._network.dial(self, address, dialled)

    def _is_dialled(self, member_id: str) -> bool:
        return any(link.side(self) == 0 for link in self._links.get(member_id, []))

    def opened(self, link: Link) -> None:
        peer_id = link.peer_id(self)
        side = link.side(self)
        if link.member_ids[side] != self.member_id or not link.ends[1 - side].is_open:
            link.send(self, None)
            return
        links = self._links.setdefault(peer_id, [])
        links.append(link)
        link.review()
        if len(links) == 1:
            self._submit(PeerUp(peer_id, link.ends[1 - side].address, link.is_provable))

    def received(self, link: Link, text: str | None) -> None:
        if text in (None, BYE):
            self.closed(link, False, is_farewell=text == BYE)
        elif link in self._links.get(link.peer_id(self), []):
            self._submit(PeerMessage(link.peer_id(self), text))

    def closed(self, link: Link, is_silent: bool, is_farewell: bool = False) -> None:
        if link not in self.links():
            return
        if is_silent:
            link.send(self, None)
        self._drop(link, is_silent)
        peer_id, address = link.peer_id(self), link.ends[1 - link.side(self)].address
        if peer_id == self._attended[0]:
            self._network.cluster.later(REDIAL_S, self._dial, *self._attended)
        is_by_kernel = not is_silent and not is_farewell
        if is_by_kernel and link.is_provable and peer_id not in self._links and peer_id not in self._proving:
            self._proving.add(peer_id)
            self._prove(peer_id, address, 0)

    def _drop(self, link: Link, is_silent: bool) -> None:
        peer_id = link.peer_id(self)
        links = self._links[peer_id]
        links.remove(link)
        if not links:
            del self._links[peer_id]
            self._submit(PeerDown(peer_id, is_silent))

    # --- the proof ---

    def _prove(self, member_id: str, address: str, refusals: int) -> None:
        """Dial until two refusals prove that nothing of that member is left, or it answers."""

        def dialled(result: Dialled) -> None:
            target = self._network.listeners[address]
            if member_id in self._links or member_id not in self._proving:
                self._proving.discard(member_id)
            elif result == "answered" and (target.job, target.member_id) == (self.job, member_id):
                self._proving.discard(member_id)
                self._network.connect(self, address)
            elif result == "refused" and refusals == 1:
                self._proving.discard(member_id)
                self._submit(PeerGone(member_id))
            elif result == "refused":
                self._network.cluster.later(PROOF_DIAL_S, self._prove, member_id, address, refusals + 1)
            else:
                self._network.when_changed(target.node, lambda: self._prove(member_id, address, 0))

        if self.is_open and member_id not in self._links:
            self._network.dial(self, address, dialled)
        else:
            self._proving.discard(member_id)

    def _submit(self, event: Event) -> None:
        self.node.send_as(self, event)
