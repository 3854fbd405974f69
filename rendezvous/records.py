"""The records in the store: small JSON objects, each with a version, never pickled.

A record read from the store is validated field by field, because another version or another program may have written
it. Fields that this version does not know survive a rewrite; another record version is refused with a sentence, because
an upgrade is a new job. Times are never stored: clocks of two machines are not compared, so a time that one leader
hands to the next is stored as an age.

`/<prefix>/<run id>/current` names the job key, a random word; everything else lies below it, so that a job started
again under the same run id finds nothing that the last one left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from rendezvous.errors import RecordError
from rendezvous.values import MISSING, Field, NamedTuple, dataclass, field, fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

RECORD_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What every agent of a job must agree on before it may join. `digest` covers the command and its arguments."""

    mesh: str
    limits: str
    digest: str
    has_secret: bool = False
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One agent, as long as its lease lives. `description` is the launcher's text and opaque here.

    `lease_ttl_s` lets people see how long it has been silent, from the time left of its lease; 0 is unknown or no end.
    """

    member_id: str
    node_name: str
    boot_id: str
    description: str
    presence_address: str = ""
    worker_port: int = 0
    lease_ttl_s: float = 0.0
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LeaderRecord:
    """The leader, and where the others keep a connection to it. It lies on the leader's member lease."""

    member_id: str
    node_name: str
    presence_address: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Spares:
    """The members of the roster without ranks, and why. Many have the same reason, which is stored once.

    `reason_places`: for each member, in the same order, the index of its reason in `reasons`.
    """

    member_ids: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    reason_places: tuple[int, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def why(self) -> dict[str, str]:
        """Member id -> its reason, as far as one is given."""
        pairs = zip(self.member_ids, self.reason_places, strict=False)
        return {member_id: self.reasons[index] for member_id, index in pairs if 0 <= index < len(self.reasons)}


@dataclass(frozen=True, kw_only=True)
class Drain:
    """This node shall leave, and not rejoin before the key is deleted."""

    node_name: str
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A person's request to the leader. `kind`: "stop", "drain", "undrain" or "takeover".

    `target` is a node's name or a member id; `by` names the requester, for people. The requester writes the key with an
    empty `answer` and watches it: the leader deletes it in the transaction that does what was asked; if it refuses, it
    writes the record back with the reason as `answer`, and does nothing. The requester then deletes the key; the leader
    deletes a remaining one with a later seal.
    """

    kind: str
    target: str = ""
    by: str = ""
    answer: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoundHistory:
    """The history of a round: why it was sealed, and once it has ended, the reason and how long it ran."""

    round: int
    world_size: int
    node_count: int
    coordinator: str
    reason: str
    ended: str = ""
    ran_s: float = 0.0
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Seal:
    """The write that fixes a round, and the budget as it was then.

    `restart_count`: restarts charged to the job so far. `charge_ages_s`: how long ago each was charged, oldest first.
    `short_rounds`: rounds in a row that ended before `min_round_time_s`. `provisional_round`: a round whose charge may
    still turn out to be the loss of a node, `provisional_age_s` after its first failure. `port_taken_rounds`: rounds in
    a row that ended uncharged because another process listened on the worker port. `losses` and `first_failures`,
    oldest first, are the strikes of quarantines: a node (name and boot id) and how long ago it was lost; a node, a rank
    and how long ago that rank failed there before any other.
    """

    round: int
    plan_token: str
    world_size: int
    coordinator: str
    reason: str = ""
    successors: tuple[str, ...] = ()
    restart_count: int = 0
    charge_ages_s: tuple[float, ...] = ()
    short_rounds: int = 0
    provisional_round: int = 0
    provisional_age_s: float = 0.0
    port_taken_rounds: int = 0
    losses: tuple[tuple[str, float], ...] = ()
    first_failures: tuple[tuple[str, int, float], ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The end of a round for all nodes. `mode`: "kill" after a failure or loss, "grace" when there is time to save.

    `ran_s`: how long the round had run, for a later leader that did not see it begin.
    """

    round: int
    reason: str
    mode: str
    ran_s: float = 0.0
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What one member runs in one round; `content` is the planner's text and opaque here.

    `node`: the member's node, by name and boot id, for a leader that starts after the member is gone.
    """

    round: int
    plan_token: str
    content: str
    node: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Status:
    """The state of a round on one member.

    `outcome` is "", "succeeded" or "failed" and final once set. `is_stopped`: no process of the round is left on this
    node. `failed_revision`: the store's revision when the failure was first reported, 0 in that very write; it orders
    failures, whatever is added later. `failure` is the launcher's text. `is_peer_loss`: the failure looks like a lost
    connection to a peer. `leaving` is "" or why this member is about to leave, `leaving_exit_code` its exit code.
    `rank`: which failed. `is_port_taken`: the failure is that another process listens on the worker port.
    `saved_count`: checkpoints that the workers of this round reported. `is_final`: no restart shall follow this
    failure.
    """

    round: int
    plan_token: str = ""
    outcome: str = ""
    is_stopped: bool = False
    failed_revision: int = 0
    failure: str = ""
    exit_code: int = 0
    is_peer_loss: bool = False
    leaving: str = ""
    leaving_exit_code: int = 0
    worker_port: int = 0
    rank: int = -1
    is_port_taken: bool = False
    saved_count: int = 0
    is_final: bool = False
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How the job ended, for all members. `kind`: "success", "failure" or "stopped"; `failure`: the first one's text.

    `is_first_sure`: no other node's failure was seen so close to it that it could have been the first; `others`: the
    texts of some further failures, in the order in which they were written.
    """

    kind: str
    exit_code: int
    round: int
    reason: str
    failure: str = ""
    is_first_sure: bool = True
    others: tuple[str, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)


AnyRecord = (
    Spec | Member | LeaderRecord | Spares | Drain | Command | RoundHistory | Seal | Stop | Assignment | Status | Verdict
)
if TYPE_CHECKING:
    Record = TypeVar(
        "Record",
        Spec,
        Member,
        LeaderRecord,
        Spares,
        Drain,
        Command,
        RoundHistory,
        Seal,
        Stop,
        Assignment,
        Status,
        Verdict,
    )


def _is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def encode(record: AnyRecord, key: str = "", secret: bytes = b"") -> bytes:
    """Encode the record as it is stored under `key`. With a secret it ends with an HMAC."""
    known = {item.name: getattr(record, item.name) for item in fields(record) if item.name != "unknown"}
    body = json.dumps({**record.unknown, **known, "version": RECORD_VERSION}, separators=(",", ":")).encode()
    return _sign(body, key, secret) if secret else body


def _sign(body: bytes, key: str, secret: bytes) -> bytes:
    """Append an HMAC, which covers the key too, so that a record cannot be moved to another key."""
    import hmac  # 3 ms that only jobs with a secret pay

    code = hmac.new(secret, key.encode() + b"\n" + body, "sha256").hexdigest()
    return body[:-1] + f',"{_CODE}":"{code}"}}'.encode()


_CODE = "hmac"
_CODE_LENGTH = len(f',"{_CODE}":""}}') + 64
RECORD_BYTES_MAX = 1 << 20


def _freeze(value: object) -> object:
    """Return lists as tuples, in nested lists too."""
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def decode(kind: type[Record], value: bytes, key: str, secret: bytes = b"") -> Record:
    """Decode a record of `kind` that was stored under `key`. Raises RecordError with the key and the problem."""
    if len(value) > RECORD_BYTES_MAX:
        raise RecordError(f"the value of {key} has {len(value)} bytes, more than any record of meshrun")
    if secret:
        import hmac

        body = value[:-_CODE_LENGTH] + b"}"
        if not hmac.compare_digest(value, _sign(body, key, secret)):
            raise RecordError(f"the value of {key} was not written by an agent that knows the job's secret")
    try:
        content = json.loads(value)
    except (ValueError, RecursionError):
        raise RecordError(f"the value of {key} is not JSON, so it was not written by meshrun") from None
    if not isinstance(content, dict):
        raise RecordError(f"the value of {key} is not a record")
    content.pop(_CODE, None)
    version = content.pop("version", None)
    if version != RECORD_VERSION:
        raise RecordError(
            f"{key} has record version {version!r:.40}, this agent reads version {RECORD_VERSION}",
            "run the same meshrun version on every node, or start the job under another run id",
        )
    known: dict[str, Any] = {}
    for item in fields(kind):
        if item.name == "unknown" or item.name not in content:
            continue
        content_value = content.pop(item.name)
        if not has_type(str(item.type), content_value):
            raise RecordError(f"{key}: {item.name} is {content_value!r:.100}, which is no {item.type}")
        if not is_possible(kind.__name__, item.name, content_value):
            raise RecordError(f"{key}: {item.name} is {content_value!r:.100}, which cannot be")
        known[item.name] = _freeze(content_value)
    missing = [item.name for item in fields(kind) if _is_required(item) and item.name not in known]
    if missing:
        raise RecordError(f"{key} lacks {', '.join(missing)}")
    return kind(**known, unknown=content)


# --- the allowed values of fields: types, ranges and words, named as in the annotations ---

ROWS_MAX = 4096


def _is_number(value: object) -> bool:
    """Return whether this is a finite time in seconds: JSON can contain infinity, NaN, and 400 digits."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2.0**53


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _make_rows_check(*checks: Callable[[object], bool]) -> Callable[[object], bool]:
    """Make the check of a short table whose columns pass `checks`."""

    def is_row(row: object) -> bool:
        return isinstance(row, list) and len(row) == len(checks) and all(map(_holds, checks, row))

    return lambda value: isinstance(value, list) and len(value) <= ROWS_MAX and all(map(is_row, value))


def _holds(check: Callable[[object], bool], value: object) -> bool:
    return check(value)


# Annotations are strings here (from __future__ import annotations), so they can name the check of a field.
_TYPES: Mapping[str, Callable[[object], bool]] = {
    "str": _is_text,
    "int": _is_int,
    "bool": lambda value: isinstance(value, bool),
    "float": _is_number,
    "tuple[str, ...]": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "tuple[int, ...]": lambda value: isinstance(value, list) and all(map(_is_int, value)),
    "tuple[float, ...]": lambda value: isinstance(value, list) and all(_is_number(item) for item in value),
    "tuple[tuple[str, float], ...]": _make_rows_check(_is_text, _is_number),
    "tuple[tuple[str, int, float], ...]": _make_rows_check(_is_text, _is_int, _is_number),
}


_COUNT = range(2**53)
RANGES: Mapping[str, range] = {
    "round": _COUNT,
    "world_size": _COUNT,
    "node_count": _COUNT,
    "restart_count": _COUNT,
    "short_rounds": _COUNT,
    "provisional_round": _COUNT,
    "port_taken_rounds": _COUNT,
    "failed_revision": _COUNT,
    "saved_count": _COUNT,
    "rank": range(-1, 2**53),
    "worker_port": range(2**16),
    "exit_code": range(-255, 256),
    "leaving_exit_code": range(-255, 256),
}
ALLOWED_VALUES: Mapping[str, tuple[str, ...]] = {
    "Stop.mode": ("kill", "grace"),
    "Status.outcome": ("", "succeeded", "failed"),
    "Verdict.kind": ("success", "failure", "stopped"),
}


def has_type(annotation: str, value: object) -> bool:
    """Return whether a value from JSON is of the type that a field is annotated with."""
    return _TYPES[annotation](value)


def is_possible(kind: str, name: str, value: object) -> bool:
    """Return whether a value of the right type is allowed in this field of this kind of record."""
    allowed = RANGES.get(name) or ALLOWED_VALUES.get(f"{kind}.{name}")
    return allowed is None or value in allowed


# --- keys ---


def make_current_key(prefix: str, run_id: str) -> str:
    """Make the key that names the job of a run id."""
    return f"/{prefix}/{run_id}/current"


def make_node_number_prefix(prefix: str, run_id: str, number: int) -> str:
    """Make the prefix under which each node that is given this number registers before it joins any job."""
    return f"/{prefix}/{run_id}/numbers/{number}/"


class Keys(NamedTuple):
    """The keys of one job; `root` ends with the job key."""

    root: str

    @property
    def name(self) -> str:
        """The job key."""
        return self.root.rpartition("/")[2]

    @property
    def spec(self) -> str:
        return f"{self.root}/spec"

    @property
    def control(self) -> str:
        return f"{self.root}/ctl/"

    @property
    def leader(self) -> str:
        return f"{self.root}/ctl/leader"

    @property
    def round(self) -> str:
        return f"{self.root}/ctl/round"

    @property
    def stop(self) -> str:
        return f"{self.root}/ctl/stop"

    @property
    def verdict(self) -> str:
        return f"{self.root}/ctl/verdict"

    @property
    def spares(self) -> str:
        return f"{self.root}/ctl/spares"

    @property
    def drains(self) -> str:
        return f"{self.root}/ctl/drained/"

    @property
    def commands(self) -> str:
        return f"{self.root}/ctl/command/"

    @property
    def history(self) -> str:
        return f"{self.root}/history/"

    @property
    def members(self) -> str:
        return f"{self.root}/members/"

    @property
    def statuses(self) -> str:
        return f"{self.root}/status/"

    def make_member_key(self, member_id: str) -> str:
        return self.members + member_id

    def make_status_key(self, member_id: str) -> str:
        return self.statuses + member_id

    def make_lease_key(self, member_id: str) -> str:
        """Make the key that is written under this member's lease to find out whether the lease lives."""
        return f"{self.root}/lease/{member_id}"

    def make_drain_key(self, node_name: str) -> str:
        return self.drains + node_name

    def make_command_key(self, token: str) -> str:
        return self.commands + token

    def make_history_key(self, number: int) -> str:
        """Make the key of a round's history; numbers are padded, so that rounds sort."""
        return f"{self.history}{number:08}"

    @property
    def all_assignments(self) -> str:
        return f"{self.root}/assign/"

    def make_assignments_prefix(self, number: int, plan_token: str = "") -> str:
        """Make the prefix of a round's assignments, or of one plan's."""
        return f"{self.all_assignments}{number}/" + (f"{plan_token}/" if plan_token else "")

    def make_assignment_key(self, number: int, plan_token: str, member_id: str) -> str:
        return self.make_assignments_prefix(number, plan_token) + member_id


def make_job_keys(prefix: str, run_id: str, job_key: str) -> Keys:
    return Keys(f"/{prefix}/{run_id}/{job_key}")
