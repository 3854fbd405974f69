"""What a round that is gone is charged to, and the verdict when the budget is spent.

The loss or departure of a node costs nothing, and it explains the failures that it causes on its peers. Because
it may be noticed later than they are, a failure waits for an explanation where the answer matters: for a short
time, and for as long as a lost node may remain unnoticed while all that failed were connections to others, or
while some member that could be reached cannot be reached now.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rendezvous.benches import Mark
from rendezvous.budget import Ledger
from rendezvous.decisions import Conclude, Wait
from rendezvous.records import Seal, Stop, Verdict
from rendezvous.settings import Settings
from rendezvous.values import replace
from rendezvous.view import View

EXIT_FAILURE = 1
OTHERS_MAX = 4  # further failures that a verdict carries
OTHER_LENGTH_MAX = 20_000  # longer texts are left out: every agent of a large job reads the verdict


def charged(view: View, seal: Seal, stop: Stop, now: float, settings: Settings) -> Ledger | Wait | Conclude:
    """The budget after this round, unless the job ends with it or it is too early to tell."""
    ledger = view.ledger.trimmed(now, settings)
    departed_at = view.departed_at()
    failures = view.failed()
    if departed_at:
        ledger = _free(view, ledger, departed_at, settings)
    elif any(view.statuses[m].status.is_port_taken for m in failures) and (
        ledger.port_taken_rounds < settings.port_taken_rounds
    ):
        ledger = replace(ledger, port_taken_rounds=ledger.port_taken_rounds + 1)
    elif failures:
        explained_at = _explained_at(view, failures, settings)
        if len(view.active) > 1 and explained_at > now and _must_know(view, failures, ledger, now, settings):
            words = f"round {seal.round} failed: waiting whether a lost node explains it"
            return Wait(explained_at, words, rule="charge put off")
        if _is_spent(view, failures, ledger, now, settings):
            return Conclude(_failure(view, seal, failures, ledger, now, settings))
        failed_at = min(view.statuses[m].failed_at for m in failures)
        ledger = ledger.charge(seal.round, failed_at, now).mark(first_failures=_blamed(view, failures, failed_at))
    else:
        ledger = replace(ledger, port_taken_rounds=0)
    ledger = ledger.settle(now, settings.settle_s)
    is_futile = _is_futile(view, ledger, now, settings)
    ledger = ledger.with_round_of(stop.ran_s, settings, is_futile=is_futile)
    if ledger.short_rounds >= settings.no_progress_rounds:
        reason = f"no progress: {ledger.short_rounds} rounds in a row lasted less than {settings.min_round_time_s:g} s"
        reason += ", or were lost with a node that is lost again and again" if is_futile else ""
        if failures and not departed_at:
            return Conclude(_failure(view, seal, failures, ledger, now, settings, reason))
        return Conclude(Verdict(kind="failure", exit_code=EXIT_FAILURE, round=seal.round, reason=reason))
    return ledger


def _free(view: View, ledger: Ledger, departed_at: Sequence[float], settings: Settings) -> Ledger:
    """A node was lost or left: no charge for this round, nor for one just before that this explains too."""
    if ledger.provisional_round and min(departed_at) - ledger.provisional_since <= settings.settle_s:
        ledger = ledger.refund()
    marks = [Mark(view.nodes[m], view.lost_at[m]) for m in sorted(view.lost()) if m in view.nodes]
    return replace(ledger.mark(losses=marks), port_taken_rounds=0)


def _blamed(view: View, failures: Sequence[str], failed_at: float) -> list[Mark]:
    """The node that failed first, for the bench. Who only lost a connection is not to blame."""
    first = _in_order(view, failures)[0]
    status = view.statuses[first].status
    if status.is_peer_loss or first not in view.nodes:
        return []
    return [Mark(view.nodes[first], failed_at, status.rank)]


def _is_futile(view: View, ledger: Ledger, now: float, settings: Settings) -> bool:
    """Whether the round was lost with a node that is lost again and again, and ran only since there was no other.

    An agent that crashes under ever new member ids makes rounds as long as a lease, which look like progress.
    """
    benches = ledger.benches(settings)
    lost = {view.nodes[m] for m in view.lost() if m in view.nodes}
    return any(node in lost and bench.until > now for node, bench in benches.items())


def _must_know(view: View, failures: Sequence[str], ledger: Ledger, now: float, settings: Settings) -> bool:
    """Whether the next step depends on who is to blame: the budget is spent, or a node may be dying right now."""
    is_spent = _is_spent(view, failures, ledger, now, settings)
    return is_spent or _are_echoes(view, failures) or bool(_unreachable(view))


def _is_spent(view: View, failures: Sequence[str], ledger: Ledger, now: float, settings: Settings) -> bool:
    """Whether no restart may follow: by the job's budget, or by the word of a node that counts on its own."""
    is_final = any(view.statuses[m].status.is_final for m in failures)
    return is_final or ledger.spent(now, settings.restart_window_s) >= settings.max_restarts


def _explained_at(view: View, failures: Sequence[str], settings: Settings) -> float:
    """Until when a loss may still turn up that explains these failures."""
    failed_at = min(view.statuses[m].failed_at for m in failures)
    settled_at = failed_at + settings.settle_s
    if settings.lease_ttl_s == math.inf:
        return settled_at
    unreachable = _unreachable(view)
    if unreachable:  # each of them comes back, loses its lease, or is removed as cut off
        last = min(max(unreachable), failed_at + settings.isolation_s)
        return max(settled_at, last + settings.isolation_s)
    if _are_echoes(view, failures):  # who seems to be reached may only not have been missed yet
        is_everybody_reached = view.reached_count >= view.others_count
        wait_s = settings.silence_s if is_everybody_reached else settings.lease_ttl_s
        return max(settled_at, failed_at + wait_s)
    return settled_at


def _are_echoes(view: View, failures: Sequence[str]) -> bool:
    return all(view.statuses[m].status.is_peer_loss for m in failures)


def _unreachable(view: View) -> list[float]:
    """Since when active members cannot be reached that could be."""
    return [since for m, since in view.unreachable_since.items() if m in view.members and m in view.active]


def _in_order(view: View, failures: Sequence[str]) -> list[str]:
    """The failures in the order in which they were written, connections lost to others last."""
    return sorted(failures, key=lambda m: (view.statuses[m].status.is_peer_loss, view.statuses[m].failed_revision, m))


def _failure(
    view: View, seal: Seal, failures: Sequence[str], ledger: Ledger, now: float, settings: Settings, reason: str = ""
) -> Verdict:
    """The verdict of a failed job: its cause is the failure first written, connections lost to others last."""
    first, *others = _in_order(view, failures)
    cause = view.statuses[first]
    rivals = [m for m in others if view.statuses[m].status.is_peer_loss == cause.status.is_peer_loss]
    spent = ledger.spent(now, settings.restart_window_s)
    budget = f"{spent} of {settings.max_restarts} restarts used" if settings.max_restarts else "no restarts allowed"
    final = [m for m in failures if view.statuses[m].status.is_final]
    if final and spent < settings.max_restarts:
        budget = f"{view.describe(final)} will not restart its workers"
    texts = [view.statuses[m].status.failure for m in others]
    return Verdict(
        kind="failure",
        exit_code=cause.status.exit_code or EXIT_FAILURE,
        round=seal.round,
        reason=reason or f"a worker failed on {view.name(first)} in round {seal.round}, {budget}",
        failure=cause.status.failure,
        is_first_sure=not any(
            abs(view.statuses[m].failed_at - cause.failed_at) <= settings.blame_window_s for m in rivals
        ),
        others=tuple(text for text in texts if 0 < len(text) <= OTHER_LENGTH_MAX)[:OTHERS_MAX],
    )
