"""Detects two nodes with one number before this one joins, where the user has numbered the nodes.

An agent that returns, or that replaces one that is about to leave, finds the other's member for a moment. Once a round
has been sealed it joins all the same as a spare, because the other may be leaving. Before that a number given twice can
only be a mistake, once a dead agent's lease has expired; and the user should learn of it now and not at the time-out.

Two that start in the same moment would both find no other. So each first writes a claim, for the time of a lease: until
then it is a member, or it is not joining.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from msgspec import Struct

from launcher.agent.startup.startup import Startup
from launcher.model.console import log
from launcher.model.errors import UsageError, describe
from launcher.placement.adapter.description import decode_description
from launcher.placement.adapter.numbering import explain_duplicate_rank
from rendezvous import records
from rendezvous.errors import RecordError, StoreError
from rendezvous.records import Member
from rendezvous.stores.contract import Get, KeyValue, Store

PAUSE_S = 0.25


def require_unique_rank(
    store: Store, startup: Startup, run_id: str, node_rank: int, lease_ttl_s: float, is_leaving: Callable[[], bool]
) -> None:
    """Raise UsageError, with both names, if another node has this number for longer than the time of a lease.

    `is_leaving`: whether a signal has come, which ends the wait: it will make this node leave.
    """
    patience_s = lease_ttl_s + 1
    deadline, said = time.monotonic() + patience_s, False
    claims = _RankClaims(store, startup, run_id, node_rank)
    claims.announce(lease_ttl_s)
    while not is_leaving() and (holder := claims.find_holder()):
        name, is_begun = holder
        sentence = describe(explain_duplicate_rank(startup.name, name, node_rank))
        if is_begun:
            log(f"{sentence}: {startup.name} waits as a spare until {name} has left")
            return
        if time.monotonic() >= deadline:
            claims.withdraw()
            raise UsageError(sentence, "give each node a --node-rank of its own, from 0")
        if not said:
            said = True
            log(f"{sentence}: waiting up to {patience_s:g} s for {name} to leave")
        time.sleep(PAUSE_S)


class _RankClaims(Struct, eq=False):
    """Reads the members of the run's job, and the claims that were written before this node's."""

    store: Store
    startup: Startup
    run_id: str
    node_rank: int
    _revision: int = 0  # of this node's claim
    _lease: int = 0

    @property
    def _prefix(self) -> str:
        return records.make_node_number_prefix(self.startup.network.prefix, self.run_id, self.node_rank)

    def announce(self, ttl_s: float) -> None:
        """Write this node's claim; if the store is away none is written, and joining waits for the store."""
        startup, key = self.startup, self._prefix + os.urandom(8).hex()
        own = Member(member_id="", node_name=startup.name, boot_id=startup.boot_id, description="")
        value = records.encode(own, key, startup.credentials.secret)
        with suppress(StoreError):
            self._lease = self.store.lease_grant(ttl_s).id
            self._revision = self.store.put(key, value, lease=self._lease)

    def withdraw(self) -> None:
        """Delete this node's claim."""
        with suppress(StoreError):
            self.store.lease_revoke(self._lease)

    def find_holder(self) -> tuple[str, bool] | None:
        """Return the name of another node with the number, and whether it is in a job whose first round is sealed.

        None if there is no other, or the store does not answer.
        """
        prefix, run_id = self.startup.network.prefix, self.run_id
        members: tuple[KeyValue, ...] = ()
        is_begun = False
        try:
            reads = (Get(records.make_current_key(prefix, run_id)), Get(self._prefix, prefix=True))
            current, claims = self.store.txn((), reads).found
            if current.first is not None:
                job = records.make_job_keys(prefix, run_id, current.first.value.decode(errors="replace"))
                if job.attempt >= self.startup.attempt:  # an earlier one makes way
                    current_round, found = self.store.txn((), (Get(job.round), Get(job.members, prefix=True))).found
                    is_begun, members = current_round.first is not None, found.items
        except StoreError:
            return None
        others = [other for other in self._list_others(members) if self._has_rank(other)]
        others += self._list_others(item for item in claims.items if item.create_revision < self._revision)
        return (others[0].node_name, is_begun) if others else None

    def _list_others(self, items: Iterable[KeyValue]) -> Iterator[Member]:
        """Yield the other nodes, from their records."""
        for item in items:
            with suppress(RecordError):
                member = records.decode(Member, item.value, item.key, self.startup.credentials.secret)
                if (member.node_name, member.boot_id) != (self.startup.name, self.startup.boot_id):
                    yield member

    def _has_rank(self, member: Member) -> bool:
        try:
            return decode_description(member.description).node_rank == self.node_rank
        except RecordError:
            return False
