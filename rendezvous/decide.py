"""What the leader does next: a pure function of what it sees, the time and the settings.

A round is sealed, runs, is stopped on all nodes, and only when nothing of it is left is the next one sealed.
So there are three situations, told apart by the seal and the stop alone: no round runs (`_between`), one runs
(`_running`), or one is being stopped (`_stopping`). Each answer carries the sentence that people read.

Nothing here knows how large a useful world is: `sizer` answers that for any set of members.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rendezvous.budget import Ledger
from rendezvous.records import Member, Seal, Status, Stop, Verdict
from rendezvous.settings import Settings

EXIT_FAILURE = 1
EXIT_TEMPORARY = 75  # sysexits.h EX_TEMPFAIL: the same command may work later


class Size(NamedTuple):
    """The largest world some members could form; 0 if none. `is_full`: more members could not enlarge it."""

    world_size: int
    is_full: bool
    reason: str


class MemberView(NamedTuple):
    """A live member as the leader sees it. `seen_at`: first sight, on the leader's clock."""

    member: Member
    create_revision: int
    mod_revision: int
    seen_at: float


class StatusView(NamedTuple):
    """A member's last status. `failed_revision` orders first failures; `leaving_at`, when the leader saw it, or inf."""

    status: Status
    failed_revision: int
    failed_at: float
    leaving_at: float


Sizer = Callable[[Sequence[MemberView]], Size]


@dataclass(frozen=True, kw_only=True)
class View:
    """All that the leader knows. Times are on its own clock; `opened_at` is when it began to lead or the job began.

    `active`: the members with ranks in the sealed round, lost ones included. `lost_at`: when each of those that
    are gone was missed. `names`: of the nodes of all members ever seen. `statuses` may be of earlier rounds.
    """

    own_id: str
    members: Mapping[str, MemberView]
    statuses: Mapping[str, StatusView]
    opened_at: float
    seal: Seal | None = None
    sealed_at: float = 0.0
    active: tuple[str, ...] = ()
    stop: Stop | None = None
    stopped_at: float = 0.0
    lost_at: Mapping[str, float]
    names: Mapping[str, str]
    ledger: Ledger

    def is_leaving(self, member_id: str) -> bool:
        view = self.statuses.get(member_id)
        return view is not None and bool(view.status.leaving)

    def outcome(self, member_id: str) -> str:
        view = self.statuses.get(member_id)
        if view is None or self.seal is None or view.status.plan_token != self.seal.plan_token:
            return ""
        return view.status.outcome

    def has_stopped(self, member_id: str) -> bool:
        view = self.statuses.get(member_id)
        return (
            view is not None
            and self.seal is not None
            and view.status.plan_token == self.seal.plan_token
            and view.status.is_stopped
        )

    def is_idle(self, member_id: str) -> bool:
        """Whether the round does not need this member: it has no ranks, has succeeded, or has stopped."""
        return member_id not in self.active or self.has_stopped(member_id) or self.outcome(member_id) == "succeeded"

    def departed_at(self) -> list[float]:
        """When each active member that had not succeeded was missed, or told that it leaves."""
        times = (
            min(self.lost_at.get(m, math.inf), self.statuses[m].leaving_at if m in self.statuses else math.inf)
            for m in self.active
            if self.outcome(m) != "succeeded"
        )
        return [at for at in times if at < math.inf]

    def name(self, member_id: str) -> str:
        return self.names.get(member_id, member_id)


class Wait(NamedTuple):
    """Nothing to do before `until`, unless something changes."""

    until: float
    reason: str


class EndRound(NamedTuple):
    mode: str
    reason: str


class SealRound(NamedTuple):
    """Ask for a plan of these members and seal it, with the budget as it will stand."""

    roster: tuple[str, ...]
    ledger: Ledger
    reason: str


class Fence(NamedTuple):
    member_id: str
    reason: str


class Resign(NamedTuple):
    """This leader is about to go and others stay: it lets go of the leader's key with its own member key."""

    reason: str


class Conclude(NamedTuple):
    verdict: Verdict


Decision = Wait | EndRound | SealRound | Fence | Resign | Conclude


def decide(view: View, now: float, settings: Settings, sizer: Sizer) -> Decision:
    """The leader's next act, as long as there is no verdict."""
    if view.is_leaving(view.own_id) and view.is_idle(view.own_id) and _candidates(view):
        return Resign("this node leaves, another will lead")
    if view.seal is None:
        return _first_round(view, now, settings, sizer)
    if view.active and all(view.outcome(m) == "succeeded" for m in view.active):  # also when a stop came too late
        return Conclude(Verdict(kind="success", exit_code=0, round=view.seal.round, reason="all workers succeeded"))
    if view.stop is None or view.stop.round != view.seal.round:
        return _running(view, view.seal, now, settings, sizer)
    unstopped = [m for m in view.active if m in view.members and not view.has_stopped(m)]
    if unstopped:
        return _stopping(view, view.stop, unstopped, now, settings)
    return _between(view, view.seal, view.stop, now, settings, sizer)


def _first_round(view: View, now: float, settings: Settings, sizer: Sizer) -> Decision:
    candidates = _candidates(view)
    if not candidates:
        return _nobody_left(view, 0)
    size = sizer(candidates)
    roster = tuple(candidate.member.member_id for candidate in candidates)
    if size.is_full:
        return SealRound(roster, view.ledger, size.reason)
    if size.world_size == 0:
        until = view.opened_at + settings.start_timeout_s
        if now >= until:
            return Conclude(
                _failure(0, f"no world could be formed within {settings.start_timeout_s:g} s: {size.reason}")
            )
        return Wait(until, f"waiting for nodes: {size.reason}")
    until = max(candidate.seen_at for candidate in candidates) + settings.join_grace_s
    if now >= until:
        return SealRound(roster, view.ledger, f"{size.reason}; nobody came for {settings.join_grace_s:g} s")
    return Wait(until, f"waiting for more nodes: {size.reason}")


def _running(view: View, seal: Seal, now: float, settings: Settings, sizer: Sizer) -> Decision:
    pending = [m for m in view.active if view.outcome(m) != "succeeded"]
    lost = [m for m in pending if m not in view.members and not view.is_leaving(m)]
    if lost:
        return EndRound("kill", f"{_nodes(view, lost)} lost in round {seal.round}")
    failed = [m for m in pending if view.outcome(m) == "failed"]
    if failed:
        return EndRound("kill", f"a worker failed on {_nodes(view, failed)} in round {seal.round}")
    leaving = [m for m in pending if view.is_leaving(m)]
    if leaving:
        until = min(view.statuses[m].leaving_at for m in leaving) + settings.leave_settle_s
        everybody_leaves = all(view.is_leaving(m) for m in view.members)
        if now >= until or everybody_leaves:
            return EndRound("grace", f"{_nodes(view, leaving)} leaving in round {seal.round}")
        return Wait(until, f"gathering departures of round {seal.round}")
    return _growth(view, seal, now, settings, sizer)


def _growth(view: View, seal: Seal, now: float, settings: Settings, sizer: Sizer) -> Decision:
    candidates = _candidates(view)
    reason = f"round {seal.round} runs {seal.world_size} ranks"
    if any(view.outcome(m) == "succeeded" for m in view.active) or sizer(candidates).world_size <= seal.world_size:
        return Wait(math.inf, reason)
    quiet_since = max(view.sealed_at, max(candidate.seen_at for candidate in candidates))
    until = quiet_since + settings.grow_delay_s
    if now >= until:
        return EndRound("grace", f"growing after round {seal.round}: {sizer(candidates).reason}")
    return Wait(until, f"{reason}; could grow: {sizer(candidates).reason}")


def _stopping(view: View, stop: Stop, unstopped: Sequence[str], now: float, settings: Settings) -> Decision:
    until = view.stopped_at + settings.gone_within_s(stop.mode)
    if now < until:
        return Wait(until, f"stopping round {stop.round} ({stop.reason}): waiting for {_nodes(view, unstopped)}")
    others = [m for m in unstopped if m != view.own_id]
    if not others:
        return Resign(f"this node has not stopped round {stop.round} in time")
    return Fence(others[0], f"{view.name(others[0])} has not stopped round {stop.round} in time")


def _between(view: View, seal: Seal, stop: Stop, now: float, settings: Settings, sizer: Sizer) -> Decision:
    """The round is gone everywhere. Charge it, then choose who runs the next."""
    ledger = view.ledger.with_round_of(stop.ran_s, settings)
    failures = [m for m in view.active if view.outcome(m) == "failed"]
    departed_at = view.departed_at()
    if departed_at:
        if ledger.provisional_round and min(departed_at) - ledger.provisional_since <= settings.settle_s:
            ledger = ledger.refund()
    elif failures:
        failed_at = min(view.statuses[m].failed_at for m in failures)
        explained_at = failed_at + _explanation_s(view, failures, settings)
        if len(view.active) > 1 and explained_at > now and _must_know(view, failures, ledger, now, settings):
            return Wait(explained_at, f"round {seal.round} failed: waiting whether a lost node explains it")
        if ledger.spent(now, settings.restart_window_s) >= settings.max_restarts:
            return Conclude(_first_failure(view, seal, failures, ledger, now, settings))
        ledger = ledger.charge(seal.round, failed_at, now)
    ledger = ledger.settle(now, settings.settle_s)
    if ledger.short_rounds >= settings.no_progress_rounds:
        reason = f"no progress: {ledger.short_rounds} rounds in a row lasted less than {settings.min_round_time_s:g} s"
        if failures:
            return Conclude(_first_failure(view, seal, failures, ledger, now, settings, reason))
        return Conclude(_failure(seal.round, reason, EXIT_FAILURE))
    return _next_round(view, seal, ledger, now, settings, sizer)


def _next_round(view: View, seal: Seal, ledger: Ledger, now: float, settings: Settings, sizer: Sizer) -> Decision:
    candidates = _candidates(view)
    if not candidates:
        return _nobody_left(view, seal.round)
    size = sizer(candidates)
    if size.world_size == 0:
        until = view.stopped_at + settings.rejoin_timeout_s
        if now >= until:
            return Conclude(
                _failure(seal.round, f"too few nodes came back within {settings.rejoin_timeout_s:g} s: {size.reason}")
            )
        return Wait(until, f"waiting for nodes to come back: {size.reason}")
    until = view.stopped_at + settings.backoff_s(ledger.short_rounds)
    if now < until:
        return Wait(until, f"round {seal.round} was short, as {ledger.short_rounds - 1} before it: pausing")
    return SealRound(tuple(candidate.member.member_id for candidate in candidates), ledger, size.reason)


def _must_know(view: View, failures: Sequence[str], ledger: Ledger, now: float, settings: Settings) -> bool:
    """Whether the next step depends on who is to blame: the budget is spent, or a node may be dying right now."""
    is_spent = ledger.spent(now, settings.restart_window_s) >= settings.max_restarts
    return is_spent or all(view.statuses[m].status.is_peer_loss for m in failures)


def _explanation_s(view: View, failures: Sequence[str], settings: Settings) -> float:
    """How long a loss may still turn up: a broken connection may mean a node whose lease has yet to end."""
    if all(view.statuses[m].status.is_peer_loss for m in failures) and settings.lease_ttl_s < math.inf:
        return max(settings.settle_s, settings.lease_ttl_s)
    return settings.settle_s


def _first_failure(
    view: View, seal: Seal, failures: Sequence[str], ledger: Ledger, now: float, settings: Settings, reason: str = ""
) -> Verdict:
    """The verdict of a failed job: its cause is the failure first written, connections lost to others last."""
    first = min(failures, key=lambda m: (view.statuses[m].status.is_peer_loss, view.statuses[m].failed_revision, m))
    status = view.statuses[first].status
    spent = ledger.spent(now, settings.restart_window_s)
    budget = f"{spent} of {settings.max_restarts} restarts used" if settings.max_restarts else "no restarts allowed"
    return Verdict(
        kind="failure",
        exit_code=status.exit_code or EXIT_FAILURE,
        round=seal.round,
        reason=reason or f"a worker failed on {view.name(first)} in round {seal.round}, {budget}",
        failure=status.failure,
    )


def _nobody_left(view: View, round: int) -> Decision:
    """Every member is leaving, and nothing runs any more: the one that leads writes the verdict."""
    status = view.statuses[view.own_id].status
    exit_code = status.leaving_exit_code or EXIT_TEMPORARY
    return Conclude(Verdict(kind="stopped", exit_code=exit_code, round=round, reason=status.leaving))


def _candidates(view: View) -> list[MemberView]:
    """Members that can run, in the order in which they joined."""
    stay = [member for member_id, member in view.members.items() if not view.is_leaving(member_id)]
    return sorted(stay, key=lambda member: member.create_revision)


def _failure(round: int, reason: str, exit_code: int = EXIT_TEMPORARY) -> Verdict:
    return Verdict(kind="failure", exit_code=exit_code, round=round, reason=reason)


def _nodes(view: View, member_ids: Sequence[str]) -> str:
    names = sorted(view.name(member_id) for member_id in member_ids)
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"node {shown}" if len(names) == 1 else f"nodes {shown}"
