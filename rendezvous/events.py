"""The inputs and outputs of the machine.

Events are what happened, actions what to do next; both are small values, so a run can be written down and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from rendezvous.errors import LeaseExists, StoreError
from rendezvous.reasons import Reason
from rendezvous.records import Cause, Verdict
from rendezvous.stores.contract import Batch, Compare, Get, Lease, Operation, Renewal, Store, TxnResult

# --- Requests to the store, inside the action StoreRequest ---


# docs/internals/decisions/0005-dataclasses-and-named-tuples.md
class Grant(Struct, frozen=True):
    ttl_s: float
    id: int  # an existing lease of this id counts as granted


class KeepAlive(Struct, frozen=True):
    lease: int
    key: str  # read after the renewal


class Revoke(Struct, frozen=True):
    lease: int


class Txn(Struct, frozen=True):
    compares: tuple[Compare, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...] = ()


Request = Grant | KeepAlive | Revoke | Txn
Answer = Lease | Renewal | TxnResult | None


def get_request_kind(request: Request) -> str:
    """Return what a request is for: "renew", "read" or "write"."""
    match request:
        case KeepAlive():
            return "renew"
        case Txn(_, success, _) if all(isinstance(operation, Get) for operation in success):
            return "read"
    return "write"


def execute_request(store: Store, request: Request) -> Answer:
    """Execute a request on the store and return its answer. Raises StoreError as the store does."""
    match request:
        case Grant(ttl_s, lease_id):
            try:
                return store.lease_grant(ttl_s, id=lease_id)
            except LeaseExists:
                return Lease(lease_id, ttl_s)
        case KeepAlive(lease, key):
            return store.lease_renew(lease, key)
        case Revoke(lease):
            store.lease_revoke(lease)
            return None
        case Txn(compares, success, failure):
            return store.txn(compares, success, failure)


# --- Events ---


class Event(Struct, frozen=True):
    """What happened: an input of the machine."""


class Start(Event, frozen=True):
    """Join the job. `wall_offset_s`: seconds since 1970 at time 0 of the machine's clock; times for people need it."""

    wall_offset_s: float = 0.0


class Tick(Event, frozen=True):
    """Time has passed: the machine's `wake_at` was reached."""


class StoreReply(Event, frozen=True):
    """The store's answer to StoreRequest `id`."""

    id: int
    answer: Answer


class StoreRejected(Event, frozen=True):
    """StoreRequest `id` was rejected: nothing was written."""

    id: int
    error: StoreError


class StoreOutcomeUnknown(Event, frozen=True):
    """It is unknown whether StoreRequest `id` was applied, or will be."""

    id: int


class WatchUpdate(Event, frozen=True):
    """Events of the watch on `key`."""

    key: str
    batch: Batch


class WatchLost(Event, frozen=True):
    """The watch on `key` has ended."""

    key: str
    error: StoreError


class PlanReady(Event, frozen=True):
    """The reply of the planner to a MakePlan: one text per active member; the other members are spares."""

    id: int
    """Of the MakePlan."""
    assignments: Mapping[str, str]
    world_size: int
    coordinator: str  # HOST:PORT; port 0 stands for the one that the member `coordinator_id` offers for the round
    coordinator_id: str = ""
    reasons: tuple[Reason, ...] = ()
    """For the history."""
    spare_reasons: Mapping[str, Reason] = {}
    """Member id to the reason why it has no ranks."""
    successors: tuple[str, ...] = ()
    """Which members should lead when the leader is lost, best first, if the network's domains show it; otherwise the
    leader chooses.
    """
    remarks: tuple[Reason, ...] = ()
    """Logged at once."""


class PlanRefused(Event, frozen=True):
    """The planner found no plan for MakePlan `id`."""

    id: int
    reason: Reason


class RoundSucceeded(Event, frozen=True):
    """Every worker of the round on this node has succeeded."""

    round: int


class RoundFailed(Event, frozen=True):
    """A worker of the round on this node has failed. `failure` is the launcher's text for the report."""

    round: int
    exit_code: int
    is_peer_loss: bool
    failure: str
    rank: int = -1  # which rank failed, -1 if unknown
    is_port_taken: bool = False  # a foreign process listens on the worker port
    is_final: bool = False  # this node does not restart its workers, even if the budget is not spent
    final_reason: Reason | None = None  # why no restart would help
    is_node_fault: bool = False  # its worker says that this node is at fault
    failure_class: Reason | None = None  # how it failed, for the launcher: the same for the same failure


class RoundStopped(Event, frozen=True):
    """No process of the round is left on this node."""

    round: int
    worker_port: int
    """Offered for the next round."""
    step: int = -1
    """The highest training step that its workers reported, -1 for none."""


class CheckpointSaved(Event, frozen=True):
    """The workers of the round report that they have saved a checkpoint."""

    round: int


class RoundExamined(Event, frozen=True):
    """What the launcher says of a round without progress; nothing once there is some."""

    round: int
    finding: tuple[str, ...]


class PeerUp(Event, frozen=True):
    """An authenticated presence connection with a member is up, whichever side dialled."""

    member_id: str
    address: str
    """HOST:PORT where the member listens, as it reports."""
    is_provable: bool
    """The connection came from, or went to, that host, so a refused dial there is evidence about the member."""


class PeerDown(Event, frozen=True):
    """No presence connection with the member is left."""

    member_id: str


class PeerGone(Event, frozen=True):
    """The presence proof: after FIN or RST of a provable connection, its host has refused two dials.

    The listener is held by keeper, supervisor and workers too, so none of them is left. Sent once, until PeerUp.
    """

    member_id: str


class PeerMessage(Event, frozen=True):
    """A message that a member sent over its presence connection, as that member wrote it."""

    member_id: str
    text: str


TO_LEADER = "leader"
TO_ROUND = "round"
"""All members with ranks in the running round; only the leader reaches them."""
TO_ALL = "all"
"""All members, spares included; only the leader reaches them."""


class SendNote(Event, frozen=True):
    """The program above has a text for other members: `to` is a member id or one of the words above. It may be lost."""

    to: str
    text: str


class AnswerCommand(Event, frozen=True):
    """The program's answer to the request PassOn `token`, as text for the person who made it."""

    token: str
    text: str


class WatchdogExpired(Event, frozen=True):
    """The watchdog ran out and the workers were killed, though the lease may yet be renewed."""


class LeaveRequest(Event, frozen=True):
    """This node was asked to leave."""

    reason: Reason
    exit_code: int


# --- Actions ---


class Action(Struct, frozen=True):
    """What to do next: an output of the machine."""


class StoreRequest(Action, frozen=True):
    """Send a request; answered by StoreReply, StoreRejected or StoreOutcomeUnknown."""

    id: int
    kind: str
    """What it is for, in a word that is always the same, for a trace."""
    request: Request


class StartWatch(Action, frozen=True):
    """Watch `key` (a prefix if it ends with "/") from `start_revision`."""

    key: str
    start_revision: int


class StopWatch(Action, frozen=True):
    """Stop watching `key`."""

    key: str


class RosterMember(Struct, frozen=True):
    """A member as the planner sees it. Nothing of it changes while the member lives, so a plan is good for as long as
    its roster is.
    """

    member_id: str
    description: str
    order: int
    """Its create revision."""


class MakePlan(Action, frozen=True):
    """Plan a round for these members; answer with PlanReady or PlanRefused."""

    id: int
    round: int
    roster: tuple[RosterMember, ...]
    previous: Mapping[str, str]
    """The last round's assignments."""
    names: Mapping[str, str] = {}  # of the nodes in `previous`, also of those that are gone


class StartRound(Action, frozen=True):
    """Start this node's workers of the round."""

    round: int
    restart_count: int
    world_size: int
    coordinator: str
    assignment: str


class StopRound(Action, frozen=True):
    """End this node's workers of the round; answer with RoundStopped."""

    round: int
    mode: str
    """"kill" and "grace" as in the Stop record, or "fence": SIGKILL at once."""
    reason: Reason
    cause: Cause = ""
    """As in the Stop record."""
    nodes: tuple[str, ...] = ()
    """As in the Stop record."""


class ExtendWatchdog(Action, frozen=True):
    """Workers may live until this time and no longer, unless extended again."""

    until: float


class SetIdentity(Action, frozen=True):
    """This agent is this member of this job, for both directions of presence connections; "" means no member."""

    job: str
    member_id: str


class ConnectTo(Action, frozen=True):
    """Keep a presence connection to this member, the leader, and to no other; an empty id ends it.

    Dials are repeated until the next ConnectTo. Inbound connections are accepted at any time, whichever member leads.
    """

    member_id: str
    address: str


class SendToPeer(Action, frozen=True):
    """Send a message over the presence connection with the member; it is lost if there is none."""

    member_id: str
    text: str


class NoteReceived(Action, frozen=True):
    """A note of the program above on the member's node, as that member wrote it."""

    member_id: str
    text: str


class PassOn(Action, frozen=True):
    """A person's request that the program above answers; only the leader's gets it. Answer with AnswerCommand."""

    token: str
    text: str


class Log(Action, frozen=True):
    """What people read: the current state, when it changes; or, as a remark, something that happened."""

    reason: Reason
    is_remark: bool = False
    rule: str = ""
    """The rule that was applied, where it answers a fault; for programs that count rules."""
    until: float = math.inf
    """When the wait ends at the latest, if known."""
    setting: str = ""
    """The field of Settings that limits the wait, or "spare"; "" if unknown."""


class Exit(Action, frozen=True):
    """This agent ends. `verdict` is the job's, None if this agent leaves before the job ends."""

    exit_code: int
    reason: Reason
    verdict: Verdict | None
