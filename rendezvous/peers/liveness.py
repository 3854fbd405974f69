"""Which members are reached, as far as connections between agents show: a register of connections that open and close.

Every agent keeps one presence connection to the leader. That it is up shows little, and that it broke proves nothing:
networks break connections between healthy nodes. So this register only keeps what was seen, since when, and the one
proof: a member's host has refused dials after its connection ended. What follows from it is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rendezvous.events import PeerDown, PeerGone, PeerUp

PEERS_MAX = 65_536  # far above any job; connections under ever new names must not fill the memory
MEMBER_ID_MAX = 64


class PeerLiveness:
    """The liveness of peers. `trusts_refusals`: whether refused dials are a proof (setting `presence_proof`)."""

    def __init__(self, trusts_refusals: bool) -> None:
        self._trusts_refusals = trusts_refusals
        self.connected: dict[str, PeerUp] = {}  # the members with a connection that is up
        self.unreachable_since: dict[str, float] = {}  # when the last connection to each ended
        self.last: dict[str, PeerUp] = {}  # the connection by which each member was reached last
        self._gone_since: dict[str, float] = {}

    def take(self, event: PeerUp | PeerDown | PeerGone, now: float) -> None:
        """Note a connection that opened or closed, or a proof."""
        match event:
            case PeerUp(member_id, _, _):
                if len(member_id) > MEMBER_ID_MAX or (member_id not in self.last and len(self.last) >= PEERS_MAX):
                    return
                self.connected[member_id] = self.last[member_id] = event
                self.unreachable_since.pop(member_id, None)
                self._gone_since.pop(member_id, None)
            case PeerDown(member_id):
                if self.connected.pop(member_id, None) is not None:
                    self.unreachable_since[member_id] = now
            case PeerGone(member_id):
                if member_id in self.last and member_id not in self.connected:
                    self._gone_since.setdefault(member_id, now)

    def list_reached_after(self, at: float) -> list[str]:
        """List the members with a connection that is up, or was up after `at`."""
        return [*self.connected, *(member_id for member_id, since in self.unreachable_since.items() if since > at)]

    def get_gone_since(self, member_id: str, address: str) -> float:
        """Return since when this member is proven gone, with its workers, if it advertises `address`; else infinite.

        A refusal by another address than the one that its connection went to or came from proves nothing: the refusing
        host may be another one, in front of it.
        """
        since = self._gone_since.get(member_id, math.inf)
        if not self._trusts_refusals or since == math.inf:
            return math.inf
        last = self.last[member_id]
        return since if last.is_provable and last.address == address else math.inf

    def is_surely_gone(self, member_id: str) -> bool:
        """Return whether this member is proven gone, with its workers, at the address that it reported itself."""
        return member_id in self.last and self.is_gone(member_id, self.last[member_id].address)

    def is_gone(self, member_id: str, address: str) -> bool:
        """Return whether this member is proven gone, with its workers, if it advertises `address`."""
        return self.get_gone_since(member_id, address) < math.inf

    def forget_except(self, member_ids: Iterable[str]) -> None:
        """Forget all but these and connected members: the others' keys are gone, so they are no longer asked about."""
        kept = {*member_ids, *self.connected}
        for member_id in [member_id for member_id in self.last if member_id not in kept]:
            del self.last[member_id]
            self.unreachable_since.pop(member_id, None)
            self._gone_since.pop(member_id, None)
