"""Whose a served store is: one agent serves it for one run, and an agent of another run must not use it.

Two runs that are given one endpoint would share a store that ends with the first of them. So the agent that serves
names its run in the store, and each agent that finds a store compares. Another run that has begun keeps its nodes, and
this agent is refused. Another run that still waits for nodes may be this agent's own under another id. A run that has
ended is about to take its store away, so that this agent may have to serve the next one: it waits for that. So it does
for an earlier attempt of its own run, which it asks to end.
"""

from __future__ import annotations

from msgspec import Struct

from rendezvous import records
from rendezvous.errors import RecordError, VersionError
from rendezvous.member import admission
from rendezvous.records import Keys, StoreOwner
from rendezvous.stores.contract import Get, Store


class Occupant(Struct, frozen=True):
    """The run to which a served store belongs, as another agent finds it."""

    owner: StoreOwner
    has_begun: bool = False
    """It has had a round."""
    is_over: bool = False
    """It has a verdict: its agent serves the store only until the others have read that."""
    job: Keys | None = None

    def is_of(self, run: StoreOwner) -> bool:
        return (self.owner.prefix, self.owner.run_id) == (run.prefix, run.run_id)

    def make_way(self, store: Store, own: StoreOwner, secret: bytes) -> bool:
        """Return whether this is an earlier attempt of `own`; if so, ask it to end. Raises StoreError."""
        is_earlier = self.is_of(own) and self.owner.attempt < own.attempt
        if is_earlier and self.job is not None:
            guards, ask = admission.make_request(self.job, own.attempt, own.node_name, secret)
            store.txn(guards, (ask,))
        return is_earlier


def find_occupant(store: Store) -> Occupant | None:
    """Return whose store this is; None if no agent of a run serves it. Raises StoreError and VersionError."""
    try:
        found = store.get(records.STORE_OWNER_KEY).first
        if found is None:
            return None
        owner = records.decode(StoreOwner, found.value, found.key)
        current = store.get(records.make_current_key(owner.prefix, owner.run_id)).first
        if current is None:
            return Occupant(owner)
        job = records.make_job_keys(owner.prefix, owner.run_id, current.value.decode(errors="replace"))
        seal, verdict = store.txn((), (Get(job.round), Get(job.verdict))).found
    except VersionError:
        raise
    except RecordError:  # written by others
        return None
    return Occupant(owner, has_begun=seal.first is not None, is_over=verdict.first is not None, job=job)
