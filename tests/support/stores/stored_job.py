"""A job as it lies in a store, written without one agent: for tests of those who look at jobs from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.meshctl.job_store import JobStore
from launcher.placement.adapter.description import Description, NodeAssignment, encode_assignment, encode_description
from launcher.views.run_view import RunView
from rendezvous import records
from rendezvous.reasons import Reason
from rendezvous.records import (
    AnyRecord,
    Assignment,
    LeaderRecord,
    Member,
    RoundHistory,
    Seal,
    Spares,
    Spec,
    Status,
    Stop,
    Verdict,
    encode,
)
from rendezvous.stores.contract import Store
from tests.support.reasons import because

PREFIX = "meshrun"
TTL_S = 60.0


class StoredJob:
    """Nodes h0, h1, ... with 4 slots each; member ids are m0, m1, ..."""

    def __init__(
        self, store: Store, run_id: str = "exp-41", job_key: str = "0a1b", secret: bytes = b"", prefix: str = PREFIX
    ) -> None:
        self.store, self.run_id, self.secret = store, run_id, secret
        self.keys = records.make_job_keys(prefix, run_id, job_key)
        self.leases: dict[int, int] = {}
        store.put(records.make_current_key(prefix, run_id), job_key.encode())
        self.put(self.keys.spec, Spec(mesh="dp=*,tp=2", options={}, digest=""))

    def put(self, key: str, record: AnyRecord, lease: int = 0) -> None:
        self.store.put(key, encode(record, key, self.secret), lease=lease)

    def join(self, *indexes: int, locality: Sequence[tuple[str, str]] = ()) -> None:
        for index in indexes:
            self.leases[index] = self.store.lease_grant(TTL_S).id
            description = Description(slot_count=4, locality=tuple(locality), address=f"10.0.0.{index}", role="default")
            member = Member(
                member_id=f"m{index}",
                node_name=f"h{index}",
                boot_id="b",
                description=encode_description(description),
                lease_ttl_s=TTL_S,
            )
            self.put(self.keys.make_member_key(f"m{index}"), member, self.leases[index])

    def lead(self, index: int) -> None:
        leader = LeaderRecord(member_id=f"m{index}", node_name=f"h{index}")
        self.put(self.keys.leader, leader, self.leases[index])

    def seal(self, round: int, *active: int, reason: str = "all nodes are there") -> None:
        """4 ranks to each, in this order."""
        size = 4 * len(active)
        for place, index in enumerate(active):
            ranks = tuple(range(4 * place, 4 * place + 4))
            share = NodeAssignment(
                ranks=ranks,
                world_size=size,
                shape=(size // 2, 2),
                group_rank=place,
                group_world_size=len(active),
                role_ranks=ranks,
                role_world_size=size,
                master_addr=f"10.0.0.{active[0]}",
                master_port=29500,
            )
            content = encode_assignment(share)
            assignment = Assignment(round=round, plan_token=f"t{round}", content=content, node=f"h{index} b")
            self.put(self.keys.make_assignment_key(round, f"t{round}", f"m{index}"), assignment)
            self.status(index, round)
        coordinator = f"10.0.0.{active[0]}:29500"
        seal = Seal(
            round=round,
            plan_token=f"t{round}",
            world_size=size,
            coordinator=coordinator,
            reason=because(reason),
        )
        self.put(self.keys.round, seal)
        past = RoundHistory(
            round=round, world_size=size, node_count=len(active), coordinator=coordinator, reason=because(reason)
        )
        self.put(self.keys.make_history_key(round), past)

    def status(
        self, index: int, round: int, *, outcome: str = "", rank: int = -1, exit_code: int = 0, leaving: str = "",
        is_stopped: bool = False,
    ) -> None:  # fmt: skip
        status = Status(
            round=round,
            plan_token=f"t{round}",
            outcome=outcome,
            rank=rank,
            exit_code=exit_code,
            leaving=because(leaving) if leaving else None,
            is_stopped=is_stopped,
        )
        self.put(self.keys.make_status_key(f"m{index}"), status)

    def spares(self, reasons: Mapping[int, Reason | str]) -> None:
        ids = tuple(f"m{index}" for index in reasons)
        places = tuple(range(len(ids)))
        given = tuple(because(one) if isinstance(one, str) else one for one in reasons.values())
        self.put(self.keys.spares, Spares(member_ids=ids, reasons=given, reason_places=places))

    def stop(self, round: int, reason: str) -> None:
        self.put(self.keys.stop, Stop(round=round, reason=because(reason), mode="kill"))

    def lose(self, index: int) -> None:
        self.store.lease_revoke(self.leases.pop(index))

    def end(self, kind: str, exit_code: int = 0, reason: str = "") -> None:
        self.put(self.keys.verdict, Verdict(kind=kind, exit_code=exit_code, round=1, reason=because(reason)))

    @property
    def jobs(self) -> JobStore:
        return JobStore(self.store, PREFIX, self.secret)

    def view(self) -> RunView:
        return self.jobs.read_run(self.run_id)
