"""Detects two nodes with one number before this one joins, where the user has numbered the nodes.

An agent that returns, or that replaces one that is about to leave, finds the other's member for a moment. Once a round
has been sealed it joins all the same as a spare, because the other may be leaving. Before that a number given twice can
only be a mistake, once a dead agent's lease has expired; and the user should learn of it now and not at the time-out.

Two that start in the same moment would both find no other. So each first writes a claim, for the time of a lease: until
then it is a member, or it is not joining.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NamedTuple

from launcher.agent.startup.startup import END_SIGNALS, Startup
from launcher.model.console import log
from launcher.model.errors import UsageError, describe
from launcher.placement.adapter.description import decode_description
from launcher.placement.adapter.numbering import explain_duplicate_rank
from rendezvous import records
from rendezvous.errors import RecordError, StoreError
from rendezvous.records import Member
from rendezvous.stores.contract import Get, KeyValue, Store

PAUSE_S = 0.25


class _RankHolder(NamedTuple):
    """Another node that has the number; `is_begun`: in a job whose first round is sealed."""

    name: str
    is_begun: bool


def require_unique_rank(store: Store, startup: Startup, run_id: str, node_rank: int, *, lease_ttl_s: float) -> None:
    """Raise UsageError, with both names, if another node has this number for longer than the time of a lease.

    A signal ends the wait: its handler will end this process or make it leave.
    """
    patience_s = lease_ttl_s + 1
    deadline, said = time.monotonic() + patience_s, False
    claims = _RankClaims(store, startup, run_id, node_rank)
    claims.announce(lease_ttl_s)
    with _record_signals() as signals:
        while not signals and (other := claims.find_holder()):
            sentence = describe(explain_duplicate_rank(startup.name, other.name, node_rank))
            if other.is_begun:
                log(f"{sentence}: {startup.name} waits as a spare until {other.name} has left")
                return
            if time.monotonic() >= deadline:
                claims.withdraw()
                raise UsageError(sentence, "give each node a --node-rank of its own, from 0")
            if not said:
                said = True
                log(f"{sentence}: waiting up to {patience_s:g} s for {other.name} to leave")
            time.sleep(PAUSE_S)


@contextmanager
def _record_signals() -> Iterator[list[int]]:
    """Record the signals that come meanwhile; their handlers run as usual."""
    found: list[int] = []
    before = {signum: signal.getsignal(signum) for signum in END_SIGNALS}

    def note(signum: int, frame: FrameType | None) -> None:
        found.append(signum)
        handler = before[signal.Signals(signum)]
        assert callable(handler)
        handler(signum, frame)

    taken = [signum for signum, handler in before.items() if callable(handler)]
    for signum in taken:
        signal.signal(signum, note)
    try:
        yield found
    finally:
        for signum in taken:
            signal.signal(signum, before[signum])


class _RankClaims:
    """Reads the members of the run's job, and the claims that were written before this node's."""

    def __init__(self, store: Store, startup: Startup, run_id: str, node_rank: int) -> None:
        self._store = store
        self._startup = startup
        self._run_id = run_id
        self._node_rank = node_rank
        self._claim_prefix = records.make_node_number_prefix(startup.network.prefix, run_id, node_rank)
        self._claim_revision = 0  # the revision of this node's claim
        self._lease = 0

    def announce(self, ttl_s: float) -> None:
        """Write this node's claim; if the store is away none is written, and joining waits for the store."""
        startup, key = self._startup, self._claim_prefix + os.urandom(8).hex()
        own = Member(member_id="", node_name=startup.name, boot_id=startup.boot_id, description="")
        value = records.encode(own, key, startup.credentials.secret)
        try:
            self._lease = self._store.lease_grant(ttl_s).id
            self._claim_revision = self._store.put(key, value, lease=self._lease)
        except StoreError:
            return

    def withdraw(self) -> None:
        """Delete this node's claim."""
        with suppress(StoreError):
            self._store.lease_revoke(self._lease)

    def find_holder(self) -> _RankHolder | None:
        """Return another node with the number; None if there is none or the store does not answer."""
        prefix, run_id = self._startup.network.prefix, self._run_id
        try:
            reads = (Get(records.make_current_key(prefix, run_id)), Get(self._claim_prefix, prefix=True))
            current, claims = self._store.txn((), reads).found
            members: tuple[KeyValue, ...] = ()
            is_begun = False
            if current.first is not None:
                job = records.make_job_keys(prefix, run_id, current.first.value.decode(errors="replace"))
                current_round, found = self._store.txn((), (Get(job.round), Get(job.members, prefix=True))).found
                is_begun, members = current_round.first is not None, found.items
        except StoreError:
            return None
        earlier = [item for item in claims.items if item.create_revision < self._claim_revision]
        others = [other for item in members if (other := self._decode_other(item)) and self._has_rank(other)]
        others += [other for item in earlier if (other := self._decode_other(item))]
        return _RankHolder(others[0].node_name, is_begun) if others else None

    def _decode_other(self, item: KeyValue) -> Member | None:
        """Return another node, from its record."""
        try:
            member = records.decode(Member, item.value, item.key, self._startup.credentials.secret)
        except RecordError:
            return None
        is_this = (member.node_name, member.boot_id) == (self._startup.name, self._startup.boot_id)
        return None if is_this else member

    def _has_rank(self, member: Member) -> bool:
        try:
            return decode_description(member.description).node_rank == self._node_rank
        except RecordError:
            return False
