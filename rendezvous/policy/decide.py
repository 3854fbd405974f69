"""The leader's next action: a pure function of its view, the time and the settings.

A round is sealed, runs, is stopped on all nodes, and only when no process of it is left is the next one sealed. So
there are three situations, told apart by the seal and the stop alone: no round runs (`_decide_between`), one runs
(`_decide_running`), or one is being stopped (`_decide_stopping`). Each decision carries its reason.

Nothing here knows how large a useful world is: `sizer` answers that for any set of members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from rendezvous.errors import EXIT_STOPPED, EXIT_TEMPORARY, EXIT_USAGE, EXIT_USELESS
from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.candidates import MemberChoice, choose_members, list_staying
from rendezvous.policy.decisions import ApplyCommand, Decision, EndJob, EndRound, Fence, QuitJob, SealRound, Wait
from rendezvous.policy.view import Sizer, View
from rendezvous.reasons import Reason
from rendezvous.records import Seal, Stop, Verdict
from rendezvous.settings import Settings

_PUT_OFF = "omission put off"
TARGET_LENGTH_MAX = 255
PASSED_ON = ("ask",)
"""Requests that the program above answers; the leader goes on meanwhile."""


def decide(view: View, now: float, settings: Settings, sizer: Sizer) -> Decision:
    """Return the leader's next action, as long as there is no verdict."""
    decision = _decide(view, now, settings, sizer)
    if isinstance(decision, Wait):
        isolated_at = [since + settings.isolation_s for m, since in view.unreachable_since.items() if m in view.members]
        until = min((at for at in isolated_at if at > now), default=math.inf)
        if until < decision.until:
            return replace(decision, until=until, is_limit=False, limit_at=decision.limit_at or decision.until)
    return decision


def _decide(view: View, now: float, settings: Settings, sizer: Sizer) -> Decision:
    seal = view.seal
    if seal is not None and view.active and all(view.get_outcome(m) == "succeeded" for m in view.active):
        # Also when a stop came too late, and when some of them are gone by now: an accepted completion is never lost.
        return EndJob(Verdict(kind="success", exit_code=0, round=seal.round, reason=Reason.of("all-succeeded")))
    gone = sorted(m for m in view.gone if m in view.members)
    if gone:
        return Fence(tuple(gone), Reason.of("gone", nodes=view.refer_to(gone)), True, "loss proven")
    request = choose_request(view)
    if not isinstance(request, EndJob):
        request = _end_with_store(view) or request
    if isinstance(request, EndJob):  # the next job begins as soon as no member of this one is left
        if perhaps_held := view.list_perhaps_held(now):
            reason = Reason.of("stop-awaits-held", nodes=view.refer_to(perhaps_held))
            return Wait(view.no_omission_before, reason, rule=_PUT_OFF, setting="lease_ttl_s")
        if unaware := view.list_unaware(now):
            return _wait_for_unaware(view, unaware, Reason.of("stop-awaits-unaware", nodes=view.refer_to(unaware)))
    if request is not None:
        return request
    if view.is_leaving(view.own_id) and view.is_idle(view.own_id) and list_staying(view) and not _must_end_first(view):
        return QuitJob(Reason.of("leader-leaves"))
    isolated = _find_isolated(view, now, settings)
    if isolated and _is_leader_isolated(view):  # then no other member is removed
        if seal is None or view.is_idle(view.own_id):
            return QuitJob(_explain_isolated_leader(view))
    else:  # one with ranks has its round stopped first
        idle = [m for m in isolated if seal is None or m not in view.active or view.has_stopped(m)]
        if idle:
            return Fence(tuple(idle), _explain_isolated(view, idle, settings), rule="isolated member")
    if seal is None:
        return _decide_first_round(view, now, settings, sizer)
    if view.stop is None or view.stop.round != seal.round:
        return _decide_running(view, seal, isolated, now, settings, sizer)
    unstopped = [m for m in view.active if m in view.members and not view.has_stopped(m)]
    if unstopped:
        return _decide_stopping(view, view.stop, unstopped, now, settings)
    return _decide_between(view, seal, view.stop, now, settings, sizer)


def _must_end_first(view: View) -> bool:
    """Return whether the leaving leader must end the round first: the next leader would wait for departures again."""
    has_stop = view.seal is not None and view.stop is not None and view.stop.round == view.seal.round
    return view.is_pending(view.own_id) and not has_stop


def _find_isolated(view: View, now: float, settings: Settings) -> list[str]:
    """List the members that renew their leases, but were reached once and have been unreachable for too long."""
    since = view.unreachable_since
    return sorted(m for m, at in since.items() if m in view.members and now >= at + settings.isolation_s)


# docs/internals/decisions/agreement.md#0014-isolated-leader-steps-down
def _is_leader_isolated(view: View) -> bool:
    """Return whether the leader is the isolated one, because it reaches fewer than half of the other members."""
    return 2 * view.reached_count < view.others_count


def _explain_isolated_leader(view: View, round: int = 0) -> Reason:
    node, reached = view.get_name(view.own_id), view.reached_count
    return Reason.of("leader-isolated", node=node, reached=reached, others=view.others_count, round=round)


def _explain_isolated(view: View, member_ids: Sequence[str], settings: Settings, round: int = 0) -> Reason:
    return Reason.of("isolated", nodes=view.refer_to(member_ids), for_s=settings.isolation_s, round=round)


# --- requests, made with meshctl or by a later attempt ---


def choose_request(view: View) -> EndJob | ApplyCommand | None:
    """Return the decision on the oldest request; None if there is none.

    It is deleted in the transaction that does what it asks for. The requester of one that cannot be met reads the
    reason from the same key.
    """
    for token, command in view.commands.items():
        match command.kind:
            case "stop":
                return _stop_job(view, Reason.of("stop-requested", by=command.by), token=token)
            case "replace":
                reason = Reason.of("replaced", attempt=command.target, node=command.by)
                return _stop_job(view, reason, EXIT_USELESS, token)
            case "drain":
                return _answer_drain(view, token, command.target)
            case "undrain":
                if command.target in view.drained:
                    return ApplyCommand(token, undrain=command.target)
                drained = tuple(sorted(view.drained))
                return ApplyCommand(token, refused=Reason.of("not-drained", target=command.target, drained=drained))
            case "takeover":
                return ApplyCommand(token, refused=Reason.of("has-leader", node=view.get_name(view.own_id)))
            case kind if kind in PASSED_ON:
                if view.answers.get(token):
                    return ApplyCommand(token, answer=view.answers[token])
            case kind:
                return ApplyCommand(token, refused=Reason.of("unknown-request", request=kind))
    return None


def _end_with_store(view: View) -> EndJob | None:
    """End the job if the member that serves the store leaves: no member could go on, and a later one would find none.

    So its departure is for all what `meshctl stop` is.
    """
    host = view.store_host
    if not host or not view.is_leaving(host):
        return None
    own, exit_code = view.statuses.get(host), EXIT_STOPPED
    reason = Reason.of("store-host-leaves", node=view.get_name(host))
    if own is not None and own.status.leaving:
        reason = Reason.of("store-host-leaves-because", node=view.get_name(host), why=own.status.leaving)
        exit_code = EXIT_USELESS if own.status.leaving.kind == "replaced" else EXIT_STOPPED
    return _stop_job(view, reason, exit_code)


def _stop_job(view: View, reason: Reason, exit_code: int = EXIT_STOPPED, token: str = "") -> EndJob:
    number = view.seal.round if view.seal else 0
    return EndJob(Verdict(kind="stopped", exit_code=exit_code, round=number, reason=reason), token)


def _answer_drain(view: View, token: str, target: str) -> ApplyCommand:
    """Drain a node by name, whether it has joined or not; by member id where two nodes have the same name."""
    if not 0 < len(target) <= TARGET_LENGTH_MAX or not target.isprintable() or "/" in target:
        return ApplyCommand(token, refused=Reason.of("not-a-node"))
    if view.store_host in (target, *_find_by_name(view, target)):
        return ApplyCommand(token, refused=Reason.of("store-host-not-drained", node=target))
    if target in view.members:  # by name where that is enough: a drain outlives the membership
        name = view.members[target].member.node_name
        return ApplyCommand(token, drain=name if len(_find_by_name(view, name)) == 1 else target)
    matches = _find_by_name(view, target)
    if len(matches) > 1:
        return ApplyCommand(token, refused=Reason.of("ambiguous-node", node=target, member_ids=tuple(matches)))
    return ApplyCommand(token, drain=target)


def _find_by_name(view: View, name: str) -> list[str]:
    return sorted(member_id for member_id, member in view.members.items() if member.member.node_name == name)


# --- no round was sealed yet ---


def _decide_first_round(view: View, now: float, settings: Settings, sizer: Sizer) -> Decision:
    candidates = list_staying(view)
    if not candidates:
        return _end_without_members(view)
    size = sizer(candidates)
    chosen = MemberChoice(candidates, size, {})
    if size.is_full:
        return SealRound(chosen.roster, view.budget, size.reason)
    give_up_at = view.opened_at + settings.start_timeout_s
    if size.world_size == 0:
        if size.is_complete:
            return EndJob(_make_failure(0, Reason.of("no-world", size=size.reason), EXIT_USAGE))
        if now >= give_up_at:
            reason = Reason.of("too-few-joined", within_s=settings.start_timeout_s, size=size.reason)
            return EndJob(_make_failure(0, reason))
        return Wait(give_up_at, Reason.of("awaiting-nodes", size=size.reason), setting="start_timeout_s")
    if settings.target_nodes:
        here = Reason.of("target-nodes", joined=len(candidates), target=settings.target_nodes)
        if len(candidates) >= settings.target_nodes:
            return SealRound(chosen.roster, view.budget, size.reason.add(here))
        if now >= give_up_at:
            late = Reason.of("target-nodes-after", after_s=settings.start_timeout_s, why=here)
            return SealRound(chosen.roster, view.budget, size.reason.add(late))
        return Wait(give_up_at, Reason.of("awaiting-more-nodes", why=here), setting="start_timeout_s")
    until = max(candidate.seen_at for candidate in candidates) + settings.join_grace_s
    if now >= until:
        quiet = Reason.of("no-node-joined", for_s=settings.join_grace_s)
        return SealRound(chosen.roster, view.budget, size.reason.add(quiet))
    return Wait(until, Reason.of("awaiting-more-nodes", why=size.reason), setting="join_grace_s")


# --- a round runs ---


def _decide_running(
    view: View, seal: Seal, isolated: Sequence[str], now: float, settings: Settings, sizer: Sizer
) -> Decision:
    doubtful = set(view.list_doubtful(now))
    lost = [m for m in view.list_lost() if m not in doubtful]
    if lost:  # before any failure, which it explains
        reason = Reason.of("lost", nodes=view.refer_to(lost), round=seal.round)
        return EndRound("kill", reason, "loss", "", view.list_names(lost), lost[0])
    if isolated and _is_leader_isolated(view) and view.is_pending(view.own_id):
        reason = _explain_isolated_leader(view, seal.round)
        return EndRound("kill", reason, "isolation", "isolated leader", view.list_names([view.own_id]))
    unreachable = [m for m in isolated if view.is_pending(m)]
    if unreachable and not _is_leader_isolated(view):
        reason = _explain_isolated(view, unreachable, settings, seal.round)
        return EndRound("kill", reason, "isolation", "isolated member", view.list_names(unreachable), unreachable[0])
    leaving = [m for m in view.active if view.is_leaving(m) and view.is_pending(m)]
    failed = view.list_failed()
    if failed:
        reason = Reason.of("failed", nodes=view.refer_to(failed), round=seal.round)
        if leaving:  # a worker inside a collective with a worker of a leaving node fails; people look for the cause
            reason = Reason.of("failed-while-leaving", leaving=view.refer_to(leaving), why=reason)
        return EndRound("kill", reason, "failure", nodes=view.list_names(failed))
    if leaving:
        until = min(view.get_leaving_at(m) for m in leaving) + settings.leave_settle_s
        everybody_leaves = all(view.is_leaving(m) for m in view.members)  # so no departure is left to wait for
        if now >= until or everybody_leaves:
            reason = Reason.of("leaving", nodes=view.refer_to(leaving), round=seal.round)
            other = next((m for m in leaving if m != view.own_id), "")
            return EndRound("grace", reason, "leaving", "", view.list_names(leaving), other)
        return Wait(until, Reason.of("gathering-departures", round=seal.round))
    if doubtful:
        reason = Reason.of("round-awaits-return", nodes=view.refer_to(doubtful), round=seal.round)
        return Wait(view.no_omission_before, reason, rule=_PUT_OFF, setting="lease_ttl_s")
    return _decide_growth(view, seal, now, settings, sizer)


def _decide_growth(view: View, seal: Seal, now: float, settings: Settings, sizer: Sizer) -> EndRound | Wait:
    """Decide whether a round that runs well is ended to use members that joined later (--grow)."""
    reason = Reason.of("running", round=seal.round, ranks=seal.world_size, is_spare=view.own_id not in view.active)
    if settings.grow == "never" or any(view.get_outcome(m) == "succeeded" for m in view.active):
        return Wait(math.inf, reason)  # a restart would make void what has succeeded
    chosen = choose_members(view, view.budget, now, settings, sizer)
    free_at = min((quarantine.until for quarantine in chosen.quarantined.values()), default=math.inf)
    if chosen.size.world_size <= seal.world_size:
        return Wait(free_at, reason)
    # When each of the others could first have enlarged the round; a node in quarantine, at its end.
    quarantines = view.budget.find_quarantines(settings)
    others = [member for member in chosen.members if member.member.member_id not in view.active]
    ended_at = [quarantines[member.node].until for member in others if member.node in quarantines]
    arrived_at = max([*(member.seen_at for member in others), *ended_at], default=-math.inf)
    growing = Reason.of("growing", round=seal.round, size=chosen.size.reason)
    if settings.grow == "checkpoint":  # then a restart loses no work
        if view.saved_at > arrived_at:
            return EndRound("grace", growing, "growth")
        return Wait(free_at, reason.add(Reason.of("could-grow-at-checkpoint", size=chosen.size.reason)), setting="grow")
    until = max(view.sealed_at, arrived_at) + settings.grow_delay_s  # more may arrive: one restart for all
    if now >= until:
        return EndRound("grace", growing, "growth")
    reason = reason.add(Reason.of("could-grow", size=chosen.size.reason))
    return Wait(min(until, free_at), reason, setting="grow_delay_s", limit_at=until if free_at < until else 0.0)


def _wait_for_unaware(view: View, unaware: Sequence[str], reason: Reason) -> Wait:
    return Wait(max(view.unaware_until[m] for m in unaware), reason, setting="lease_ttl_s")


# --- it is being stopped ---


def _decide_stopping(view: View, stop: Stop, unstopped: Sequence[str], now: float, settings: Settings) -> Decision:
    until = view.stopped_at + settings.compute_gone_within_s(stop.mode)
    if now < until:
        reason = Reason.of("stopping", round=stop.round, why=stop.reason, nodes=view.refer_to(unstopped))
        return Wait(until, reason, setting="stop_limit_s")
    others = tuple(m for m in unstopped if m != view.own_id)
    if not others:  # only the leader's own node: it is fenced as its agent ends
        return QuitJob(Reason.of("not-stopped-here", round=stop.round))
    return Fence(others, Reason.of("not-stopped", nodes=view.refer_to(others), round=stop.round), rule="fenced")


# --- it is gone everywhere ---


def _decide_between(view: View, seal: Seal, stop: Stop, now: float, settings: Settings, sizer: Sizer) -> Decision:
    """Charge the round that ended, then choose the members of the next."""
    doubtful = set(view.list_doubtful(now))
    if doubtful:
        reason = Reason.of("next-round-awaits-return", nodes=view.refer_to(doubtful))
        return Wait(view.no_omission_before, reason, rule=_PUT_OFF, setting="lease_ttl_s")
    if unaware := view.list_unaware(now):
        return _wait_for_unaware(view, unaware, Reason.of("next-round-awaits-unaware", nodes=view.refer_to(unaware)))
    from rendezvous.policy.charge import charge_round, explain_repetition  # not before the first worker

    budget = charge_round(view, seal, stop, now, settings)
    if not isinstance(budget, RestartBudget):
        return budget
    if not list_staying(view):
        return _end_without_members(view)
    chosen = choose_members(view, budget, now, settings, sizer)
    if chosen.size.world_size == 0:
        until = view.stopped_at + settings.rejoin_timeout_s
        missing = _list_missing(view)
        if now >= until:
            reason = Reason.of("too-few-returned", within_s=settings.rejoin_timeout_s, size=chosen.size.reason)
            return EndJob(_make_failure(seal.round, reason.add(*missing)))
        reason = Reason.of("awaiting-return", size=chosen.size.reason).add(*missing)
        if any(map(view.is_leaving, view.active)):  # whoever ended an agent on purpose may have meant the job
            reason = reason.add(Reason.of("stop-ends-job"))
        return Wait(until, reason, is_limit=True, setting="rejoin_timeout_s")
    until = view.stopped_at + settings.compute_backoff_s(budget.short_rounds)
    if now < until:
        reason = Reason.of("backoff", round=seal.round, before=budget.short_rounds - 1)
        return Wait(until, reason, rule="backoff", setting="backoff_first_s")
    quarantined = [
        Reason.of("node-quarantined", node=view.get_name(m), why=quarantine.reason)
        for m, quarantine in sorted(chosen.quarantined.items())[:4]
    ]
    remark = explain_repetition(budget) if budget.same_failures > view.budget.same_failures else None
    return SealRound(chosen.roster, budget, chosen.size.reason.add(*quarantined), remark)


def _list_missing(view: View) -> list[Reason]:
    """List the nodes of the last round that were lost, and those that have left."""
    lost = [m for m in view.active if m not in view.members and not view.is_leaving(m)]
    left = [m for m in view.active if view.is_leaving(m)]
    found = (
        (lost, Reason.of("nodes-lost", nodes=view.refer_to(lost))),
        (left, Reason.of("nodes-left", nodes=view.refer_to(left))),
    )
    return [reason for member_ids, reason in found if member_ids]


def _end_without_members(view: View) -> EndJob:
    """End the job when every member is leaving and no round runs: the leader writes the verdict."""
    own = view.statuses.get(view.own_id)
    if own is None or not own.status.leaving:
        return _stop_job(view, Reason.of("all-drained"))
    return _stop_job(view, own.status.leaving, own.status.leaving_exit_code or EXIT_TEMPORARY)


def _make_failure(number: int, reason: Reason, exit_code: int = EXIT_TEMPORARY) -> Verdict:
    return Verdict(kind="failure", exit_code=exit_code, round=number, reason=reason)
