"""A member under test that follows: it is one of a round that L leads, with S as another member.

What L does is put into the store by hand; what the member sees of L over presence is told as events.
"""

from __future__ import annotations

import math
from typing import Any

from rendezvous import records
from rendezvous.events import Start, StoreRequest, Txn
from rendezvous.reasons import Reason
from rendezvous.records import Assignment, LeaderRecord, Member, Seal, Spares, Spec
from rendezvous.stores.memory.store import MemoryStore
from tests.support.protocol.member_harness import Bench

JOB = records.make_job_keys("p", "r", "job")
L_IS = "10.0.0.9:7000"


class Follower(Bench):
    """A member of round 1, led by L. `role`: "active", "spare" or "outsider"."""

    def __init__(self, role: str = "active", successors: tuple[str, ...] = (), **settings: Any) -> None:
        self.now = 100.0
        store = MemoryStore(clock=lambda: self.now)
        super().__init__(store, **settings)
        self.id = self.protocol.member_id
        self.lease = store.lease_grant(60.0).id
        self.put(records.make_current_key("p", "r"), b"job")
        self.record(JOB.spec, Spec(mesh="dp=*", options={"--nnodes": "1:1"}, digest="train.py"))
        for member_id, address in (("L", L_IS), ("S", "10.0.0.8:7000")):
            member = Member(
                member_id=member_id, node_name=f"node {member_id}", boot_id="", description="", presence_address=address
            )
            self.record(JOB.make_member_key(member_id), member, self.lease)
        self.leader = LeaderRecord(member_id="L", node_name="node L", presence_address=L_IS)
        self.record(JOB.leader, self.leader, self.lease)
        names = tuple(self.id if name == "me" else name for name in successors)
        enough = Reason.of("enough")
        seal = Seal(round=1, plan_token="plan", world_size=2, coordinator="c:1", reason=enough, successors=names)
        self.record(JOB.round, seal)
        for member_id in ("L", "S", *([self.id] if role == "active" else [])):
            made = Assignment(round=1, plan_token="plan", content="ranks", node=f"node {member_id} ")
            self.record(JOB.make_assignment_key(1, "plan", member_id), made)
        if role == "spare":
            self.record(JOB.spares, Spares(member_ids=(self.id,)))
        self.first = self.tell(Start())

    def put(self, key: str, value: bytes, lease: int = 0) -> None:
        self.store.put(key, value, lease=lease)

    def record(self, key: str, record: records.Record, lease: int = 0) -> None:
        self.put(key, records.encode(record), lease)

    def pass_time(self, duration_s: float) -> list[Any]:
        """Let time pass in steps, so that leases are kept."""
        made: list[Any] = []
        for _ in range(math.ceil(duration_s / 0.5)):
            made += self.wait(0.5)
        return made

    @property
    def leads(self) -> bool:
        stored, own_id = self.store.get(JOB.leader).first, self.protocol.member_id
        return stored is not None and records.decode(LeaderRecord, stored.value, stored.key).member_id == own_id


def asked(actions: list[Any], kind: str) -> list[Txn]:
    """The requests of this kind."""
    found = [a.request for a in actions if isinstance(a, StoreRequest) and a.kind == kind]
    return [request for request in found if isinstance(request, Txn)]
