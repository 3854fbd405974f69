"""The leader's next action: a pure function of its view, the time and the settings.

A round is sealed, runs, is stopped on all nodes, and only when no process of it is left is the next one sealed. So
there are three situations, told apart by the seal and the stop alone: no round runs (`_decide_between`), one runs
(`_decide_running`), or one is being stopped (`_decide_stopping`). Each decision carries the sentence that people read.

Nothing here knows how large a useful world is: `sizer` answers that for any set of members.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from rendezvous.errors import EXIT_STOPPED, EXIT_TEMPORARY, EXIT_USAGE
from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.candidates import MemberChoice, choose_members, decide_growth, list_staying
from rendezvous.policy.decisions import ApplyCommand, Decision, EndJob, EndRound, Fence, QuitJob, SealRound, Wait
from rendezvous.policy.view import Sizer, View
from rendezvous.records import Command, Seal, Stop, Verdict
from rendezvous.settings import Settings

_PUT_OFF = "omission put off"
TARGET_LENGTH_MAX = 255
PASSED_ON = ("why",)
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
        # Also when a stop came too late, and when some of them are gone by now.
        return EndJob(Verdict(kind="success", exit_code=0, round=seal.round, reason="all workers succeeded"))
    gone = sorted(m for m in view.gone if m in view.members)
    if gone:
        return Fence(tuple(gone), f"{view.describe(gone)} gone: nothing listens there any more", True, "loss proven")
    request = choose_request(view)
    if not isinstance(request, EndJob):
        request = _end_with_store(view) or request
    if isinstance(request, EndJob):  # the next job begins as soon as no member of this one is left
        if perhaps_held := view.list_perhaps_held(now):
            detail = f"after an outage of the store {view.describe(perhaps_held)} may run workers without a membership"
            sentence = f"waiting before the job is stopped: {detail}"
            return Wait(view.no_omission_before, sentence, rule=_PUT_OFF, setting="lease_ttl_s")
        if unaware := view.list_unaware(now):
            return _wait_for_unaware(view, unaware, "the job is stopped")
    if request is not None:
        return request
    if view.is_leaving(view.own_id) and view.is_idle(view.own_id) and list_staying(view) and not _must_end_first(view):
        return QuitJob("this node leaves, another will lead")
    isolated = _find_isolated(view, now, settings)
    if isolated and _is_leader_isolated(view):
        if seal is None or view.is_idle(view.own_id):
            return QuitJob(_describe_isolated_leader(view))
    else:
        idle = [m for m in isolated if seal is None or m not in view.active or view.has_stopped(m)]
        if idle:
            return Fence(tuple(idle), _describe_isolated(view, idle, settings), rule="isolated member")
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
    if settings.lease_ttl_s == math.inf:
        return []
    since = view.unreachable_since
    return sorted(m for m, at in since.items() if m in view.members and now >= at + settings.isolation_s)


# docs/internals/decisions/agreement.md#0014-isolated-leader-steps-down
def _is_leader_isolated(view: View) -> bool:
    """Return whether the leader is the isolated one, because it reaches fewer than half of the other members."""
    return 2 * view.reached_count < view.others_count


def _describe_isolated_leader(view: View) -> str:
    return (
        f"{view.get_name(view.own_id)} leads, but reaches only {view.reached_count} of {view.others_count} other nodes"
    )


def _describe_isolated(view: View, member_ids: Sequence[str], settings: Settings) -> str:
    return f"{view.describe(member_ids)} cut off: the store is reached, but no peer for {settings.isolation_s:g} s"


# --- requests made with meshctl ---


def choose_request(view: View) -> EndJob | ApplyCommand | None:
    """Return the decision on the oldest request of a person; None if there is none.

    It is deleted in the transaction that does what it asks for. A request that cannot be met is answered with a
    sentence, which the requester reads from the same key.
    """
    for token, command in view.commands.items():
        match command.kind:
            case "stop":
                return EndJob(_make_stop_verdict(view, command), token)
            case "drain":
                return _answer_drain(view, token, command.target)
            case "undrain":
                if command.target in view.drained:
                    return ApplyCommand(token, undrain=command.target)
                drained = ", ".join(sorted(view.drained)) or "none"
                return ApplyCommand(token, answer=f"{command.target} is not drained; drained: {drained}")
            case "takeover":
                return ApplyCommand(token, answer=f"this job has a leader, on node {view.get_name(view.own_id)}")
            case kind if kind in PASSED_ON:
                if view.answers.get(token):
                    return ApplyCommand(token, answer=view.answers[token])
            case kind:
                return ApplyCommand(token, answer=f"{kind!r} is no request that meshrun knows")
    return None


def _end_with_store(view: View) -> EndJob | None:
    """End the job if the member that serves the store leaves: no member could go on, and a later one would find none.

    So its departure is for all what `meshctl stop` is.
    """
    host = view.store_host
    if not host or not view.is_leaving(host):
        return None
    own = view.statuses.get(host)
    why = f": {own.status.leaving}" if own is not None and own.status.leaving else ""
    reason = f"{view.describe([host])} serves the job's store and leaves{why}"
    return EndJob(
        Verdict(kind="stopped", exit_code=EXIT_STOPPED, round=view.seal.round if view.seal else 0, reason=reason)
    )


def _make_stop_verdict(view: View, command: Command) -> Verdict:
    by = f" of {command.by}" if command.by else ""
    number = view.seal.round if view.seal else 0
    return Verdict(kind="stopped", exit_code=EXIT_STOPPED, round=number, reason=f"stopped at the request{by}")


def _answer_drain(view: View, token: str, target: str) -> ApplyCommand:
    """Drain a node by name, whether it has joined or not; by member id where two nodes have the same name."""
    if not 0 < len(target) <= TARGET_LENGTH_MAX or not target.isprintable() or "/" in target:
        return ApplyCommand(token, answer="a node to drain is named by its name or its member id")
    if target and view.store_host in (target, *_find_by_name(view, target)):
        return ApplyCommand(
            token, answer=f"{target} serves the job's store, which ends with it: meshctl stop ends the job"
        )
    if target in view.members:
        name = view.members[target].member.node_name
        return ApplyCommand(token, drain=name if len(_find_by_name(view, name)) == 1 else target)
    matches = _find_by_name(view, target)
    if len(matches) > 1:
        return ApplyCommand(
            token, answer=f"{len(matches)} nodes are called {target}: give a member id, {' or '.join(matches)}"
        )
    return ApplyCommand(token, drain=target)


def _find_by_name(view: View, name: str) -> list[str]:
    return sorted(member_id for member_id, member in view.members.items() if member.member.node_name == name)


# --- no round was sealed yet ---


def _decide_first_round(view: View, now: float, settings: Settings, sizer: Sizer) -> Decision:
    candidates = list_staying(view)
    if not candidates:
        return _end_without_members(view, 0)
    size = sizer(candidates)
    chosen = MemberChoice(candidates, size, {})
    if size.is_full:
        return SealRound(chosen.roster, view.budget, size.reason)
    give_up_at = view.opened_at + settings.start_timeout_s
    if size.world_size == 0:
        if size.is_complete:
            return EndJob(_make_failure(0, f"no world can be formed: {size.reason}", EXIT_USAGE))
        if now >= give_up_at:
            reason = f"not enough nodes within {settings.start_timeout_s:g} s: {size.reason}"
            return EndJob(_make_failure(0, reason))
        return Wait(give_up_at, f"waiting for nodes: {size.reason}", setting="start_timeout_s")
    if settings.target_nodes:
        note = f"{len(candidates)} of the {settings.target_nodes} nodes asked for are here"
        if len(candidates) >= settings.target_nodes:
            return SealRound(chosen.roster, view.budget, f"{size.reason}; {note}")
        if now >= give_up_at:
            return SealRound(chosen.roster, view.budget, f"{size.reason}; after {settings.start_timeout_s:g} s {note}")
        return Wait(give_up_at, f"waiting for more nodes: {note}", setting="start_timeout_s")
    until = max(candidate.seen_at for candidate in candidates) + settings.join_grace_s
    if now >= until:
        return SealRound(
            chosen.roster, view.budget, f"{size.reason}; no node has joined for {settings.join_grace_s:g} s"
        )
    return Wait(until, f"waiting for more nodes: {size.reason}", setting="join_grace_s")


# --- a round runs ---


def _decide_running(
    view: View, seal: Seal, isolated: Sequence[str], now: float, settings: Settings, sizer: Sizer
) -> Decision:
    doubtful = set(view.list_doubtful(now))
    lost = [m for m in view.list_lost() if m not in doubtful]
    if lost:
        return EndRound(
            "kill", f"{view.describe(lost)} lost in round {seal.round}", "loss", nodes=view.list_names(lost)
        )
    if isolated and _is_leader_isolated(view) and view.is_pending(view.own_id):
        return EndRound(
            "kill",
            f"{_describe_isolated_leader(view)} in round {seal.round}",
            "isolation",
            "isolated leader",
            view.list_names([view.own_id]),
        )
    unreachable = [m for m in isolated if view.is_pending(m)]
    if unreachable and not _is_leader_isolated(view):
        detail = _describe_isolated(view, unreachable, settings)
        return EndRound(
            "kill", f"{detail} in round {seal.round}", "isolation", "isolated member", view.list_names(unreachable)
        )
    leaving = [m for m in view.active if view.is_leaving(m) and view.is_pending(m)]
    failed = view.list_failed()
    if failed:
        # A worker inside a collective with a worker of a leaving node fails; people look for the cause.
        cause = f"{view.describe(leaving)} leaving, and " if leaving else ""
        return EndRound(
            "kill",
            f"{cause}a worker failed on {view.describe(failed)} in round {seal.round}",
            "failure",
            nodes=view.list_names(failed),
        )
    if leaving:
        until = min(view.get_leaving_at(m) for m in leaving) + settings.leave_settle_s
        everybody_leaves = all(view.is_leaving(m) for m in view.members)
        if now >= until or everybody_leaves:
            return EndRound(
                "grace",
                f"{view.describe(leaving)} leaving in round {seal.round}",
                "leaving",
                nodes=view.list_names(leaving),
            )
        return Wait(until, f"gathering departures of round {seal.round}")
    if doubtful:
        return Wait(
            view.no_omission_before,
            f"{_describe_doubtful(view, doubtful)} in round {seal.round}",
            rule=_PUT_OFF,
            setting="lease_ttl_s",
        )
    return decide_growth(view, seal, now, settings, sizer)


def _describe_doubtful(view: View, doubtful: Collection[str]) -> str:
    return f"waiting for {view.describe(doubtful)} to register again after an outage of the store"


def _wait_for_unaware(view: View, unaware: Sequence[str], what: str) -> Wait:
    until = max(view.unaware_until[m] for m in unaware)
    detail = f"{view.describe(unaware)} lost the membership while connected, and may still run workers"
    return Wait(until, f"waiting before {what}: {detail}", setting="lease_ttl_s")


# --- it is being stopped ---


def _decide_stopping(view: View, stop: Stop, unstopped: Sequence[str], now: float, settings: Settings) -> Decision:
    until = view.stopped_at + settings.compute_gone_within_s(stop.mode)
    if now < until:
        sentence = f"stopping round {stop.round} ({stop.reason}): waiting for {view.describe(unstopped)}"
        return Wait(until, sentence, setting="stop_limit_s")
    others = tuple(m for m in unstopped if m != view.own_id)
    if not others:
        return QuitJob(f"this node has not stopped round {stop.round} in time")
    verb = "has" if len(others) == 1 else "have"
    return Fence(others, f"{view.describe(others)} {verb} not stopped round {stop.round} in time", rule="fenced")


# --- it is gone everywhere ---


def _decide_between(view: View, seal: Seal, stop: Stop, now: float, settings: Settings, sizer: Sizer) -> Decision:
    """Charge the round that ended, then choose the members of the next."""
    doubtful = set(view.list_doubtful(now))
    if doubtful:
        return Wait(
            view.no_omission_before,
            f"{_describe_doubtful(view, doubtful)} before the next round",
            rule=_PUT_OFF,
            setting="lease_ttl_s",
        )
    if unaware := view.list_unaware(now):
        return _wait_for_unaware(view, unaware, "the next round")
    from rendezvous.policy.charge import charge_round, describe_repetition  # not before the first worker

    budget = charge_round(view, seal, stop, now, settings)
    if not isinstance(budget, RestartBudget):
        return budget
    if not list_staying(view):
        return _end_without_members(view, seal.round)
    chosen = choose_members(view, budget, now, settings, sizer)
    if chosen.size.world_size == 0:
        until = view.stopped_at + settings.rejoin_timeout_s
        detail = f"{chosen.size.reason}{_describe_missing(view)}"
        if now >= until:
            reason = f"too few nodes came back within {settings.rejoin_timeout_s:g} s: {detail}"
            return EndJob(_make_failure(seal.round, reason))
        # Whoever ended an agent on purpose may have meant the job.
        advice = "; meshctl stop ends the job" if any(map(view.is_leaving, view.active)) else ""
        return Wait(
            until, f"waiting for nodes to come back: {detail}{advice}", is_limit=True, setting="rejoin_timeout_s"
        )
    until = view.stopped_at + settings.compute_backoff_s(budget.short_rounds)
    if now < until:
        detail = f"round {seal.round} was short, as {budget.short_rounds - 1} before it: pausing"
        return Wait(until, detail, rule="backoff", setting="backoff_first_s")
    quarantined = [f"; {view.get_name(m)}: {quarantine.reason}" for m, quarantine in sorted(chosen.quarantined.items())]
    remark = describe_repetition(budget) if budget.same_failures > view.budget.same_failures else ""
    return SealRound(chosen.roster, budget, chosen.size.reason + "".join(quarantined[:4]), remark)


def _describe_missing(view: View) -> str:
    """Name the nodes of the last round that were lost or have left."""
    text = ""
    for what, missing in (
        ("lost", [m for m in view.active if m not in view.members and not view.is_leaving(m)]),
        ("left", [m for m in view.active if view.is_leaving(m)]),
    ):
        text += f"; {what}: {view.describe(missing)}" if missing else ""
    return text


def _end_without_members(view: View, number: int) -> Decision:
    """End the job when every member is leaving and no round runs: the leader writes the verdict."""
    own = view.statuses.get(view.own_id)
    if own is None or not own.status.leaving:
        return EndJob(Verdict(kind="stopped", exit_code=EXIT_STOPPED, round=number, reason="every node is drained"))
    exit_code = own.status.leaving_exit_code or EXIT_TEMPORARY
    return EndJob(Verdict(kind="stopped", exit_code=exit_code, round=number, reason=own.status.leaving))


def _make_failure(number: int, reason: str, exit_code: int = EXIT_TEMPORARY) -> Verdict:
    return Verdict(kind="failure", exit_code=exit_code, round=number, reason=reason)
