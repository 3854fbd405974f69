"""What lies in the store: small JSON records, each with a version, never pickled.

A record read from the store is checked field by field, because another version or another program may have
written it. Fields that this version does not know survive a rewrite; another record version is refused with
a sentence, since an upgrade is a new job. Times are never stored: two machines' clocks are not compared, so
what must be carried from one leader to the next is carried as an age.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from rendezvous import checks
from rendezvous.errors import RecordError
from rendezvous.values import MISSING, Field, dataclass, field, fields

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

    `lease_ttl_s` tells people how long it has been silent, beside what is left of its lease; 0 is unknown or no end.
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
    """Who leads, and where the others keep a connection to it. It lies on the leader's member lease."""

    member_id: str
    node_name: str
    presence_address: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Spares:
    """The members of the roster without ranks, known to all, and why: many have the same reason, which is said once.

    `reason_places`: for each member, in the same order, where its reason is in `reasons`.
    """

    member_ids: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    reason_places: tuple[int, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def why(self) -> dict[str, str]:
        """Member id -> its reason, as far as one is given."""
        placed = zip(self.member_ids, self.reason_places, strict=False)
        return {member_id: self.reasons[at] for member_id, at in placed if 0 <= at < len(self.reasons)}


@dataclass(frozen=True, kw_only=True)
class Drain:
    """This node shall leave, and not come back before the key is deleted."""

    node_name: str
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Command:
    """A person's request, for the leader to consume. `kind`: "stop", "drain", "undrain" or "takeover".

    `target` is a node's name or a member id; `by` says who asks, for people. Whoever asks writes the key with an
    empty `answer` and watches it: the leader deletes it in the transaction that does what was asked; if it refuses,
    it puts the record back with the sentence why as `answer`, and does nothing. Whoever asked then deletes the key;
    the leader deletes what is left of it with a later seal.
    """

    kind: str
    target: str = ""
    by: str = ""
    answer: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoundHistory:
    """What is remembered of a round: why it was sealed, and once it has ended, why that was and how long it ran."""

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
    """The write that fixes a round, and the budget as it stood then.

    `restart_count`: restarts charged to the job so far. `charge_ages_s`: how long ago each was charged, oldest
    first. `short_rounds`: rounds in a row that ended before the least useful time. `provisional_round`: a round
    whose charge may still turn out to be the loss of a node, `provisional_age_s` after its first failure.
    `port_taken_rounds`: rounds in a row that ended uncharged since somebody else listened on the worker port.
    `losses` and `first_failures`, oldest first, are what nodes are benched for: a node (name and boot id) and how
    long ago it was lost; a node, a rank and how long ago that rank failed there before any other.
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

    `ran_s`: how long the round had run by then, for a later leader that did not see it begin.
    """

    round: int
    reason: str
    mode: str
    ran_s: float = 0.0
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What one member runs in one round; `content` is the planner's text and opaque here.

    `node`: the member's node, by name and boot id, for a leader that comes when the member is gone.
    """

    round: int
    plan_token: str
    content: str
    node: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Status:
    """How a round goes on one member.

    `outcome` is "", "succeeded" or "failed" and final once set. `is_stopped`: no process of the round is left
    on this node. `failed_revision`: the store's revision when the failure was first told, 0 in that very write;
    it says whose came first, whatever was added later. `failure` is the launcher's text. `is_peer_loss`: the
    failure looks like a broken connection to somebody else. `leaving` is "" or the reason why this member is
    about to go, `leaving_exit_code` what with. `rank`: which failed. `is_port_taken`: the failure is that somebody
    else listens on the worker port. `saved_count`: checkpoints that the workers of this round have told of.
    `is_final`: no restart shall follow this failure.
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
    """How the job ended, for everybody. `kind`: "success", "failure" or "stopped"; `failure`: the first one's text.

    `is_first_sure`: no other node's failure was seen so close to it that it could have been the first; `others`:
    the texts of some further failures, in the order in which they were written.
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
    """The record as it is stored under `key`; with a secret it ends with a code that only its holders can make."""
    known = {item.name: getattr(record, item.name) for item in fields(record) if item.name != "unknown"}
    body = json.dumps({**record.unknown, **known, "version": RECORD_VERSION}, separators=(",", ":")).encode()
    return _sign(body, key, secret) if secret else body


def _sign(body: bytes, key: str, secret: bytes) -> bytes:
    """The code covers the key too, so that a record cannot be put in another's place."""
    import hmac  # 3 ms that only jobs with a secret pay

    code = hmac.new(secret, key.encode() + b"\n" + body, "sha256").hexdigest()
    return body[:-1] + f',"{_CODE}":"{code}"}}'.encode()


_CODE = "hmac"
_CODE_LENGTH = len(f',"{_CODE}":""}}') + 64
RECORD_BYTES_MAX = 1 << 20


def _freeze(value: object) -> object:
    """Lists as tuples, in tables too."""
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def decode(kind: type[Record], value: bytes, key: str, secret: bytes = b"") -> Record:
    """Read a record of `kind` that was stored under `key`. Raises RecordError naming the key and what is amiss."""
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
        if not checks.has_type(str(item.type), content_value):
            raise RecordError(f"{key}: {item.name} is {content_value!r:.100}, which is no {item.type}")
        if not checks.is_possible(kind.__name__, item.name, content_value):
            raise RecordError(f"{key}: {item.name} is {content_value!r:.100}, which cannot be")
        known[item.name] = _freeze(content_value)
    missing = [item.name for item in fields(kind) if _is_required(item) and item.name not in known]
    if missing:
        raise RecordError(f"{key} lacks {', '.join(missing)}")
    return kind(**known, unknown=content)
