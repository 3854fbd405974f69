"""Derives a job's state from its keys: the members, the state of each, and the history.

The store is read from outside while the job continues, and any client may have written to it. So nothing here relies on
two keys being consistent: a record that cannot be read is named among the `faults`, and the rest is shown without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from launcher.placement.adapter.description import Description, NodeAssignment, decode_assignment, decode_description
from rendezvous.errors import RecordError
from rendezvous.records import (
    Assignment,
    Command,
    Drain,
    Keys,
    LeaderRecord,
    Member,
    RoundHistory,
    Seal,
    Spares,
    Spec,
    Status,
    Stop,
    Verdict,
    decode,
)
from rendezvous.stores.contract import KeyValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.records import Record

FORMING, RUNNING, STOPPING, WAITING, ENDED = "forming", "running", "stopping", "waiting", "ended"


class JobSnapshot(NamedTuple):
    """The data of one job: its keys with their values, and for each lease of a member the seconds left."""

    run_id: str
    keys: Keys
    items: tuple[KeyValue, ...]
    revision: int
    lease_left_s: Mapping[int, float] = {}


@dataclass(frozen=True, kw_only=True)
class NodeState:
    """One member, or a former one whose ranks have not been reassigned yet.

    `state`: "waiting" (for a first round), "running", "succeeded", "failed", "stopping", "stopped", "leaving",
    "spare", "quarantined", "drained" or "lost"; "gone" when the job has ended. `why` is for people, and empty where the
    state says it all. `path`: its place in the network, outermost first; `locality`: the same, each domain after its
    level. `silent_s`: since its last keep-alive, None if it has no lease or nobody knows.
    """

    name: str
    member_id: str
    state: str
    ranks: tuple[int, ...] = ()
    slot_count: int = 0
    path: tuple[str, ...] = ()
    locality: tuple[tuple[str, str], ...] = ()
    address: str = ""
    why: str = ""
    silent_s: float | None = None
    is_leader: bool = False


@dataclass(frozen=True, kw_only=True)
class Overview:
    """The job as a whole. `phase`: "forming" before the first round, then "running", "stopping", "waiting" or "ended".

    `round` 0: none yet. `shape` goes with the axes of `mesh`. `reason`: why the round was sealed; `stop_reason`: why
    it is or was stopped. `nodes` are sorted by first rank, those without ranks last, by name. `drained`: nodes that
    may not come back. `requests`: what people have asked for and nobody has done yet. `faults`: keys that cannot be
    read, each with why.
    """

    run_id: str
    job_key: str
    phase: str
    mesh: str = ""
    limits: str = ""
    round: int = 0
    world_size: int = 0
    shape: tuple[int, ...] = ()
    coordinator: str = ""
    reason: str = ""
    stop_reason: str = ""
    leader: str = ""
    restart_count: int = 0
    short_rounds: int = 0
    nodes: tuple[NodeState, ...] = ()
    drained: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    history: tuple[RoundHistory, ...] = ()
    verdict: Verdict | None = None
    faults: tuple[str, ...] = ()

    @property
    def active(self) -> tuple[NodeState, ...]:
        """Nodes with ranks."""
        return tuple(node for node in self.nodes if node.ranks)


def build_overview(snapshot: JobSnapshot, secret: bytes = b"") -> Overview:
    """Build the overview from these keys; with a secret, records that are not signed by it are faults."""
    return _OverviewBuilder(snapshot, secret).build()


class _OverviewBuilder:
    """The records of one reading by key, decoded once."""

    def __init__(self, snapshot: JobSnapshot, secret: bytes) -> None:
        self._snapshot = snapshot
        self._keys = snapshot.keys
        self._secret = secret
        self._items = {item.key: item for item in snapshot.items}
        self._faults: dict[str, str] = {}

    def build(self) -> Overview:
        keys, reading = self._keys, self._snapshot
        spec, seal = self._read_record(Spec, keys.spec), self._read_record(Seal, keys.round)
        stop, verdict = self._read_record(Stop, keys.stop), self._read_record(Verdict, keys.verdict)
        leader = self._read_record(LeaderRecord, keys.leader)
        drained = tuple(sorted(drain.node_name for drain in self._read_records(Drain, keys.drains).values()))
        is_stopped = seal is not None and stop is not None and stop.round >= seal.round
        shares = self._read_shares(seal)
        nodes = self._list_nodes(seal, shares, is_stopped, verdict is not None, leader, frozenset(drained))
        return Overview(
            run_id=reading.run_id,
            job_key=keys.root.rpartition("/")[2],
            phase=_derive_phase(seal, is_stopped, verdict, nodes),
            mesh=spec.mesh if spec else "",
            limits=spec.limits if spec else "",
            round=seal.round if seal else 0,
            world_size=seal.world_size if seal else 0,
            shape=next((share.shape for share, _ in shares.values()), ()),
            coordinator=seal.coordinator if seal else "",
            reason=seal.reason if seal else "",
            stop_reason=stop.reason if is_stopped and stop else "",
            leader=leader.node_name if leader else "",
            restart_count=seal.restart_count if seal else 0,
            short_rounds=seal.short_rounds if seal else 0,
            nodes=nodes,
            drained=drained,
            requests=tuple(map(_describe_request, self._read_records(Command, keys.commands).values())),
            history=tuple(sorted(self._read_records(RoundHistory, keys.history).values(), key=lambda past: past.round)),
            verdict=verdict,
            faults=tuple(self._faults.values()),
        )

    # --- nodes ---

    def _list_nodes(
        self,
        seal: Seal | None,
        shares: Mapping[str, tuple[NodeAssignment, str]],
        is_stopped: bool,
        has_ended: bool,
        leader: LeaderRecord | None,
        drained: frozenset[str],
    ) -> tuple[NodeState, ...]:
        members = self._read_records(Member, self._keys.members)
        statuses = self._read_records(Status, self._keys.statuses)
        spares = self._read_record(Spares, self._keys.spares)
        why_spare = spares.why if spares else {}
        found = []
        for member_id in sorted({*members, *shares}):
            member, status = members.get(member_id), statuses.get(member_id)
            if status is not None and (seal is None or status.plan_token != seal.plan_token):
                status = None if not status.leaving else Status(round=status.round, leaving=status.leaving)
            share, former_name = shares.get(member_id, (None, ""))
            name = member.node_name if member else former_name or member_id
            if share is not None:
                state, why = _derive_active_state(member is not None, status, is_stopped)
                state = "gone" if state == "lost" and has_ended else state
            else:
                state, why = _derive_idle_state(
                    seal, status, bool({name, member_id} & drained), why_spare.get(member_id, "")
                )
            described = self._read_description(member_id, member) if member else None
            found.append(
                NodeState(
                    name=name,
                    member_id=member_id,
                    state=state,
                    ranks=share.ranks if share else (),
                    slot_count=described.slot_count if described else 0,
                    path=tuple(domain for _, domain in described.locality) if described else (),
                    locality=described.locality if described else (),
                    address=described.address if described else "",
                    why=why,
                    silent_s=self._compute_silent_s(member_id, member),
                    is_leader=leader is not None and leader.member_id == member_id,
                )
            )
        return tuple(sorted(found, key=lambda node: (not node.ranks, node.ranks, node.name, node.member_id)))

    def _compute_silent_s(self, member_id: str, member: Member | None) -> float | None:
        if member is None or not member.lease_ttl_s:
            return None
        left_s = self._snapshot.lease_left_s.get(self._items[self._keys.make_member_key(member_id)].lease)
        return None if left_s is None else max(0.0, member.lease_ttl_s - left_s)

    def _read_shares(self, seal: Seal | None) -> dict[str, tuple[NodeAssignment, str]]:
        """Return the ranks of the sealed round: member id -> share, and name of the node."""
        if seal is None:
            return {}
        prefix = self._keys.make_assignments_prefix(seal.round, seal.plan_token)
        shares = {}
        for member_id, assignment in self._read_records(Assignment, prefix).items():
            key = prefix + member_id
            try:
                shares[member_id] = (decode_assignment(assignment.content), assignment.node.partition(" ")[0])
            except RecordError as error:
                self._faults.setdefault(key, f"{key}: {error}")
        return shares

    def _read_description(self, member_id: str, member: Member) -> Description | None:
        try:
            return decode_description(member.description)
        except RecordError as error:
            key = self._keys.make_member_key(member_id)
            self._faults.setdefault(key, f"{key}: {error}")
            return None

    # --- records ---

    def _read_record(self, kind: type[Record], key: str) -> Record | None:
        item = self._items.get(key)
        if item is None:
            return None
        try:
            return decode(kind, item.value, key, self._secret)
        except RecordError as error:
            self._faults.setdefault(key, str(error))
            return None

    def _read_records(self, kind: type[Record], prefix: str) -> dict[str, Record]:
        """Return every readable record below a prefix, by the rest of its key, in the order of the keys."""
        found = {}
        for key in sorted(self._items):
            if key.startswith(prefix) and (record := self._read_record(kind, key)) is not None:
                found[key[len(prefix) :]] = record
        return found


def _derive_phase(seal: Seal | None, is_stopped: bool, verdict: Verdict | None, nodes: tuple[NodeState, ...]) -> str:
    if verdict is not None:
        return ENDED
    if seal is None:
        return FORMING
    if not is_stopped:
        return RUNNING
    return STOPPING if any(node.state == "stopping" for node in nodes) else WAITING


def _derive_active_state(is_member: bool, status: Status | None, is_stopped: bool) -> tuple[str, str]:
    """Derive the state of a node with ranks, and the reason."""
    if status is not None and status.outcome == "succeeded":
        return "succeeded", ""
    if status is not None and status.leaving:
        return "leaving", status.leaving
    if not is_member:
        return "lost", ""
    if status is not None and status.outcome == "failed":
        rank = f"rank {status.rank}, " if status.rank >= 0 else ""
        return "failed", f"{rank}exit code {status.exit_code}"
    if status is not None and status.is_stopped:
        return "stopped", ""
    return ("stopping", "") if is_stopped else ("running", "")


def _derive_idle_state(seal: Seal | None, status: Status | None, is_drained: bool, why_spare: str) -> tuple[str, str]:
    """Derive the state of a member without ranks, and the reason."""
    if status is not None and status.leaving:
        return "leaving", status.leaving
    if is_drained:
        return "drained", ""
    if seal is None:
        return "waiting", ""
    return ("quarantined" if "quarantined for" in why_spare else "spare"), why_spare


def _describe_request(command: Command) -> str:
    target = f" {command.target}" if command.target else ""
    return f"{command.kind}{target}" + (f", asked for by {command.by}" if command.by else "")
