"""What a seal must contain of the restart budget and of strikes, computed by other means than the protocol does.

A seal carries ages. To each of them, as it is written there, the writer of the next one adds the time since it first
learned of that seal, so no error of rounding is carried over unseen; what is new must be explained by an event of the
round in between.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from rendezvous.records import Seal
from rendezvous.settings import Settings
from tests.simulation.invariants.history import Checks, RoundRecord, SealRequest

ROUNDED_S = 0.00051
"""An age is written to the millisecond, half of one off at most; the rest is for sums of floats. Where two ages of one
seal are compared, it is twice as much."""


class BudgetChecks(Checks):
    def check(self, seal: Seal, last: RoundRecord, request: SealRequest, lost: Collection[str]) -> None:
        """Compare a seal with the one before and the events of its round. `lost`: members gone without leaving."""
        prior, settings = last.seal, self._settings
        elapsed_s = request.at - request.seal_seen_at
        charged = seal.restart_count - prior.restart_count
        if len(seal.charge_ages_s) != seal.restart_count:
            self.fail("S5", f"{seal.restart_count} restarts, {len(seal.charge_ages_s)} times of them")
        carried = [age + elapsed_s for age in prior.charge_ages_s]
        if charged < 0:
            carried = carried[:charged]
        self._compare("S5", "charges", seal.charge_ages_s[: len(carried)], carried)
        # A charge is made at the moment of the decision, so its age gives the time of the decision.
        decided_at = request.at - seal.charge_ages_s[-1] if charged > 0 else request.at
        if charged > 0:
            self._check_charged(seal, last, request, decided_at)
        since = request.seal_seen_at - prior.provisional_age_s
        self._check_provisional(seal, last, request, charged, decided_at, since)
        self._check_ports(seal, last, charged)
        fresh_losses = self._check_losses(seal, last, request, elapsed_s, lost)
        blamed = self._find_new(seal.blamed, [(node, age + elapsed_s) for node, age in prior.blamed], "nodes at fault")
        if blamed and charged != 1:
            self.fail("S5", f"{blamed} are newly at fault with {charged} restarts charged")
        self._check_failures(seal, last, request, elapsed_s, charged, decided_at)
        # It was decided when the round was stopped: a quarantine may have ended since.
        nodes = {node for node, _ in fresh_losses}
        futile = [
            bool(nodes & list_quarantined(seal, settings, ago_s).keys())
            for ago_s in (0.0, request.at - request.stop_seen_at)
        ]
        ran_s = last.stop.ran_s if last.stop is not None else 0.0
        wanted = {
            prior.short_rounds + 1 if is_futile or ran_s < settings.min_round_time_s else 0 for is_futile in futile
        }
        if seal.short_rounds not in wanted:
            words = f"{seal.short_rounds} short rounds after {prior.short_rounds} and one of {ran_s:g} s"
            self.fail("S5", f"{words}, a node lost again and again: {futile}")
        if seal.short_rounds >= settings.no_progress_rounds:
            self.fail("S5", f"round {seal.round} is sealed after {seal.short_rounds} short ones")
        if seal.stuck_rounds > prior.stuck_rounds and (charged != 1 or seal.stuck_rounds >= settings.stuck_rounds):
            self.fail(
                "S5", f"{seal.stuck_rounds} rounds without progress after {prior.stuck_rounds}, {charged} charged"
            )
        if seal.short_rounds >= 2:
            pause_s = min(settings.backoff_first_s * 2 ** (seal.short_rounds - 2), settings.backoff_max_s)
            if request.at < request.stop_seen_at + pause_s - ROUNDED_S:
                self.fail(
                    "S5", f"{seal.short_rounds} short rounds, and a pause of {request.at - request.stop_seen_at:g} s"
                )

    def _compare(self, letter: str, what: str, found: Sequence[float], wanted: Sequence[float]) -> None:
        if len(found) != len(wanted) or any(abs(a - b) > ROUNDED_S for a, b in zip(found, wanted, strict=False)):
            self.fail(letter, f"the ages of {what} are {list(found)}, they should be {wanted}")

    def _check_charged(self, seal: Seal, last: RoundRecord, request: SealRequest, decided_at: float) -> None:
        settings = self._settings
        ages = [age - (request.at - decided_at) for age in seal.charge_ages_s[:-1]]
        spent = sum(1 for age in ages if age <= settings.restart_window_s - 2 * ROUNDED_S)
        if spent >= settings.max_restarts:
            self.fail("S5", f"restart {spent + 1} within the window, {settings.max_restarts} are allowed")
        departed = [m for m in last.active - last.succeeded if request.gone.get(m, math.inf) < decided_at - ROUNDED_S]
        if departed:
            self.fail("S5", f"round {last.seal.round} is charged though {len(departed)} of its members are known gone")
        if not last.failed_at:
            self.fail("S5", f"round {last.seal.round} is charged, and nobody had failed")

    def _check_provisional(
        self, seal: Seal, last: RoundRecord, request: SealRequest, charged: int, decided_at: float, since: float
    ) -> None:
        """A charge may be refunded for `settle_s` after its failure, at `since`, and no longer."""
        prior, settle_s = last.seal, self._settings.settle_s
        if charged < 0:
            first_s = min(last.departed_at.values(), default=math.inf) - since
            if charged < -1 or not prior.provisional_round or first_s > settle_s + ROUNDED_S:
                self.fail("S5", f"{-charged} restarts given back {first_s:g} s after round {prior.provisional_round}")
        failed_at = min(last.failed_at.values(), default=math.inf)
        if seal.provisional_round == last.seal.round and charged == 1:
            age_s = seal.provisional_age_s - (request.at - decided_at)
            if age_s > settle_s + 2 * ROUNDED_S or request.at - seal.provisional_age_s < failed_at - ROUNDED_S:
                self.fail("S5", f"the charge of round {last.seal.round} is provisional after {age_s:g} s")
        elif seal.provisional_round:
            if charged or seal.provisional_round != prior.provisional_round:
                self.fail("S5", f"round {seal.provisional_round} is provisional, {charged} charged")
            self._compare("S5", "the provisional charge", [request.at - seal.provisional_age_s], [since])
            if request.stop_seen_at - since > settle_s + ROUNDED_S:
                self.fail("S5", f"the charge of round {seal.provisional_round} is provisional for ever")
        elif charged == 1 and decided_at - failed_at <= settle_s - ROUNDED_S:
            self.fail("S5", f"the charge of round {last.seal.round} is final {decided_at - failed_at:g} s after it")
        elif not charged and prior.provisional_round and request.at - since <= settle_s - ROUNDED_S:
            self.fail("S5", f"the charge of round {prior.provisional_round} is final {request.at - since:g} s after it")

    def _check_ports(self, seal: Seal, last: RoundRecord, charged: int) -> None:
        count, before = seal.port_taken_rounds, last.seal.port_taken_rounds
        is_free = count == before + 1 and not charged and last.is_port_taken
        if last.is_port_taken and not charged and not last.departed and not is_free:
            self.fail("S5", f"{count} rounds in a row with a port taken after {before}, and another one")
        if count and not (is_free and count <= self._settings.port_taken_rounds):
            self.fail("S5", f"{count} rounds in a row with a port taken after {before}, {charged} charged")

    def _check_losses(
        self, seal: Seal, last: RoundRecord, request: SealRequest, elapsed_s: float, lost: Collection[str]
    ) -> list[tuple[str, float]]:
        """Check the strikes for losses; those that are new in this seal."""
        carried = [(node, age + elapsed_s) for node, age in last.seal.losses]
        fresh = self._find_new(seal.losses, carried, "losses")
        for node, age_s in fresh:
            went = min((at for m, at in last.departed_at.items() if self.find_node_name(m) == node), default=math.inf)
            if went > request.at - age_s + ROUNDED_S:
                self.fail("S5", f"{node} is said to be lost {age_s:g} s ago, it departed at {went:.3f}")
        marked = {node for node, _ in fresh}
        for member_id in (last.active - last.succeeded) & set(lost):
            is_known = request.gone.get(member_id, math.inf) < request.stop_seen_at
            if is_known and self.find_node_name(member_id) not in marked:
                self.fail("S5", f"{self.find_node_name(member_id)} was lost, and no mark is in the seal: {fresh}")
        return fresh

    def _check_failures(
        self, seal: Seal, last: RoundRecord, request: SealRequest, elapsed_s: float, charged: int, decided_at: float
    ) -> None:
        before = last.seal.first_failures
        if charged < 0:
            before = tuple(mark for mark in before if mark[2] > last.seal.provisional_age_s)
        carried = [(f"{node} #{rank}", age + elapsed_s) for node, rank, age in before]
        now = [(f"{node} #{rank}", age) for node, rank, age in seal.first_failures]
        fresh = self._find_new(now, carried, "first failures")
        if len(fresh) > 1 or (fresh and charged != 1):
            self.fail("S9", f"{fresh} are new first failures with {charged} restarts charged")
        failed = {m: s for m, s in last.statuses.items() if s.outcome == "failed" and m in last.active}
        known = [m for m in failed if request.statuses.get(m, math.inf) <= decided_at]
        if charged == 1 and known and len(known) == len(failed):
            first = min(
                known, key=lambda m: (not failed[m].is_node_fault, failed[m].is_peer_loss, last.failed_revisions[m])
            )
            status = failed[first]
            wanted = (
                [] if status.is_peer_loss or status.is_node_fault else [f"{self.find_node_name(first)} #{status.rank}"]
            )
            if [name for name, _ in fresh] != wanted:
                self.fail("S9", f"blamed are {fresh}, the first failure was {wanted}")

    def _find_new(
        self, found: Sequence[tuple[str, float]], carried: Sequence[tuple[str, float]], what: str
    ) -> list[tuple[str, float]]:
        """The strikes after those that were carried over; only one too old to count again may be missing of these."""
        rest, limit_s = list(found), self._settings.quarantine_window_s + self._settings.quarantine_max_s
        for name, age in carried:
            if rest and rest[0][0] == name and abs(rest[0][1] - age) <= ROUNDED_S:
                rest.pop(0)
            elif age <= limit_s - ROUNDED_S:
                self.fail("S5", f"of the {what} {name}, {age:g} s ago, is missing in {found}")
        return rest


def list_quarantined(seal: Seal, settings: Settings, ago_s: float = 0.0) -> dict[str, float]:
    """The nodes in quarantine by the strikes in a seal, at its time or `ago_s` before it, and for how much longer."""
    found: dict[str, float] = {}
    ranks: dict[int, set[str]] = {}
    for node, rank, _ in seal.first_failures:
        ranks.setdefault(rank, set()).add(node)
    own = [(node, age) for node, rank, age in seal.first_failures if rank < 0 or len(ranks[rank]) < 2]
    for marks, limit in ((seal.losses, settings.flap_limit), (own, settings.quarantine_failures), (seal.blamed, 1)):
        for node in {node for node, _ in marks}:
            ages = sorted(age for name, age in marks if name == node)
            count = sum(1 for age in ages if age - ages[0] <= settings.quarantine_window_s + 2 * ROUNDED_S)
            if limit and count >= limit:
                length_s = min(settings.quarantine_first_s * 2 ** (count - limit), settings.quarantine_max_s)
                left_s = length_s - ages[0] + ago_s
                if left_s > 0:
                    found[node] = max(left_s, found.get(node, 0.0))
    return found
