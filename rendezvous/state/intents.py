"""What a part of the agreement wants of another: the machine does it when the part has returned.

An intent takes its place among the actions, so that what it leads to comes in the order in which it was wanted.
"""

from __future__ import annotations

from rendezvous.policy.decisions import StepDown
from rendezvous.records import Verdict
from rendezvous.stores.contract import KeyValue
from rendezvous.values import NamedTuple


class BecomeMember(NamedTuple):
    """The own key is in the store, and all under control is known as of `revision`."""

    own: KeyValue
    revision: int


class RenewRegistration(NamedTuple):
    """The own key is in the store again, on a new lease, with this create revision."""

    create_revision: int


class LoseMembership(NamedTuple):
    """Others may have taken this node's place: kill the workers at once, then come back as a new member."""

    reason: str


class ConfirmFenced(NamedTuple):
    """The others have gone on without this node, or `loss_reason` says why nobody can go on."""

    loss_reason: str = ""


class StopWorkers(NamedTuple):
    """End the round on this node; `mode` as in StopRound."""

    mode: str
    reason: str


class Finish(NamedTuple):
    """Give the membership up and exit. `verdict` is the job's, None if this agent ends before it."""

    exit_code: int
    reason: str
    verdict: Verdict | None = None


class ExitNow(NamedTuple):
    """Exit as was decided: nobody has to stay for the others any more."""


class HoldLease(NamedTuple):
    """The roster agrees that nobody takes this member's place before `until`."""

    until: float


class NoteResync(NamedTuple):
    """All that this member follows was read, by a request sent then."""

    sent_at: float


Intent = (
    BecomeMember
    | RenewRegistration
    | LoseMembership
    | ConfirmFenced
    | StopWorkers
    | StepDown
    | Finish
    | ExitNow
    | HoldLease
    | NoteResync
)
