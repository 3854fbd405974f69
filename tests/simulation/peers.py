"""The simulated presence network: connections between agents, and what kernels report about machines.

It stands in for `rendezvous.peers.connections`. A kernel closes the connections of a process that dies, refuses a
connection attempt when no process holds the listener any more (agent, supervisor and workers inherit it), and accepts
one for a process that is stopped. A cut network or a machine without power reports nothing. All events follow from
these rules.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Literal

from rendezvous.events import Event, PeerDown, PeerGone, PeerMessage, PeerUp
from tests.simulation.host import Host
from tests.simulation.network import Network

DIAL_LIMIT_S = 1.0
REDIAL_S = 0.1
PROOF_DIAL_S = 0.02
SILENCE_S = 2.5  # a connection is given up after this time without a message
BYE = "\0bye"  # this connection is closed because it is not needed; it says nothing about its sender
DialResult = Literal["answered", "mute", "refused", "silence"]
Deliver = Callable[["SimulatedPeers", Event], None]


class PresenceNetwork:
    """All listeners and connections. `deliver` decides when an event reaches its agent (`SimulatedPeers.hear`)."""

    def __init__(self, network: Network, hosts: Mapping[str, Host], deliver: Deliver) -> None:
        self.timeline, self.network = network.timeline, network
        self.deliver = deliver
        self.listeners: dict[str, SimulatedPeers] = {}
        self._hosts = hosts
        self._waiting: dict[str, list[Callable[[], None]]] = defaultdict(list)  # host -> what waits for its change

    def passes(self, source: Host, target: Host) -> bool:
        """Whether what one node sends reaches the other."""
        is_walled = source.is_walled or target.is_walled or source.is_powered_off or target.is_powered_off
        return not is_walled and not self.network.is_cut(source.name, target.name)

    def dial(self, source: SimulatedPeers, address: str, then: Callable[[DialResult], None]) -> None:
        self.timeline.call_later(self.network.draw_delay(), self._arrive, source, address, then)

    def _arrive(self, source: SimulatedPeers, address: str, then: Callable[[DialResult], None]) -> None:
        target = self.listeners.get(address)
        delay = self.network.draw_delay()
        if target is None:
            result: DialResult = "silence"
        elif not (self.passes(source.host, target.host) and self.passes(target.host, source.host)):
            result, delay = "silence", DIAL_LIMIT_S
        elif self.network.is_forging_refusals or not target.is_held:
            result = "refused"
        else:
            result = "answered" if target.is_open and not target.host.is_frozen else "mute"
        self.timeline.call_later(delay, source.call_when_awake, lambda: then(result))

    def connect(self, source: SimulatedPeers, address: str) -> None:
        """Open a connection after a handshake: both sides know each other."""
        link = Link(self, source, self.listeners[address])
        for end in link.ends:
            self.timeline.call_later(self.network.draw_delay(), end.call_when_awake, end.handle_opened, link)

    def call_when_changed(self, host: Host, then: Callable[[], None]) -> None:
        """Call once something about this host has changed, or after a while: another dial may have another result."""
        is_done = False

        def once() -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                then()

        self._waiting[host.name].append(once)
        self.timeline.call_later(DIAL_LIMIT_S, once)

    def notify_change(self, host: Host) -> None:
        """The processes of this host, its power or its paths have changed."""
        for then in self._waiting.pop(host.name, []):
            self.timeline.call_later(PROOF_DIAL_S, then)
        for peers in self.listeners.values():
            for link in peers.list_links():
                if host in (link.ends[0].host, link.ends[1].host):
                    link.review()

    def review(self) -> None:
        """Paths of the network have changed."""
        for host in self._hosts.values():
            self.notify_change(host)

    def reset(self) -> None:
        """A middlebox resets every connection."""
        for peers in list(self.listeners.values()):
            for link in list(peers.list_links()):
                link.reset()


class Link:
    """One connection. Direction 0 leads from ends[0] to ends[1], direction 1 back."""

    def __init__(self, presence: PresenceNetwork, source: SimulatedPeers, target: SimulatedPeers) -> None:
        self._presence = presence
        self.ends = (source, target)
        self.member_ids = (source.member_id, target.member_id)
        self.is_provable = not (source.host.is_masked or target.host.is_masked)
        self._held: tuple[list[str | None], list[str | None]] = ([], [])  # None: FIN
        self._last_at = [0.0, 0.0]
        self._still_since = [math.inf, math.inf]
        self._is_closed = [False, False]

    def get_side(self, end: SimulatedPeers) -> int:
        return 0 if end is self.ends[0] else 1

    def get_peer_id(self, end: SimulatedPeers) -> str:
        return self.member_ids[1 - self.get_side(end)]

    def send(self, end: SimulatedPeers, text: str | None) -> None:
        """Send a message, or with None a FIN; what a cut holds up now arrives after the heal."""
        direction = self.get_side(end)
        if self._is_closed[direction]:
            return
        self._is_closed[direction] = text in (None, BYE)
        if end.host.is_powered_off:
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
        """Note which directions have become silent, or pass messages again."""
        for direction in (0, 1):
            source, target = self.ends[direction], self.ends[1 - direction]
            # Which messages of a paused agent are still in its kernel does not matter: no peer waits for one.
            moves = self._presence.passes(source.host, target.host) and source.is_open and not source.host.is_frozen
            if moves:
                self._still_since[direction] = math.inf
            elif self._still_since[direction] == math.inf:
                now = self._still_since[direction] = self._presence.timeline.now
                self._presence.timeline.call_later(SILENCE_S, self._fall_silent, direction, now)
            self._flush(direction)

    def _flush(self, direction: int) -> None:
        source, target = self.ends[direction], self.ends[1 - direction]
        if self._presence.passes(source.host, target.host):
            held = self._held[direction]
            while held:
                self._later(direction, held.pop(0))

    def _later(self, direction: int, text: str | None) -> None:
        timeline = self._presence.timeline
        at = max(self._last_at[direction], timeline.now + self._presence.network.draw_delay())
        self._last_at[direction] = at
        target = self.ends[1 - direction]
        timeline.call_at(at, target.call_when_awake, target.handle_received, self, text)

    def _fall_silent(self, direction: int, since: float) -> None:
        target = self.ends[1 - direction]
        if self._still_since[direction] == since:
            target.call_when_awake(target.handle_closed, self, True)


class SimulatedPeers:
    """The connections of one agent, with the methods of `rendezvous.peers.connections.PeerConnections`."""

    def __init__(self, presence: PresenceNetwork, host: Host, address: str, send: Callable[[Event], None]) -> None:
        self._presence = presence
        self._send = send
        self.host = host
        self.address = address
        self.is_open = True
        self.job = self.member_id = ""
        self._wanted = ("", "")
        self._links: dict[str, list[Link]] = {}
        self._proving: set[str] = set()
        presence.listeners[address] = self

    @property
    def is_held(self) -> bool:
        """Whether agent, supervisor or workers hold the listener."""
        return self.is_open or (self.host.address == self.address and self.host.running is not None)

    def list_links(self) -> list[Link]:
        return [link for links in self._links.values() for link in links]

    def call_when_awake(self, call: Callable[..., None], *arguments: object) -> None:
        """Call now, or once the agent is no longer paused; never once it is gone."""
        if self.is_open and not self.host.defer_if_frozen(self.call_when_awake, call, *arguments):
            call(*arguments)

    def hear(self, event: Event) -> None:
        """Give an event to the agent, if it still lives."""
        if self.is_open:
            self._send(event)

    def set_identity(self, job: str, member_id: str) -> None:
        """Become another member: connections that were opened under the previous identity are closed."""
        if (job, member_id) != (self.job, self.member_id):
            for link in self.list_links():
                link.send(self, BYE)
                self._drop(link)
            self._proving.clear()
        self.job, self.member_id = job, member_id

    def connect_to(self, member_id: str, address: str) -> None:
        if (member_id, address) == self._wanted:
            return
        left, self._wanted = self._wanted[0], (member_id, address)
        for link in list(self._links.get(left, [])):
            if link.get_side(self) == 0:  # one that this side has dialled
                link.send(self, BYE)
                self._drop(link)
        if member_id:
            self._dial(member_id, address)

    def send(self, member_id: str, text: str) -> None:
        for link in self._links.get(member_id, [])[-1:]:
            link.send(self, text)

    def close(self) -> None:
        """The agent is gone, and its kernel closes all its connections."""
        self.is_open = False
        for link in self.list_links():
            link.send(self, None)
        self._links.clear()

    # --- connections ---

    def _dial(self, member_id: str, address: str) -> None:
        def on_result(result: DialResult) -> None:
            if self._wanted != (member_id, address) or self._is_dialled(member_id):
                return
            target = self._presence.listeners.get(address)
            if result == "answered" and target is not None and (target.job, target.member_id) == (self.job, member_id):
                self._presence.connect(self, address)
            elif target is not None and result in ("mute", "silence"):
                self._presence.call_when_changed(target.host, lambda: self._dial(member_id, address))
            else:
                self._presence.timeline.call_later(REDIAL_S * 5, self._dial, member_id, address)

        if self.is_open and self._wanted == (member_id, address):
            self._presence.dial(self, address, on_result)

    def _is_dialled(self, member_id: str) -> bool:
        return any(link.get_side(self) == 0 for link in self._links.get(member_id, []))

    def handle_opened(self, link: Link) -> None:
        peer_id = link.get_peer_id(self)
        side = link.get_side(self)
        if link.member_ids[side] != self.member_id or not link.ends[1 - side].is_open:
            link.send(self, None)
            return
        links = self._links.setdefault(peer_id, [])
        links.append(link)
        link.review()
        if len(links) == 1:
            self._submit(PeerUp(peer_id, link.ends[1 - side].address, link.is_provable))

    def handle_received(self, link: Link, text: str | None) -> None:
        if text in (None, BYE):
            self.handle_closed(link, False, is_farewell=text == BYE)
        elif link in self._links.get(link.get_peer_id(self), []):
            self._submit(PeerMessage(link.get_peer_id(self), text))

    def handle_closed(self, link: Link, is_silent: bool, is_farewell: bool = False) -> None:
        if link not in self.list_links():
            return
        if is_silent:
            link.send(self, None)
        self._drop(link)
        peer_id, address = link.get_peer_id(self), link.ends[1 - link.get_side(self)].address
        if peer_id == self._wanted[0]:
            self._presence.timeline.call_later(REDIAL_S, self._dial, *self._wanted)
        is_by_kernel = not is_silent and not is_farewell
        if is_by_kernel and link.is_provable and peer_id not in self._links and peer_id not in self._proving:
            self._proving.add(peer_id)
            self._prove(peer_id, address, 0)

    def _drop(self, link: Link) -> None:
        peer_id = link.get_peer_id(self)
        links = self._links[peer_id]
        links.remove(link)
        if not links:
            del self._links[peer_id]
            self._submit(PeerDown(peer_id))

    # --- proof of death ---

    def _prove(self, member_id: str, address: str, refusals: int) -> None:
        """Dial until the member answers, or two refusals in a row prove that no process of it is left."""

        def on_result(result: DialResult) -> None:
            target = self._presence.listeners[address]
            if member_id in self._links or member_id not in self._proving:
                self._proving.discard(member_id)
            elif result == "answered" and (target.job, target.member_id) == (self.job, member_id):
                self._proving.discard(member_id)
                self._presence.connect(self, address)
            elif result == "refused" and refusals == 1:
                self._proving.discard(member_id)
                self._submit(PeerGone(member_id))
            elif result == "refused":
                self._presence.timeline.call_later(PROOF_DIAL_S, self._prove, member_id, address, refusals + 1)
            else:
                self._presence.call_when_changed(target.host, lambda: self._prove(member_id, address, 0))

        if self.is_open and member_id not in self._links:
            self._presence.dial(self, address, on_result)
        else:
            self._proving.discard(member_id)

    def _submit(self, event: Event) -> None:
        self._presence.deliver(self, event)
