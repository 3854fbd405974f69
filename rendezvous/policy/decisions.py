"""What a leader can decide: the next thing to do, and the sentence that says why.

`rule` names the rule that was applied, where one answers a fault.
"""

from __future__ import annotations

from rendezvous.policy.budget import RestartBudget
from rendezvous.records import Verdict
from rendezvous.values import NamedTuple


class Wait(NamedTuple):
    """Nothing to do before `until`, unless something changes. `is_limit`: by then the waiting is given up."""

    until: float
    reason: str
    is_limit: bool = False
    rule: str = ""


class EndRound(NamedTuple):
    mode: str
    reason: str
    rule: str = ""


class SealRound(NamedTuple):
    """Ask for a plan of these members and seal it, with the budget as it will stand."""

    roster: tuple[str, ...]
    budget: RestartBudget
    reason: str


class Fence(NamedTuple):
    """Delete the keys of these members. `is_confirmed_gone`: presence has proven that nothing of them is left."""

    member_ids: tuple[str, ...]
    reason: str
    is_confirmed_gone: bool = False
    rule: str = ""


class StepDown(NamedTuple):
    """This leader is about to go and others stay: it lets go of the leader's key with its own member key."""

    reason: str


class EndJob(NamedTuple):
    """End the job, and consume the command `token` if one asked for that."""

    verdict: Verdict
    token: str = ""


class ApplyCommand(NamedTuple):
    """Consume the command `token`: drain or undrain this name, or refuse with an answer."""

    token: str
    drain: str = ""
    undrain: str = ""
    answer: str = ""


Decision = Wait | EndRound | SealRound | Fence | StepDown | EndJob | ApplyCommand
