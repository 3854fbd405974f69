"""What the leader does next: a pure function of what it sees, the time and the settings.

A round is sealed, runs, is stopped on all nodes, and only when nothing of it is left is the next one sealed.
So there are three situations, told apart by the seal and the stop alone: no round runs (`_between`), one runs
(`_running`), or one is being stopped (`_decide_stopping`). Each answer carries the sentence that people read.

Nothing here knows how large a useful world is: `sizer` answers that for any set of members.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from rendezvous.errors import EXIT_REFUSED, EXIT_STOPPED, EXIT_TEMPORARY
from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.candidates import MemberChoice, choose_members, decide_growth, list_staying
from rendezvous.policy.commands import choose_request
from rendezvous.policy.decisions import ApplyCommand, Decision, EndJob, EndRound, Fence, SealRound, StepDown, Wait
from rendezvous.policy.view import MemberView, Size, Sizer, StatusView, View
from rendezvous.records import Seal, Stop, Verdict
from rendezvous.settings import Settings

_PUT_OFF = "omission put off"

__all__ = [
    "ApplyCommand",
    "Decision",
    "EndJob",
    "EndRound",
    "Fence",
    "MemberView",
    "SealRound",
    "Size",
    "Sizer",
    "StatusView",
    "StepDown",
    "View",
    "Wait",
    "decide",
]


def decide(view: View, now: float, settings: Settings, sizer: Sizer) -> Decision:
    """The leader's next act, as long as there is no verdict."""
    decision = _decide(view, now, settings, sizer)
    if isinstance(decision, Wait):
        cut_off_at = [since + settings.isolation_s for m, since in view.unreachable_since.items() if m in view.members]
        until = min((at for at in cut_off_at if at > now), default=math.inf)
        return decision if decision.until <= until else decision._replace(until=until, is_limit=False)
    return decision


def _decide(view: View, now: float, settings: Settings, sizer: Sizer) -> Decision:
    seal = view.seal
    if seal is not None and view.active and all(view.get_outcome(m) == "succeeded" for m in view.active):
        # Also when a stop came too late, and when some of them are gone by now.
        return EndJob(Verdict(kind="success", exit_code=0, round=seal.round, reason="all workers succeeded"))
    gone = sorted(m for m in view.gone if m in view.members)
    if gone:
        return Fence(tuple(gone), f"{view.describe(gone)} gone: nothing listens there any more", True, "loss proven")
    request = choose_request(view)
    if isinstance(request, EndJob):  # the next job begins as soon as no member of this one is left
        if held := view.list_perhaps_held(now):
            words = f"after an outage of the store {view.describe(held)} may run workers without a membership"
            return Wait(view.no_omission_before, f"waiting before the job is stopped: {words}", rule=_PUT_OFF)
        if unaware := view.list_unaware(now):
            return _wait_for_unaware(view, unaware, "the job is stopped")
    if request is not None:
        return request
    if view.is_leaving(view.own_id) and view.is_idle(view.own_id) and list_staying(view) and not _must_end_first(view):
        return StepDown("this node leaves, another will lead")
    cut_off = _find_isolated(view, now, settings)
    if cut_off and _is_leader_isolated(view):
        if seal is None or view.is_idle(view.own_id):
            return StepDown(_describe_isolated_leader(view))
    else:
        idle = [m for m in cut_off if seal is None or m not in view.active or view.has_stopped(m)]
        if idle:
            return Fence(tuple(idle), _describe_isolated(view, idle, settings), rule="isolated member")
    if seal is None:
        return _decide_first_round(view, now, settings, sizer)
    if view.stop is None or view.stop.round != seal.round:
        return _decide_running(view, seal, cut_off, now, settings, sizer)
    unstopped = [m for m in view.active if m in view.members and not view.has_stopped(m)]
    if unstopped:
        return _decide_stopping(view, view.stop, unstopped, now, settings)
    return _decide_between(view, seal, view.stop, now, settings, sizer)


def _must_end_first(view: View) -> bool:
    """Whether the round that this leader leaves still has to be ended: whoever leads next would gather anew."""
    has_stop = view.seal is not None and view.stop is not None and view.stop.round == view.seal.round
    return view.is_pending(view.own_id) and not has_stop


def _find_isolated(view: View, now: float, settings: Settings) -> list[str]:
    """Members that renew their leases, but could be reached once and could not for too long."""
    if settings.lease_ttl_s == math.inf:
        return []
    since = view.unreachable_since
    return sorted(m for m, at in since.items() if m in view.members and now >= at + settings.isolation_s)


# docs/internals/decisions/agreement.md#0014-isolated-leader-steps-down
def _is_leader_isolated(view: View) -> bool:
    """Whether it is the leader that is cut off, since it reaches fewer than half of the others."""
    return 2 * view.reached_count < view.others_count


def _describe_isolated_leader(view: View) -> str:
    return (
        f"{view.get_name(view.own_id)} leads, but reaches only {view.reached_count} of {view.others_count} other nodes"
    )


def _describe_isolated(view: View, member_ids: Sequence[str], settings: Settings) -> str:
    return f"{view.describe(member_ids)} cut off: the store is reached, but no peer for {settings.isolation_s:g} s"


# --- no round was sealed yet ---


def _decide_first_round(view: View, now: float, settings: Settings, sizer: Sizer) -> Decision:
    candidates = list_staying(view)
    if not candidates:
        return _end_without_members(view, 0)
    size = sizer(candidates)
    chosen = MemberChoice(candidates, size, {})
    if size.is_full:
        return SealRound(chosen.roster, view.budget, size.reason)
    patience_ends = view.opened_at + settings.start_timeout_s
    if size.world_size == 0:
        if size.is_complete:
            return EndJob(_make_failure(0, f"no world can be formed: {size.reason}", EXIT_REFUSED))
        if now >= patience_ends:
            reason = f"no world could be formed within {settings.start_timeout_s:g} s: {size.reason}"
            return EndJob(_make_failure(0, reason))
        return Wait(patience_ends, f"waiting for nodes: {size.reason}")
    if settings.target_nodes:
        words = f"{len(candidates)} of the {settings.target_nodes} nodes asked for are here"
        if len(candidates) >= settings.target_nodes:
            return SealRound(chosen.roster, view.budget, f"{size.reason}; {words}")
        if now >= patience_ends:
            return SealRound(chosen.roster, view.budget, f"{size.reason}; after {settings.start_timeout_s:g} s {words}")
        return Wait(patience_ends, f"waiting for more nodes: {words}")
    until = max(candidate.seen_at for candidate in candidates) + settings.join_grace_s
    if now >= until:
        return SealRound(chosen.roster, view.budget, f"{size.reason}; nobody came for {settings.join_grace_s:g} s")
    return Wait(until, f"waiting for more nodes: {size.reason}")


# --- a round runs ---


def _decide_running(
    view: View, seal: Seal, cut_off: Sequence[str], now: float, settings: Settings, sizer: Sizer
) -> Decision:
    doubtful = set(view.list_doubtful(now))
    lost = [m for m in view.list_lost() if m not in doubtful]
    if lost:
        return EndRound("kill", f"{view.describe(lost)} lost in round {seal.round}")
    if cut_off and _is_leader_isolated(view) and view.is_pending(view.own_id):
        return EndRound("kill", f"{_describe_isolated_leader(view)} in round {seal.round}", "isolated leader")
    unreachable = [m for m in cut_off if view.is_pending(m)]
    if unreachable and not _is_leader_isolated(view):
        words = _describe_isolated(view, unreachable, settings)
        return EndRound("kill", f"{words} in round {seal.round}", "isolated member")
    leaving = [m for m in view.active if view.is_leaving(m) and view.is_pending(m)]
    failed = view.list_failed()
    if failed:
        # Whoever was inside a collective with a worker of a leaving node fails; people look for the cause.
        because = f"{view.describe(leaving)} leaving, and " if leaving else ""
        return EndRound("kill", f"{because}a worker failed on {view.describe(failed)} in round {seal.round}")
    if leaving:
        until = min(view.get_leaving_at(m) for m in leaving) + settings.leave_settle_s
        everybody_leaves = all(view.is_leaving(m) for m in view.members)
        if now >= until or everybody_leaves:
            return EndRound("grace", f"{view.describe(leaving)} leaving in round {seal.round}")
        return Wait(until, f"gathering departures of round {seal.round}")
    if doubtful:
        return Wait(
            view.no_omission_before, f"{_describe_doubtful(view, doubtful)} in round {seal.round}", rule=_PUT_OFF
        )
    return decide_growth(view, seal, now, settings, sizer)


def _describe_doubtful(view: View, doubtful: Collection[str]) -> str:
    return f"waiting for {view.describe(doubtful)} to register again after an outage of the store"


def _wait_for_unaware(view: View, unaware: Sequence[str], what: str) -> Wait:
    until = max(view.unaware_until[m] for m in unaware)
    words = f"{view.describe(unaware)} lost the membership while connected, and may still run workers"
    return Wait(until, f"waiting before {what}: {words}")


# --- it is being stopped ---


def _decide_stopping(view: View, stop: Stop, unstopped: Sequence[str], now: float, settings: Settings) -> Decision:
    until = view.stopped_at + settings.compute_gone_within_s(stop.mode)
    if now < until:
        return Wait(until, f"stopping round {stop.round} ({stop.reason}): waiting for {view.describe(unstopped)}")
    others = tuple(m for m in unstopped if m != view.own_id)
    if not others:
        return StepDown(f"this node has not stopped round {stop.round} in time")
    has = "has" if len(others) == 1 else "have"
    return Fence(others, f"{view.describe(others)} {has} not stopped round {stop.round} in time", rule="fenced")


# --- it is gone everywhere ---


def _decide_between(view: View, seal: Seal, stop: Stop, now: float, settings: Settings, sizer: Sizer) -> Decision:
    """Charge the round, then choose who runs the next."""
    doubtful = set(view.list_doubtful(now))
    if doubtful:
        return Wait(
            view.no_omission_before, f"{_describe_doubtful(view, doubtful)} before the next round", rule=_PUT_OFF
        )
    if unaware := view.list_unaware(now):
        return _wait_for_unaware(view, unaware, "the next round")
    from rendezvous.policy.charge import charge_round  # not before the first worker

    ledger = charge_round(view, seal, stop, now, settings)
    if not isinstance(ledger, RestartBudget):
        return ledger
    if not list_staying(view):
        return _end_without_members(view, seal.round)
    chosen = choose_members(view, ledger, now, settings, sizer)
    if chosen.size.world_size == 0:
        until = view.stopped_at + settings.rejoin_timeout_s
        words = f"{chosen.size.reason}{_describe_missing(view)}"
        if now >= until:
            reason = f"too few nodes came back within {settings.rejoin_timeout_s:g} s: {words}"
            return EndJob(_make_failure(seal.round, reason))
        return Wait(until, f"waiting for nodes to come back: {words}", is_limit=True)
    until = view.stopped_at + settings.compute_backoff_s(ledger.short_rounds)
    if now < until:
        words = f"round {seal.round} was short, as {ledger.short_rounds - 1} before it: pausing"
        return Wait(until, words, rule="backoff")
    quarantined = [f"; {view.get_name(m)}: {bench.reason}" for m, bench in sorted(chosen.quarantined.items())]
    return SealRound(chosen.roster, ledger, chosen.size.reason + "".join(quarantined[:4]))


def _describe_missing(view: View) -> str:
    """Who of the last round is no longer here, by name."""
    words = ""
    for what, missing in (
        ("lost", [m for m in view.active if m not in view.members and not view.is_leaving(m)]),
        ("left", [m for m in view.active if view.is_leaving(m)]),
    ):
        words += f"; {what}: {view.describe(missing)}" if missing else ""
    return words


def _end_without_members(view: View, round: int) -> Decision:
    """Every member is leaving, and nothing runs any more: the one that leads writes the verdict."""
    own = view.statuses.get(view.own_id)
    if own is None or not own.status.leaving:
        return EndJob(Verdict(kind="stopped", exit_code=EXIT_STOPPED, round=round, reason="every node is drained"))
    exit_code = own.status.leaving_exit_code or EXIT_TEMPORARY
    return EndJob(Verdict(kind="stopped", exit_code=exit_code, round=round, reason=own.status.leaving))


def _make_failure(round: int, reason: str, exit_code: int = EXIT_TEMPORARY) -> Verdict:
    return Verdict(kind="failure", exit_code=exit_code, round=round, reason=reason)
