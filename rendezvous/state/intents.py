"""Intents: what one part of the machine asks another to do; the machine does it when the asking part has returned.

An intent keeps its place among the actions, so its effects come in the order in which they were asked for.

What ends what: EndRound stops a round on all nodes and EndJob writes the verdict (decisions of a leader); QuitJob ends
the agent at once, with its workers and whatever it leads, and so does LeaveStore, since the store is not to be trusted;
Finish ends its membership, and ExitNow its process.
"""

from __future__ import annotations

from msgspec import Struct

from rendezvous.policy.decisions import QuitJob
from rendezvous.reasons import Reason
from rendezvous.records import Verdict


class NoteRegistration(Struct, frozen=True):
    """The own key is in the store again, on a new lease, with this create revision."""

    create_revision: int


class LoseMembership(Struct, frozen=True):
    """Others may have taken this node's place: kill the workers at once, then join again as a new member."""

    reason: Reason


class SuspectRemoval(Struct, frozen=True):
    """The others have continued without this node, or `loss_reason` says why no member can continue."""

    loss_reason: Reason | None = None


class Finish(Struct, frozen=True):
    """Give up the membership and exit. `verdict` is the job's, None if this agent ends before the job does."""

    exit_code: int
    reason: Reason
    verdict: Verdict | None = None


class ExitNow(Struct, frozen=True):
    """Exit as decided: this agent no longer has to stay for the others."""


class LeaveStore(Struct, frozen=True):
    """The store has gone back, or is another one: kill the workers at once, and end. `regress`: what shows it."""

    regress: Reason


Intent = NoteRegistration | LoseMembership | SuspectRemoval | LeaveStore | QuitJob | Finish | ExitNow
