"""Derives a job's state from its keys: the members, the state of each, and the history.

The store is read from outside while the job continues, and any client may have written to it. So nothing here relies on
two keys being consistent: a record that cannot be read is named among the `faults`, and the rest is shown without it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from launcher.logs.reports.report import WorkerFailure, parse_failure
from launcher.meshctl.job_store import JobSnapshot, JobStore
from launcher.model.errors import describe
from launcher.model.mesh import DEFAULT_MESH
from launcher.placement.adapter.description import Description, NodeAssignment, decode_assignment, decode_description
from rendezvous.errors import RecordError
from rendezvous.reasons import Reason
from rendezvous.records import (
    Assignment,
    Command,
    Drain,
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
from rendezvous.settings import DEFAULTS

if TYPE_CHECKING:
    from rendezvous.records import AnyRecord

_Content = TypeVar("_Content")
_NOT_DESCRIBED = Description(slot_count=0, address="", role="")
LOST_CAUSES = ("loss", "isolation")
FORMING, RUNNING, STOPPING, WAITING, ENDED = "forming", "running", "stopping", "waiting", "ended"


class NodeState(Struct, frozen=True, kw_only=True):
    """One member, or a former one whose ranks have not been reassigned yet."""

    name: str
    member_id: str
    state: str
    """"waiting" (for a first round), "running", "succeeded", "failed", "stopping", "stopped", "leaving", "spare",
    "quarantined", "drained" or "lost"; "gone" when the job has ended.
    """
    ranks: tuple[int, ...] = ()
    slot_count: int = 0
    path: tuple[str, ...] = ()
    """Its place in the network, outermost first."""
    locality: tuple[tuple[str, str], ...] = ()
    """The same, as pairs of level and domain."""
    address: str = ""
    why: str = ""
    """For people; empty if the state explains itself."""
    silent_s: float | None = None
    """Since its last keep-alive, None if it has no lease or that is unknown."""
    is_leader: bool = False


class Overview(Struct, frozen=True, kw_only=True):
    """The job as a whole."""

    run_id: str
    job_key: str
    phase: str
    """"forming" before the first round, then "running", "stopping", "waiting" or "ended"."""
    at: float = 0.0
    """When this was read, in seconds since 1970."""
    mesh: str = ""
    options: Mapping[str, str] = {}
    round: int = 0
    """0: none yet."""
    world_size: int = 0
    shape: tuple[int, ...] = ()
    """Sizes of the axes of `mesh`."""
    coordinator: str = ""
    reason: Reason | None = None
    """Why the round was sealed."""
    stop_reason: Reason | None = None
    """Why it is being or was stopped."""
    leader: str = ""
    restart_count: int = 0
    max_restarts: int = 0
    """As agreed."""
    short_rounds: int = 0
    nodes: tuple[NodeState, ...] = ()
    """Sorted by first rank; nodes without ranks last, by name."""
    lost: tuple[tuple[str, int], ...] = ()
    """Nodes that have not come back, each with the round in which it was lost."""
    silent: tuple[str, ...] = ()
    """Nodes whose agents have not answered."""
    hang: tuple[str, ...] = ()
    """What was found of the round that runs, a sentence each, if it makes no progress."""
    drained: tuple[str, ...] = ()
    """Nodes that may not come back."""
    requests: tuple[str, ...] = ()
    """Requests of people that are not carried out yet."""
    history: tuple[RoundHistory, ...] = ()
    verdict: Verdict | None = None
    failure: WorkerFailure | None = None
    """The first of the job, once it has failed; before, of the last round in which one was reported, as long as the
    store has it.
    """
    faults: tuple[str, ...] = ()
    """Keys that cannot be read, each with the reason."""

    @property
    def active(self) -> tuple[NodeState, ...]:
        """Nodes with ranks."""
        return tuple(node for node in self.nodes if node.ranks)


def read_overview(jobs: JobStore, run_id: str) -> Overview:
    """Read the run's current job and build its overview. Raises UsageError if there is none, StoreError."""
    return build_overview(jobs.read_job(run_id), jobs.secret)


def build_overview(snapshot: JobSnapshot, secret: bytes = b"") -> Overview:
    """Build the overview from these keys; with a secret, records that are not signed by it are faults."""
    return _OverviewBuilder(snapshot, secret).build()


class _OverviewBuilder:
    """The records of one reading, each decoded once."""

    def __init__(self, snapshot: JobSnapshot, secret: bytes) -> None:
        self._snapshot = snapshot
        self._secret = secret
        self._items = {item.key: item for item in snapshot.items}
        self._faults: dict[str, str] = {}
        keys = self._keys = snapshot.keys
        self._spec, self._seal = self._read_record(Spec, keys.spec), self._read_record(Seal, keys.round)
        self._stop, self._verdict = self._read_record(Stop, keys.stop), self._read_record(Verdict, keys.verdict)
        self._leader = self._read_record(LeaderRecord, keys.leader)
        self._drained = tuple(sorted(drain.node_name for drain in self._read_records(Drain, keys.drains).values()))
        if self._stop and not (self._seal and self._stop.round >= self._seal.round):
            self._stop = None  # it is of an earlier round

    def build(self) -> Overview:
        keys, sealed = self._keys, ("round", "world_size", "coordinator", "reason", "restart_count", "short_rounds")
        assignments = self._read_assignments()
        nodes = self._list_nodes(assignments)
        history = tuple(sorted(self._read_records(RoundHistory, keys.history).values(), key=lambda one: one.round))
        present = {node.name for node in nodes if node.state != "lost"}
        requests = map(_describe_request, self._read_records(Command, keys.commands).values())
        return Overview(
            run_id=self._snapshot.run_id,
            job_key=keys.name,
            at=self._snapshot.read_at,
            max_restarts=read_max_restarts(self._spec.options) if self._spec else 0,
            lost=find_lost_nodes(history, present) if self._verdict is None else (),
            phase=self._derive_phase(nodes),
            mesh=self._spec.mesh if self._spec and self._spec.mesh != str(DEFAULT_MESH) else "",
            options=self._spec.options if self._spec else {},
            shape=next((assignment.shape for assignment, _ in assignments.values()), ()),
            stop_reason=self._stop.reason if self._stop else None,
            leader=self._leader.node_name if self._leader else "",
            nodes=nodes,
            drained=self._drained,
            requests=tuple(requests),
            history=history,
            verdict=self._verdict,
            failure=self._find_failure(),
            hang=self._find_hang(),
            faults=tuple(self._faults.values()),
            **({name: getattr(self._seal, name) for name in sealed} if self._seal else {}),
        )

    def _find_failure(self) -> WorkerFailure | None:
        if self._verdict is not None:
            return parse_failure(self._verdict.failure)
        prefix = self._keys.statuses
        failed = [
            (-status.round, status.failed_revision or self._items[prefix + member_id].mod_revision, failure)
            for member_id, status in self._read_records(Status, prefix).items()
            if status.failure and (failure := parse_failure(status.failure)) is not None
        ]
        return min(failed, key=lambda one: one[:2])[2] if failed else None

    def _find_hang(self) -> tuple[str, ...]:
        seal = self._seal
        if seal is None or self._verdict is not None or self._stop is not None:
            return ()
        statuses = self._read_records(Status, self._keys.statuses).values()
        return next((one.finding for one in statuses if one.finding and one.plan_token == seal.plan_token), ())

    def _derive_phase(self, nodes: tuple[NodeState, ...]) -> str:
        if self._verdict is not None:
            return ENDED
        if self._seal is None:
            return FORMING
        if self._stop is None:
            return RUNNING
        return STOPPING if any(node.state == "stopping" for node in nodes) else WAITING

    # --- nodes ---

    def _list_nodes(self, assignments: Mapping[str, tuple[NodeAssignment, str]]) -> tuple[NodeState, ...]:
        members = self._read_records(Member, self._keys.members)
        statuses = self._read_records(Status, self._keys.statuses)
        spares = self._read_record(Spares, self._keys.spares)
        why_spare = spares.why if spares else {}
        found = []
        for member_id in sorted({*members, *assignments}):
            member, status = members.get(member_id), statuses.get(member_id)
            if status is not None and (self._seal is None or status.plan_token != self._seal.plan_token):
                status = Status(round=status.round, leaving=status.leaving) if status.leaving else None
            assignment, former_name = assignments.get(member_id, (None, ""))
            name = member.node_name if member else former_name or member_id
            if assignment is not None:
                state, why = self._derive_active_state(member is not None, status)
            else:
                is_drained = name in self._drained or member_id in self._drained
                state, why = self._derive_idle_state(status, is_drained, why_spare.get(member_id))
            key = self._keys.make_member_key(member_id)
            described = self._decode_text(decode_description, member.description, key) if member else None
            described = described or _NOT_DESCRIBED
            found.append(
                NodeState(
                    name=name,
                    member_id=member_id,
                    state=state,
                    ranks=assignment.ranks if assignment else (),
                    slot_count=described.slot_count,
                    path=tuple(domain for _, domain in described.locality),
                    locality=described.locality,
                    address=described.address,
                    why=why,
                    silent_s=self._compute_silent_s(key, member),
                    is_leader=self._leader is not None and self._leader.member_id == member_id,
                )
            )
        return tuple(sorted(found, key=lambda node: (not node.ranks, node.ranks, node.name, node.member_id)))

    def _derive_active_state(self, is_member: bool, status: Status | None) -> tuple[str, str]:
        """Derive the state of a node with ranks, and the reason."""
        if status is not None and status.outcome == "succeeded":
            return "succeeded", ""
        if status is not None and status.leaving is not None:
            return "leaving", describe(status.leaving)
        if not is_member:
            return "gone" if self._verdict is not None else "lost", ""
        if status is not None and status.outcome == "failed":
            rank = f"rank {status.rank}, " if status.rank >= 0 else ""
            return "failed", f"{rank}exit code {status.exit_code}"
        if status is not None and status.is_stopped:
            return "stopped", ""
        return "running" if self._stop is None else "stopping", ""

    def _derive_idle_state(self, status: Status | None, is_drained: bool, why_spare: Reason | None) -> tuple[str, str]:
        """Derive the state of a member without ranks, and the reason."""
        if status is not None and status.leaving is not None:
            return "leaving", describe(status.leaving)
        if is_drained:
            return "drained", ""
        if self._seal is None:
            return "waiting", ""
        if why_spare is None:
            return "spare", ""
        return "quarantined" if why_spare.kind == "quarantined" else "spare", describe(why_spare)

    def _compute_silent_s(self, key: str, member: Member | None) -> float | None:
        if member is None or not member.lease_ttl_s:
            return None
        left_s = self._snapshot.lease_left_s.get(self._items[key].lease)
        return None if left_s is None else max(0.0, member.lease_ttl_s - left_s)

    def _read_assignments(self) -> dict[str, tuple[NodeAssignment, str]]:
        """Return what the nodes of the sealed round got: member id -> assignment, and the node's name."""
        if self._seal is None:
            return {}
        prefix = self._keys.make_assignments_prefix(self._seal.round, self._seal.plan_token)
        found = {}
        for member_id, record in self._read_records(Assignment, prefix).items():
            assignment = self._decode_text(decode_assignment, record.content, prefix + member_id)
            if assignment is not None:
                found[member_id] = (assignment, record.node.partition(" ")[0])
        return found

    # --- records ---

    def _decode_text(self, decode: Callable[[str], _Content], text: str, key: str) -> _Content | None:
        try:
            return decode(text)
        except RecordError as error:
            self._faults.setdefault(key, f"{key}: {error}")
            return None

    def _read_record(self, kind: type[AnyRecord], key: str) -> AnyRecord | None:
        item = self._items.get(key)
        try:
            return decode(kind, item.value, key, self._secret) if item is not None else None
        except RecordError as error:
            self._faults.setdefault(key, str(error))
            return None

    def _read_records(self, kind: type[AnyRecord], prefix: str) -> dict[str, AnyRecord]:
        """Return every readable record below a prefix, by the rest of its key, in the order of the keys."""
        found = {}
        for key in sorted(self._items):
            if key.startswith(prefix) and (record := self._read_record(kind, key)) is not None:
                found[key.removeprefix(prefix)] = record
        return found


def find_lost_nodes(history: Iterable[RoundHistory], present: Container[str]) -> tuple[tuple[str, int], ...]:
    """Return the nodes that were lost in these rounds and are not among those present: (name, round), by name."""
    lost = {name: past.round for past in history if past.cause in LOST_CAUSES for name in past.nodes}
    return tuple((name, lost[name]) for name in sorted(lost) if name not in present)


def read_max_restarts(options: Mapping[str, str]) -> int:
    """Return --max-restarts of the options that all agents agreed on; defaults are left out there."""
    text = options.get("--max-restarts", "")
    return int(text) if text.isdecimal() else DEFAULTS.max_restarts


def _describe_request(command: Command) -> str:
    target = f" {command.target}" if command.target else ""
    return f"{command.kind}{target}" + (f", asked for by {command.by}" if command.by else "")
