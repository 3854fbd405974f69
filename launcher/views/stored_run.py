"""Makes a `RunView` of a job's keys: as a leader follows them, or as they were read from the store.

The store is read from outside while the job continues, and any client may have written to it. So nothing here relies on
two keys being consistent: a record that cannot be read is named among the `faults`, and the rest is shown without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec import to_builtins
from msgspec.structs import replace

from launcher.logs.reports.report import WorkerFailure, parse_failure
from launcher.model.mesh import DEFAULT_MESH
from launcher.placement.adapter.description import Description, NodeAssignment, decode_assignment, decode_description
from launcher.views.goodput import TimeSpent, compute_goodput
from launcher.views.run_view import (
    ENDED,
    FORMING,
    RUNNING,
    STOPPING,
    WAITING,
    Goodput,
    NodeView,
    Phase,
    RankView,
    RoundView,
    RunView,
    find_lost_nodes,
    sort_nodes,
)
from rendezvous import codec
from rendezvous.errors import RecordError
from rendezvous.reasons import Reason
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
from rendezvous.settings import DEFAULTS
from rendezvous.stores.contract import KeyValue

if TYPE_CHECKING:
    from rendezvous.records import AnyRecord

_Content = TypeVar("_Content")
_NO_STATUS = Status(round=0)
_NOT_DESCRIBED = Description(slot_count=0, address="", role="")


class JobRecords(NamedTuple):
    """The keys of one job with their values. With a secret, records that are not signed by it are faults."""

    run_id: str
    keys: Keys
    items: tuple[KeyValue, ...]
    secret: bytes = b""
    lease_left_s: Mapping[int, float] = {}
    """Lease of a member to the seconds that are left of it."""
    read_at: float = 0.0
    """Seconds since 1970, 0 if unknown."""
    member_names: Mapping[str, str] | None = None
    """By member id, where a leader says who is there: then only those without ranks are listed, since the others answer
    for themselves.
    """


def build_run(job: JobRecords) -> RunView:
    """Build the view of a run from these keys."""
    return _RunBuilder(job).build()


class _RunBuilder:
    """The records of one reading, each decoded once."""

    def __init__(self, job: JobRecords) -> None:
        self._job = job
        self._items = {item.key: item for item in job.items}
        self._faults: dict[str, str] = {}
        keys = self._keys = job.keys
        self._spec, self._seal = self._read_record(Spec, keys.spec), self._read_record(Seal, keys.round)
        self._stop, self._verdict = self._read_record(Stop, keys.stop), self._read_record(Verdict, keys.verdict)
        self._leader = self._read_record(LeaderRecord, keys.leader)
        self._drained = tuple(sorted(drain.node_name for drain in self._read_records(Drain, keys.drains).values()))
        self._statuses = self._read_records(Status, keys.statuses)
        if self._stop and not (self._seal and self._stop.round >= self._seal.round):
            self._stop = None  # it is of an earlier round

    def build(self) -> RunView:
        keys, sealed = self._keys, ("round", "world_size", "coordinator", "reason", "restart_count", "short_rounds")
        assignments = self._read_assignments()
        nodes = self._list_nodes(assignments)
        rounds = self._list_rounds()
        present = {node.name for node in nodes if node.state != "lost"}
        commands = self._read_records(Command, keys.commands).values()
        names = self._job.member_names
        return RunView(
            run_id=self._job.run_id,
            job=keys.name,
            script=self._spec.script if self._spec else "",
            at=self._job.read_at,
            max_restarts=read_max_restarts(self._spec.options) if self._spec else 0,
            lost=find_lost_nodes(rounds, present) if self._verdict is None else (),
            phase=self._derive_phase(nodes),
            mesh=self._spec.mesh if self._spec and self._spec.mesh != str(DEFAULT_MESH) else "",
            options=self._spec.options if self._spec else {},
            shape=next((assignment.shape for assignment, _ in assignments.values()), ()),
            stop_reason=self._stop.reason if self._stop else None,
            leader=self._leader.node_name if self._leader else "",
            member_count=len(nodes) if names is None else len(names),
            nodes=nodes,
            drained=self._drained,
            requests=tuple(_describe_request(one) for one in commands if one.kind != "ask"),
            rounds=rounds,
            goodput=self._compute_goodput(rounds),
            verdict=replace(self._verdict, failure="", others=()) if self._verdict else None,
            failure=self._find_failure(),
            faults=tuple(self._faults.values()),
            **({name: getattr(self._seal, name) for name in sealed} if self._seal else {}),
        )

    def _list_rounds(self) -> tuple[RoundView, ...]:
        past = sorted(self._read_records(RoundHistory, self._keys.history).values(), key=lambda one: one.round)
        rounds = [codec.convert(RoundView, to_builtins(one), "a round") for one in past]
        if rounds and self._seal and rounds[-1].round == self._seal.round:
            rounds[-1].hang = self._find_hang()
        return tuple(rounds)

    def _compute_goodput(self, rounds: tuple[RoundView, ...]) -> Goodput | None:
        if self._verdict is None or not rounds:  # until when it trains is told by whoever leads
            return None
        return compute_goodput(rounds, TimeSpent(until=rounds[0].began_at), self._verdict.ended_at)

    def _find_failure(self) -> WorkerFailure | None:
        if self._verdict is not None:
            return parse_failure(self._verdict.failure)
        prefix = self._keys.statuses
        failed = [
            (-status.round, status.failed_revision or self._items[prefix + member_id].mod_revision, failure)
            for member_id, status in self._statuses.items()
            if status.failure and (failure := parse_failure(status.failure)) is not None
        ]
        return min(failed, key=lambda one: one[:2])[2] if failed else None

    def _find_hang(self) -> tuple[str, ...]:
        seal = self._seal
        if seal is None or self._verdict is not None or self._stop is not None:
            return ()
        statuses = self._statuses.values()
        return next((one.finding for one in statuses if one.finding and one.plan_token == seal.plan_token), ())

    def _derive_phase(self, nodes: tuple[NodeView, ...]) -> Phase:
        if self._verdict is not None:
            return ENDED
        if self._seal is None:
            return FORMING
        if self._stop is None:
            return RUNNING
        return STOPPING if any(node.state == "stopping" for node in nodes) else WAITING

    def _list_nodes(self, assignments: Mapping[str, tuple[NodeAssignment, str]]) -> tuple[NodeView, ...]:
        names = self._job.member_names
        members = self._read_records(Member, self._keys.members) if names is None else {}
        spares = self._read_record(Spares, self._keys.spares)
        why_spare = spares.why if spares else {}
        chosen = {*members, *assignments} if names is None else names.keys() & set(spares.member_ids if spares else ())
        found = []
        for member_id in sorted(chosen):
            member, status = members.get(member_id), self._statuses.get(member_id, _NO_STATUS)
            if self._seal is None or status.plan_token != self._seal.plan_token:  # of another round
                status = Status(round=status.round, leaving=status.leaving)
            assignment, former_name = assignments.get(member_id, (None, ""))
            name = member.node_name if member else former_name or (names or {}).get(member_id, member_id)
            ranks = assignment.ranks if assignment is not None else ()
            if assignment is not None:
                state, why = self._derive_active_state(status, is_member=member is not None)
            elif status.leaving is not None:
                state, why = "leaving", status.leaving
            elif name in self._drained or member_id in self._drained:
                state, why = "drained", None
            elif self._seal is None:
                state, why = "waiting", None
            else:
                why = why_spare.get(member_id)
                state = "quarantined" if why is not None and why.kind == "quarantined" else "spare"
            of_rank = "succeeded" if state == "succeeded" else "unknown"
            key = self._keys.make_member_key(member_id)
            described = self._decode_text(decode_description, member.description, key) if member else None
            described = described or _NOT_DESCRIBED
            found.append(
                NodeView(
                    name=name,
                    member_id=member_id,
                    state=state,
                    why=why,
                    is_leader=self._leader is not None and self._leader.member_id == member_id,
                    ranks=tuple(RankView(rank=rank, local_rank=at, state=of_rank) for at, rank in enumerate(ranks)),
                    slot_count=described.slot_count,
                    locality=described.locality,
                    silent_s=self._compute_silent_s(key, member),
                    round=self._seal.round if self._seal is not None and ranks else 0,
                )
            )
        return sort_nodes(found)

    def _derive_active_state(self, status: Status, *, is_member: bool) -> tuple[str, Reason | None]:
        """Derive the state of a node with ranks, and the reason."""
        if status.outcome == "succeeded":
            return "succeeded", None
        if status.leaving is not None:
            return "leaving", status.leaving
        if not is_member:
            return "gone" if self._verdict is not None else "lost", None
        if status.outcome == "failed":
            if status.rank < 0:
                return "failed", Reason.of("logs/exit-code", exit_code=status.exit_code)
            return "failed", Reason.of("views/failed", rank=status.rank, exit_code=status.exit_code)
        if status.is_stopped:
            return "stopped", None
        return "running" if self._stop is None else "stopping", None

    def _compute_silent_s(self, key: str, member: Member | None) -> float | None:
        if member is None or not member.lease_ttl_s:
            return None
        left_s = self._job.lease_left_s.get(self._items[key].lease)
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
            return decode(kind, item.value, key, self._job.secret) if item is not None else None
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


def read_max_restarts(options: Mapping[str, str]) -> int:
    """Return --max-restarts of the options that all agents agreed on; defaults are left out there."""
    text = options.get("--max-restarts", "")
    return int(text) if text.isdecimal() else DEFAULTS.max_restarts


def _describe_request(command: Command) -> str:
    target = f" {command.target}" if command.target else ""
    return f"{command.kind}{target}" + (f", asked for by {command.by}" if command.by else "")
