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
    """Do nothing before `until`, unless something changes. `is_limit`: the leader gives up waiting then.

    `setting`: the field of Settings that says how long people wait, and `limit_at` until when; 0 where that is `until`,
    which may be earlier.
    """

    until: float
    reason: Reason
    is_limit: bool = False
    rule: str = ""
    setting: str = ""
    limit_at: float = 0.0


class EndRound(Struct, frozen=True):
    """Stop the round on all nodes; `mode`, `cause` and `nodes` as in the Stop record."""

    mode: Literal["kill", "grace"]
    reason: Reason
    cause: Cause
    rule: str = ""
    nodes: tuple[str, ...] = ()


class SealRound(Struct, frozen=True):
    """Request a plan for these members and seal it, with the budget as it will be then. `remark`: on the last round."""

    roster: tuple[str, ...]
    budget: RestartBudget
    reason: Reason
    remark: Reason | None = None


class Fence(Struct, frozen=True):
    """Delete the keys of these members. `is_confirmed_gone`: presence has proven that no process of them is left."""

    member_ids: tuple[str, ...]
    reason: Reason
    is_confirmed_gone: bool = False
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
