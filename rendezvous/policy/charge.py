"""What a round that has ended is charged to, and the verdict when the budget is spent.

Free are: the loss or departure of a node, which also explains the failures that it causes on its peers; a worker port
that was taken, a few times in a row; and what ends a round without a failure, such as growth. All else is charged, also
a failure that a worker blames on its node. Because a loss may be noticed later than what it causes, a failure waits for
an explanation where the answer matters. The job ends when its budget is spent, or before that where a restart would not
help.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from rendezvous.errors import EXIT_FAILURE, EXIT_USELESS
from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.decisions import EndJob, Wait
from rendezvous.policy.quarantine import Strike
from rendezvous.policy.view import View
from rendezvous.reasons import Reason
from rendezvous.records import Seal, Stop, Verdict
from rendezvous.settings import Settings

OTHERS_MAX = 4  # further failures that a verdict carries
OTHER_LENGTH_MAX = 20_000  # longer texts are left out: every agent of a large job reads the verdict
SAME_FAILURES_TOLD = 3  # in a row, from which on it is said that the same rank fails in the same way


# docs/internals/decisions/agreement.md#0002-provisional-charge-of-failures
def charge_round(view: View, seal: Seal, stop: Stop, now: float, settings: Settings) -> RestartBudget | Wait | EndJob:
    """Return the budget after this round, a Wait while it is too early to tell, or EndJob if the job ends with it."""
    budget = view.budget.trim(now, settings)
    departed_at = view.list_departure_times()
    failures = view.list_failed()
    if departed_at:  # before any failure, which it explains
        budget = _excuse_departure(view, budget, departed_at, settings)
    elif any(view.statuses[m].status.is_port_taken for m in failures) and (
        budget.port_taken_rounds < settings.port_taken_rounds
    ):  # no fault of the workers, and the next round has another port; but not without end
        budget = replace(budget, port_taken_rounds=budget.port_taken_rounds + 1)
    elif failures:
        is_node_fault = any(view.statuses[m].status.is_node_fault for m in failures)
        budget = budget.note_step(_find_step(view), has_failed=not is_node_fault)
        budget = budget.note_failure(*_identify_failure(view, failures))
        explained_at = _find_cause_deadline(view, failures, settings)
        # The loss of a node is noticed later than the sockets that it breaks, and would make this failure free.
        if len(view.active) > 1 and explained_at > now and must_await_cause(view, failures, budget, now, settings):
            return Wait(explained_at, Reason.of("checking-cause", round=seal.round), rule="charge put off")
        if _is_spent(view, failures, budget, now, settings):
            return EndJob(_make_failure(view, seal, failures, budget, now, settings))
        failed_at = min(view.statuses[m].failed_at for m in failures)
        blamed = _find_blamed(view, failures)
        culprits = () if blamed else _find_culprits(view, failures, failed_at)
        budget = budget.charge(seal.round, failed_at, now)
        first_failures = (*budget.first_failures, *culprits)
        budget = replace(budget, first_failures=first_failures, blamed=(*budget.blamed, *blamed))
    else:
        budget = replace(budget, port_taken_rounds=0)
    if departed_at or not failures:
        budget = budget.note_step(_find_step(view), has_failed=False)
    budget = budget.settle(now, settings.settle_s)
    is_futile = _is_futile(view, budget, now, settings)
    budget = budget.add_round(stop.ran_s, settings, is_futile=is_futile)
    if budget.short_rounds >= settings.no_progress_rounds:
        rounds, least_s = budget.short_rounds, settings.min_round_time_s
        reason = Reason.of("short-rounds", rounds=rounds, least_s=least_s, is_futile=is_futile)
        if failures and not departed_at:
            return EndJob(_make_failure(view, seal, failures, budget, now, settings, reason))
        return EndJob(Verdict(kind="failure", exit_code=EXIT_FAILURE, round=seal.round, reason=reason))
    return budget


def _excuse_departure(
    view: View, budget: RestartBudget, departed_at: Sequence[float], settings: Settings
) -> RestartBudget:
    """Charge nothing for a round that a node was lost from or left, and refund a charge that this explains."""
    if budget.provisional_round and min(departed_at) - budget.provisional_since <= settings.settle_s:
        budget = budget.refund()
    strikes = [Strike(view.nodes[m], view.lost_at[m]) for m in sorted(view.list_lost()) if m in view.nodes]
    return replace(budget, losses=(*budget.losses, *strikes), port_taken_rounds=0)


def _find_culprits(view: View, failures: Sequence[str], failed_at: float) -> list[Strike]:
    """Return a strike for the node that failed first.

    None if its failure was only a lost connection to a peer, or no rank is known as its cause.
    """
    first = sort_failures(view, failures)[0]
    status = view.statuses[first].status
    if status.is_peer_loss or (status.failure and status.rank < 0) or first not in view.nodes:
        return []
    return [Strike(view.nodes[first], failed_at, status.rank)]


def _find_blamed(view: View, failures: Sequence[str]) -> list[Strike]:
    """Return a strike for each node whose own worker has said that it is at fault."""
    found = ((m, view.statuses[m]) for m in sort_failures(view, failures) if m in view.nodes)
    return [Strike(view.nodes[m], each.failed_at) for m, each in found if each.status.is_node_fault]


def _find_step(view: View) -> int:
    """Return the highest training step that a worker of the round reported; -1 for none."""
    stopped = (view.statuses[m].status for m in view.active if m in view.statuses and view.has_stopped(m))
    return max((status.step for status in stopped), default=-1)


def _identify_failure(view: View, failures: Sequence[str]) -> tuple[int, Reason | None]:
    """Return which rank failed first and how; None if that is unknown, or was only a lost connection to a peer."""
    status = view.statuses[sort_failures(view, failures)[0]].status
    is_known = not status.is_peer_loss and status.failure_class and status.rank >= 0
    return (status.rank, status.failure_class) if is_known else (-1, None)


def explain_repetition(budget: RestartBudget) -> Reason | None:
    """Return the remark that the same rank fails in the same way; None if it does not."""
    if budget.same_failure is None or budget.same_failures < SAME_FAILURES_TOLD:
        return None
    rank, failure_class = budget.same_rank, budget.same_failure
    return Reason.of("same-failure", rank=rank, failure_class=failure_class, times=budget.same_failures)


def _is_futile(view: View, budget: RestartBudget, now: float, settings: Settings) -> bool:
    """Return whether the round was lost with a node that is lost repeatedly, and used only because there was no other.

    An agent that crashes under ever new member ids makes rounds as long as a lease, which look like progress.
    """
    quarantines = budget.find_quarantines(settings)
    lost = {view.nodes[m] for m in view.list_lost() if m in view.nodes}
    return any(node in lost and quarantine.until > now for node, quarantine in quarantines.items())


def must_await_cause(
    view: View, failures: Sequence[str], budget: RestartBudget, now: float, settings: Settings
) -> bool:
    """Return whether the next step depends on the cause: the budget is spent, or a node may be failing right now."""
    is_spent = _is_spent(view, failures, budget, now, settings)
    return is_spent or _are_secondary(view, failures) or bool(_list_unreachable(view))


def _is_spent(view: View, failures: Sequence[str], budget: RestartBudget, now: float, settings: Settings) -> bool:
    """Return whether no restart may follow: by the job's budget, a final failure, or for want of progress."""
    # A worker has given up, or no round got further for too long: a restart would not help.
    is_final = any(view.statuses[m].status.is_final for m in failures) or _is_stuck(budget, settings)
    return is_final or budget.count_spent(now, settings.restart_window_s) >= settings.max_restarts


def _is_stuck(budget: RestartBudget, settings: Settings) -> bool:
    return 0 < settings.stuck_rounds <= budget.stuck_rounds


def _find_cause_deadline(view: View, failures: Sequence[str], settings: Settings) -> float:
    """Return until when a loss that explains these failures may still be noticed."""
    failed_at = min(view.statuses[m].failed_at for m in failures)
    settled_at = failed_at + settings.settle_s
    if settings.lease_ttl_s == math.inf:
        return settled_at
    unreachable = _list_unreachable(view)
    if unreachable:  # each of them reconnects, loses its lease, or is removed as isolated
        last = min(max(unreachable), failed_at + settings.isolation_s)
        return max(settled_at, last + settings.isolation_s)
    if _are_secondary(view, failures):  # the loss of a member that counts as reached may not be noticed yet
        is_everybody_reached = view.reached_count >= view.others_count
        wait_s = settings.silence_s if is_everybody_reached else settings.lease_ttl_s
        return max(settled_at, failed_at + wait_s)
    return settled_at


def _are_secondary(view: View, failures: Sequence[str]) -> bool:
    return all(view.statuses[m].status.is_peer_loss for m in failures)


def _list_unreachable(view: View) -> list[float]:
    """List since when each active member is unreachable that was reached before."""
    return [since for m, since in view.unreachable_since.items() if m in view.members and m in view.active]


def sort_failures(view: View, failures: Sequence[str]) -> list[str]:
    """Sort failures in the order in which they were written, lost connections to peers last.

    What a worker said by itself comes first: the failures of its peers may be written earlier.
    """

    def make_key(member_id: str) -> tuple[bool, bool, int, str]:
        status = view.statuses[member_id].status
        is_told = bool(status.final_reason) or status.is_node_fault
        return not is_told, status.is_peer_loss, view.statuses[member_id].failed_revision, member_id

    return sorted(failures, key=make_key)


def _make_failure(
    view: View,
    seal: Seal,
    failures: Sequence[str],
    budget: RestartBudget,
    now: float,
    settings: Settings,
    reason: Reason | None = None,
) -> Verdict:
    """Make the verdict of a failed job. Its cause is the failure written first; lost connections to peers come last."""
    first, *others = sort_failures(view, failures)
    cause = view.statuses[first]
    rivals = [m for m in others if view.statuses[m].status.is_peer_loss == cause.status.is_peer_loss]
    spent = budget.count_spent(now, settings.restart_window_s)
    use = Reason.of("restarts-used", used=spent, allowed=settings.max_restarts)
    final = [m for m in failures if view.statuses[m].status.is_final]
    exit_code = cause.status.exit_code or EXIT_FAILURE
    if cause.status.final_reason:
        use = Reason.of("restart-useless", why=cause.status.final_reason)
    elif final and spent < settings.max_restarts:
        use = Reason.of("restart-declined", nodes=view.refer_to(final))
    elif _is_stuck(budget, settings) and reason is None:
        exit_code = EXIT_USELESS
        reason = Reason.of("stuck", rounds=budget.stuck_rounds, step=budget.best_step)
    reason = reason or Reason.of("worker-failed", node=view.get_name(first), round=seal.round, use=use)
    repetition = explain_repetition(budget)
    texts = [view.statuses[m].status.failure for m in others]
    return Verdict(
        kind="failure",
        exit_code=exit_code,
        round=seal.round,
        reason=reason.add(repetition) if repetition is not None else reason,
        failure=cause.status.failure,
        is_first_sure=not any(
            abs(view.statuses[m].failed_at - cause.failed_at) <= settings.blame_window_s for m in rivals
        ),
        others=tuple(text for text in texts if 0 < len(text) <= OTHER_LENGTH_MAX)[:OTHERS_MAX],
    )
