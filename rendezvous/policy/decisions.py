"""The decisions of a leader: the next thing to do, and the reason.

`rule` names the rule that was applied, where a decision answers a fault.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from rendezvous.policy.budget import RestartBudget
from rendezvous.reasons import Reason
from rendezvous.records import Cause, Verdict


class Wait(Struct, frozen=True):
    """Do nothing before `until`, unless something changes."""

    until: float
    reason: Reason
    is_limit: bool = False
    """The leader gives up waiting at `until`."""
    rule: str = ""
    setting: str = ""
    """The field of Settings that limits this wait for people."""
    limit_at: float = 0.0
    """Until when `setting` lets people wait; 0 where that is `until`, which may be earlier."""


class EndRound(Struct, frozen=True):
    """Stop the round on all nodes; `mode`, `cause` and `nodes` as in the Stop record."""

    mode: Literal["kill", "grace"]
    reason: Reason
    cause: Cause
    rule: str = ""
    nodes: tuple[str, ...] = ()
    member_id: str = ""
    """One of those for which it ends: it has not succeeded, as far as its status is known. "" for the leader itself."""


class SealRound(Struct, frozen=True):
    """Request a plan for these members and seal it."""

    roster: tuple[str, ...]
    budget: RestartBudget
    """As it will be then."""
    reason: Reason
    remark: Reason | None = None
    """On the last round."""


class Fence(Struct, frozen=True):
    """Delete the keys of these members."""

    member_ids: tuple[str, ...]
    reason: Reason
    is_confirmed_gone: bool = False
    """Presence has proven that no process of them is left."""
    rule: str = ""


class QuitJob(Struct, frozen=True):
    """Give up leadership by deleting the leader's key with the own member key: this leader leaves and others stay."""

    reason: Reason


class EndJob(Struct, frozen=True):
    """End the job, and delete the command `token` if one asked for that."""

    verdict: Verdict
    token: str = ""


class ApplyCommand(Struct, frozen=True):
    """Delete the command `token` and drain or undrain this name, or write why it is `refused`, or its `answer`."""

    token: str
    drain: str = ""
    undrain: str = ""
    refused: Reason | None = None
    answer: str = ""


Decision = Wait | EndRound | SealRound | Fence | QuitJob | EndJob | ApplyCommand
