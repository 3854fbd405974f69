"""Two nodes with one number: looked for before this one joins, where the user has numbered the nodes.

An agent that comes back, or that takes the place of one on its way out, finds the other's member for a moment. Once a
round has been sealed it joins all the same and stands by, because then somebody may be leaving. Before that a number
given twice can only be a mistake, once a dead agent's lease is over; and whoever made it should hear of it now and not
at the time-out.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from launcher.arrival import Arrival
from launcher.console import tell
from launcher.description import read_description
from launcher.errors import UsageError
from launcher.numbering import two_of_one
from rendezvous import keys, records
from rendezvous.errors import RecordError, StoreError
from rendezvous.records import Member
from rendezvous.store import Store

PAUSE_S = 0.25


class _Holder(NamedTuple):
    """Another node that has the number; `is_begun`: in a job whose first round is sealed."""

    name: str
    is_begun: bool


def require_own_number(store: Store, arrival: Arrival, run_id: str, node_rank: int, *, patience_s: float) -> None:
    """Raise UsageError, with both names, if another node has this number and keeps it for `patience_s`."""
    deadline, said = time.monotonic() + patience_s, False
    while other := _holder(store, arrival, run_id, node_rank):
        sentence = two_of_one(arrival.name, other.name, node_rank)
        if other.is_begun:
            tell(f"{sentence}: {arrival.name} stands by until {other.name} is gone")
            return
        if time.monotonic() >= deadline:
            raise UsageError(sentence, "each node has a number of its own, from 0")
        if not said:
            said = True
            tell(f"{sentence}: waiting up to {patience_s:g} s for {other.name} to go")
        time.sleep(PAUSE_S)


def _holder(store: Store, arrival: Arrival, run_id: str, node_rank: int) -> _Holder | None:
    prefix, secret = arrival.network.prefix, arrival.credentials.secret
    try:
        current = store.get(keys.current(prefix, run_id)).first
        if current is None:
            return None
        job = keys.of_job(prefix, run_id, current.value.decode(errors="replace"))
        is_begun = store.get(job.round).first is not None
        found = store.get(job.members, prefix=True).items
    except StoreError:  # whoever joins waits for the store, and says so
        return None
    for item in found:
        try:
            member = records.decode(Member, item.value, item.key, secret)
            description = read_description(member.description)
        except RecordError:
            continue
        is_this = (member.node_name, member.boot_id) == (arrival.name, arrival.boot_id)
        if description.node_rank == node_rank and not is_this:
            return _Holder(member.node_name, is_begun)
    return None
