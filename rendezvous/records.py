"""The records in the store: small JSON objects, each of which names the version of meshrun first, never pickled.

A record read from the store is validated field by field, because another program may have written it. One of another
version is refused before anything else of it is read, since an upgrade is a new job; so no field has to mean what it
meant elsewhere. Clocks of two machines are not compared: a time that one leader hands to the next is stored as an age.
The few clock times in histories and verdicts are for people, and nothing is decided by them.

`/<prefix>/<run id>/current` names the job key, a random word; everything else lies below it, so that a job started
again under the same run id finds nothing that the last one left.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct

from rendezvous import __version__, codec
from rendezvous.errors import RecordError, VersionError
from rendezvous.reasons import Reason

UNNAMED_RUN = "none"
"""torchrun's id of a run that was given none."""

# Whole numbers that a JSON reader of any language keeps, and times in seconds that can be reckoned with.
Count = Annotated[int, Meta(ge=0, lt=2**53)]
Rank = Annotated[int, Meta(ge=-1, lt=2**53)]
Step = Annotated[int, Meta(ge=-1, lt=2**53)]
Port = Annotated[int, Meta(ge=0, lt=2**16)]
ExitCode = Annotated[int, Meta(ge=-255, le=255)]
Seconds = Annotated[float, Meta(gt=-(2.0**53), lt=2.0**53)]
Losses = Annotated[tuple[tuple[str, Seconds], ...], Meta(max_length=4096)]
Cause = Literal["failure", "loss", "isolation", "leaving", "growth", "end", ""]
"""What ended a round: a worker's failure, the loss of a node, one that was cut off, a departure, more nodes, or the
end of the job; "" if it is not known.
"""
CAUSE_NODES_MAX = 16
Options = Annotated[Mapping[str, str], Meta(max_length=200)]
"""Options by their names, as in `--nnodes`, with their values; one with the default is left out."""
FirstFailures = Annotated[tuple[tuple[str, Rank, Seconds], ...], Meta(max_length=4096)]


class Record(Struct, frozen=True, kw_only=True):
    """What all records are."""


class Spec(Record, frozen=True, kw_only=True):
    """What the agents of a job must agree on before they may join, as its first one has it; see `member.refusal`.

    `digest` covers the form of the script and its file name, `arguments_digest` its arguments.
    """

    mesh: str
    options: Options
    """Those that decide which rounds there can be: all agents have the same."""
    digest: str
    script: str = ""
    """Its name, for people."""
    has_secret: bool = False
    arguments_digest: str = ""
    shared_options: Options = {}
    """Likewise, but an agent without one of them joins all the same."""


class Member(Record, frozen=True, kw_only=True):
    """One agent, as long as its lease lives. `description` is the launcher's text and opaque here.

    `lease_ttl_s` lets people see how long it has been silent, from the time left of its lease; 0 is unknown or no end.
    """

    member_id: str
    node_name: str
    boot_id: str
    description: str
    presence_address: str = ""
    worker_port: Port = 0
    lease_ttl_s: Seconds = 0.0


class LeaderRecord(Record, frozen=True, kw_only=True):
    """The leader, and where the others keep a connection to it. It lies on the leader's member lease."""

    member_id: str
    node_name: str
    presence_address: str = ""


class Spares(Record, frozen=True, kw_only=True):
    """The members of the roster without ranks, and why. Many have the same reason, which is stored once."""

    member_ids: tuple[str, ...]
    reasons: tuple[Reason, ...] = ()
    reason_places: tuple[Rank, ...] = ()
    """For each member, in the same order, the index of its reason in `reasons`."""

    @property
    def why(self) -> dict[str, Reason]:
        """Member id -> its reason, as far as one is given."""
        pairs = zip(self.member_ids, self.reason_places, strict=False)
        return {member_id: self.reasons[index] for member_id, index in pairs if 0 <= index < len(self.reasons)}


class Drain(Record, frozen=True, kw_only=True):
    """This node shall leave, and not rejoin before the key is deleted."""

    node_name: str


class Command(Record, frozen=True, kw_only=True):
    """A request to the leader, of a person or of a later attempt.

    The requester writes the key with an empty `answer` and watches it: the leader deletes it in the transaction that
    does what was asked; if it refuses, it writes the record back with the reason as `refused`, and does nothing. The
    record with the answer to "ask" is written to a key of its own. The requester then deletes the key; the leader
    deletes a remaining one with a later seal.
    """

    kind: str
    """"stop", "drain", "undrain", "takeover", "replace" or "ask"."""
    target: str = ""
    """A node's name, a member id, or the question; with "replace" the number of the later attempt."""
    by: str = ""
    """The requester, for people; with "replace" a node."""
    refused: Reason | None = None
    answer: str = ""
    """Of the program above; its text."""

    @property
    def is_answered(self) -> bool:
        return self.refused is not None or bool(self.answer)


class RoundHistory(Record, frozen=True, kw_only=True):
    """The history of a round."""

    round: Count
    world_size: Count
    node_count: Count
    coordinator: str
    reason: Reason
    """Why it was sealed."""
    ended: Reason | None = None
    """Why it ended, "" while it runs."""
    ran_s: Seconds = 0.0
    began_at: Seconds = 0.0
    """Seconds since 1970 by the leader's clock, 0 if unknown; for people alone, nothing is decided by it."""
    ended_at: Seconds = 0.0
    """As `began_at`."""
    saved_at: Seconds = 0.0
    """Of the last checkpoint, as `began_at`."""
    cause: Cause = ""
    """What ended it."""
    failed_rank: Rank = -1
    """Of the first failure, if one ended it."""
    failure_class: Reason | None = None
    """Of the first failure, if one ended it."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes that were lost, failed or left, `CAUSE_NODES_MAX` at most."""


class Seal(Record, frozen=True, kw_only=True):
    """The write that fixes a round, and the budget as it was then."""

    round: Count
    plan_token: str
    world_size: Count
    coordinator: str
    reason: Reason
    successors: tuple[str, ...] = ()
    restart_count: Count = 0
    """Restarts charged to the job so far."""
    charge_ages_s: tuple[Seconds, ...] = ()
    """How long ago each restart was charged, oldest first."""
    short_rounds: Count = 0
    """Rounds in a row that ended before `min_round_time_s`."""
    provisional_round: Count = 0
    """A round whose charge may still turn out to be the loss of a node."""
    provisional_age_s: Seconds = 0.0
    """How long ago that round's first failure was."""
    port_taken_rounds: Count = 0
    """Rounds in a row that ended uncharged because another process listened on the worker port."""
    losses: Losses = ()
    """Strikes of quarantines, oldest first: a node (name and boot id) and how long ago it was lost."""
    first_failures: FirstFailures = ()
    """Strikes, oldest first: a node, a rank, and how long ago that rank failed there before any other."""
    blamed: Losses = ()
    """Strikes, oldest first: nodes that their own workers named as at fault."""
    best_step: Step = -1
    """The highest training step that any round reached, -1 if none was reported."""
    stuck_rounds: Count = 0
    """Rounds in a row that a failure ended before they got beyond `best_step`."""
    same_failure: Reason | None = None
    """Which rank failed last and how."""
    same_rank: Rank = -1
    same_failures: Count = 0
    """How many times in a row `same_failure` happened."""


class Stop(Record, frozen=True, kw_only=True):
    """The end of a round for all nodes."""

    round: Count
    reason: Reason
    mode: Literal["kill", "grace"]
    """"kill" after a failure or loss, "grace" when there is time to save."""
    ran_s: Seconds = 0.0
    """How long the round had run, for a later leader that did not see it begin."""
    cause: Cause = ""
    """What ended it."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes that were lost, failed or left, `CAUSE_NODES_MAX` at most."""


class Assignment(Record, frozen=True, kw_only=True):
    """What one member runs in one round."""

    round: Count
    plan_token: str
    content: str
    """The planner's text, opaque here."""
    node: str = ""
    """The member's node, by name and boot id, for a leader that starts after the member is gone."""


class Status(Record, frozen=True, kw_only=True):
    """The state of a round on one member."""

    round: Count
    plan_token: str = ""
    outcome: Literal["", "succeeded", "failed"] = ""
    """Final once set."""
    is_stopped: bool = False
    """No process of the round is left on this node."""
    failed_revision: Count = 0
    """The store's revision when the failure was first reported, 0 in that very write; it orders failures, whatever is
    added later.
    """
    failure: str = ""
    """The launcher's text."""
    exit_code: ExitCode = 0
    is_peer_loss: bool = False
    """The failure looks like a lost connection to a peer."""
    leaving: Reason | None = None
    """Why this member is about to leave, "" if it is not."""
    leaving_exit_code: ExitCode = 0
    worker_port: Port = 0
    rank: Rank = -1
    """Which failed."""
    is_port_taken: bool = False
    """The failure is that another process listens on the worker port."""
    saved_count: Count = 0
    """Checkpoints that the workers of this round reported."""
    is_final: bool = False
    """No restart shall follow this failure."""
    final_reason: Reason | None = None
    """Why no restart would help, "" if one might."""
    is_node_fault: bool = False
    """A worker has reported that its node is at fault."""
    failure_class: Reason | None = None
    """How the rank failed, for the launcher, without anything that differs from one time to the next."""
    finding: tuple[str, ...] = ()
    """As in `RoundExamined`, of one member of the round."""
    step: Step = -1
    """The highest training step that its workers reported, -1 for none; with `is_stopped`."""


class Verdict(Record, frozen=True, kw_only=True):
    """How the job ended, for all members."""

    kind: Literal["success", "failure", "stopped"]
    exit_code: ExitCode
    round: Count
    reason: Reason
    failure: str = ""
    """The first one's text."""
    is_first_sure: bool = True
    """No other node's failure was seen so close to it that it could have been the first."""
    others: tuple[str, ...] = ()
    """The texts of some further failures, in the order in which they were written."""
    ended_at: Seconds = 0.0
    """Seconds since 1970 by the leader's clock, for people; 0 if unknown."""


class StoreOwner(Record, frozen=True, kw_only=True):
    """The run that a served store belongs to, written by the agent that serves it before it listens.

    Not signed: an agent without the job's secret reads it to learn that the store is not its own.
    """

    prefix: str
    run_id: str
    node_name: str
    """The node whose agent serves the store."""
    presence_address: str
    """That agent's, by which the leader recognises its member record."""
    attempt: Count = 0
    """That agent's, 0 if none are counted."""


AnyRecord = TypeVar("AnyRecord", bound=Record)


def encode(record: Record, key: str = "", secret: bytes = b"") -> bytes:
    """Encode the record as it is stored under `key`. With a secret it ends with an HMAC."""
    body = _HEAD + codec.encode(record)[1:]
    return _sign(body, key, secret) if secret else body


def _sign(body: bytes, key: str, secret: bytes) -> bytes:
    """Append an HMAC, which covers the key too, so that a record cannot be moved to another key."""
    import hmac  # 3 ms that only jobs with a secret pay

    code = hmac.new(secret, key.encode() + b"\n" + body, "sha256").hexdigest()
    return body[:-1] + f',"{_CODE}":"{code}"}}'.encode()


_HEAD = f'{{"version":"{__version__}",'.encode()
_CODE = "hmac"
_CODE_LENGTH = len(f',"{_CODE}":""}}') + 64
RECORD_BYTES_MAX = 1 << 20


class _Version(Struct, frozen=True):
    version: Annotated[str, Meta(min_length=1, max_length=40)]


def decode(kind: type[AnyRecord], value: bytes, key: str, secret: bytes = b"") -> AnyRecord:
    """Decode a record of `kind` that was stored under `key`. Raises RecordError with the key and the problem."""
    what = f"the value of {key}"
    if len(value) > RECORD_BYTES_MAX:
        raise RecordError(f"{what} has {len(value)} bytes, more than any record of meshrun")
    require_version(value, what)
    if secret:
        import hmac

        body = value[:-_CODE_LENGTH] + b"}"
        if not hmac.compare_digest(value, _sign(body, key, secret)):
            raise RecordError(f"{what} was not written by an agent that knows the job's secret")
    return codec.decode(kind, value, what)


def require_version(value: bytes, what: str) -> None:
    """Raise VersionError for a record of another version of meshrun, and RecordError for one of none.

    Nothing else of it is read, nor its signature verified: another version may sign otherwise.
    """
    version = codec.decode(_Version, value, what).version
    if version != __version__:
        raise VersionError(what, version)


# --- keys ---


STORE_OWNER_KEY = "/served-store/owner"


def name_run(run_id: str) -> str:
    """Return how a sentence names a run."""
    return "the run without an id" if run_id == UNNAMED_RUN else f"run {run_id}"


def name_own_run(run_id: str) -> str:
    """Return how a sentence of an agent names the run that it belongs to."""
    return "this run" if run_id == UNNAMED_RUN else f"run {run_id}"


def make_current_key(prefix: str, run_id: str) -> str:
    """Make the key that names the job of a run id."""
    return f"/{prefix}/{run_id}/current"


def make_node_number_prefix(prefix: str, run_id: str, number: int) -> str:
    """Make the prefix under which each node that is given this number registers before it joins any job."""
    return f"/{prefix}/{run_id}/numbers/{number}/"


class Keys:
    """The keys of one job; `root` ends with the job key, `name`."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.name = root.rpartition("/")[2]
        self.spec = f"{root}/spec"
        self.members = f"{root}/members/"
        self.statuses = f"{root}/status/"
        self.history = f"{root}/history/"
        self.all_assignments = f"{root}/assign/"
        self.control = f"{root}/ctl/"
        self.leader = f"{root}/ctl/leader"
        self.round = f"{root}/ctl/round"
        self.stop = f"{root}/ctl/stop"
        self.verdict = f"{root}/ctl/verdict"
        self.spares = f"{root}/ctl/spares"
        self.drains = f"{root}/ctl/drained/"
        self.commands = f"{root}/ctl/command/"

    @property
    def attempt(self) -> int:
        """The number that the job key begins with, 0 if attempts are not counted."""
        number, dash, _ = self.name.partition("-")
        return int(number) if dash and number.isdigit() else 0

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

    def make_answer_key(self, token: str) -> str:
        """Make the key of an answer, which no member follows."""
        return f"{self.root}/answer/{token}"

    def make_history_key(self, number: int) -> str:
        """Make the key of a round's history; numbers are padded, so that rounds sort."""
        return f"{self.history}{number:08}"

    def make_assignments_prefix(self, number: int, plan_token: str = "") -> str:
        """Make the prefix of a round's assignments, or of one plan's."""
        return f"{self.all_assignments}{number}/" + (f"{plan_token}/" if plan_token else "")

    def make_assignment_key(self, number: int, plan_token: str, member_id: str) -> str:
        return self.make_assignments_prefix(number, plan_token) + member_id


def make_job_keys(prefix: str, run_id: str, job_key: str) -> Keys:
    return Keys(f"/{prefix}/{run_id}/{job_key}")
