"""What goes into the protocol and what comes out of it.

Events are what happened, actions what shall be done; both are small values, so a run of the protocol is a
list of them that can be written down, read and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rendezvous.errors import StoreError
from rendezvous.records import Verdict
from rendezvous.store import Batch, Compare, Lease, Operation, TxnResult

# --- Requests to the store, inside the action Ask ---


class Grant(NamedTuple):
    ttl_s: float


class KeepAlive(NamedTuple):
    lease: int


class Revoke(NamedTuple):
    lease: int


class Txn(NamedTuple):
    compares: tuple[Compare, ...]
    success: tuple[Operation, ...]
    failure: tuple[Operation, ...] = ()


Request = Grant | KeepAlive | Revoke | Txn
Answer = Lease | float | TxnResult | None

# --- Events ---


class Begin(NamedTuple):
    """Join the job."""


class Tick(NamedTuple):
    """Time has passed: `wake_at` was reached."""


class Answered(NamedTuple):
    """The store's answer to Ask `id`."""

    id: int
    answer: Answer


class Refused(NamedTuple):
    """Ask `id` did not happen: nothing was written."""

    id: int
    error: StoreError


class Unknown(NamedTuple):
    """Nobody knows whether Ask `id` happened, or will."""

    id: int


class Watched(NamedTuple):
    """Events of the watch on `key`."""

    key: str
    batch: Batch


class WatchLost(NamedTuple):
    """The watch on `key` has ended."""

    key: str
    error: StoreError


class Planned(NamedTuple):
    """The planner's answer to MakePlan `id`: one text per active member; the other members are spares."""

    id: int
    assignments: Mapping[str, str]
    world_size: int
    coordinator: str


class PlanRefused(NamedTuple):
    """The planner found no plan for MakePlan `id`."""

    id: int
    reason: str


class RoundSucceeded(NamedTuple):
    """Every worker of the round on this node has succeeded."""

    round: int


class RoundFailed(NamedTuple):
    """A worker of the round on this node has failed. `failure` is the launcher's text for the report."""

    round: int
    exit_code: int
    is_peer_loss: bool
    failure: str


class RoundStopped(NamedTuple):
    """No process of the round is left on this node. `worker_port` is offered for the next."""

    round: int
    worker_port: int


class LeashEnded(NamedTuple):
    """The leash ran out and the workers were killed, though the lease may yet be renewed."""


class Leave(NamedTuple):
    """This node was told to go."""

    reason: str
    exit_code: int


Event = (
    Begin
    | Tick
    | Answered
    | Refused
    | Unknown
    | Watched
    | WatchLost
    | Planned
    | PlanRefused
    | RoundSucceeded
    | RoundFailed
    | RoundStopped
    | LeashEnded
    | Leave
)

# --- Actions ---


class Ask(NamedTuple):
    """Send a request to the store; answer with Answered, Refused or Unknown. `why` is for people."""

    id: int
    why: str
    request: Request


class Follow(NamedTuple):
    """Watch `key` (a prefix if it ends with "/") from `start_revision`."""

    key: str
    start_revision: int


class Unfollow(NamedTuple):
    """Stop watching `key`."""

    key: str


class Candidate(NamedTuple):
    """A member as the planner sees it: `worker_port` is what it offers for this round, `order` its create revision."""

    member_id: str
    description: str
    worker_port: int
    order: int


class MakePlan(NamedTuple):
    """Plan a round for these members; answer with Planned or PlanRefused. `previous`: the last round's assignments."""

    id: int
    round: int
    roster: tuple[Candidate, ...]
    previous: Mapping[str, str]


class StartRound(NamedTuple):
    """Start this node's workers of the round."""

    round: int
    restart_count: int
    world_size: int
    coordinator: str
    assignment: str


class StopRound(NamedTuple):
    """End this node's workers of the round; answer with RoundStopped.

    `mode`: "kill" and "grace" as in the Stop record, or "fence": SIGKILL now.
    """

    round: int
    mode: str
    reason: str


class ExtendLeash(NamedTuple):
    """Workers may live until this time and no longer, unless extended again."""

    until: float


class Say(NamedTuple):
    """A sentence for people, made only when it changes."""

    sentence: str


class End(NamedTuple):
    """This agent is done. `verdict` is the job's, None if this agent leaves before the job ends."""

    exit_code: int
    reason: str
    verdict: Verdict | None


Action = Ask | Follow | Unfollow | MakePlan | StartRound | StopRound | ExtendLeash | Say | End
