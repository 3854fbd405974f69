"""The checker has no blind spot where it says that it looks: each bug planted here is found, and by its letter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from rendezvous.events import ExtendWatchdog
from rendezvous.leader import commit
from rendezvous.leader.election import Election
from rendezvous.member.lease import LeaseKeeper
from rendezvous.member.leave import Leave
from rendezvous.member.round import LocalRound
from rendezvous.peers.liveness import PeerLiveness
from rendezvous.policy import budget, charge
from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.view import View
from rendezvous.records import Verdict
from rendezvous.state.request_queue import RequestQueue
from rendezvous.state.watch_cache import WatchCache
from rendezvous.testing import simulate

SEEDS = 130  # each is found within so many


def _free_failures(patch: pytest.MonkeyPatch) -> None:
    def charge(self: RestartBudget, round: int, failed_at: float, now: float) -> RestartBudget:
        return self

    patch.setattr(RestartBudget, "charge", charge)


def _first_port_for_ever(patch: pytest.MonkeyPatch) -> None:
    candidate = commit.RoundCommit._make_roster_member

    def with_one_port(self: commit.RoundCommit, view: View, member_id: str) -> Any:
        return candidate(self, view, member_id)._replace(worker_port=20_000)

    patch.setattr(commit.RoundCommit, "_make_roster_member", with_one_port)


def _lost_watches(patch: pytest.MonkeyPatch) -> None:
    """Nobody reads again what a watch covered that has ended, neither at once nor with the next look."""
    look_again = WatchCache.resync

    def look_at_the_watched(self: WatchCache, now: float, looked: Callable[[float], None]) -> None:
        followed = self._watched
        self._watched = followed - self._lost_watches
        look_again(self, now, looked)
        self._watched = followed

    patch.setattr(WatchCache, "_rewatch", lambda self, key, now: None)
    patch.setattr(WatchCache, "resync", look_at_the_watched)


def _watches_left_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WatchCache, "unwatch", lambda self, *keys: None)


def _last_failure_blamed(patch: pytest.MonkeyPatch) -> None:
    in_order = charge._sort_failures
    patch.setattr(charge, "_sort_failures", lambda view, failures: in_order(view, failures)[::-1])


def _restless(patch: pytest.MonkeyPatch) -> None:
    """It asks to be woken at once, as a lane does that is not paused."""
    wake = RequestQueue.wake_by
    patch.setattr(RequestQueue, "wake_by", lambda self, at: wake(self, at - 0.5))


def _own_membership_unnamed(patch: pytest.MonkeyPatch) -> None:
    ask = RequestQueue.request

    def unguarded(self: RequestQueue, lane: str, why: str, request: Any, *rest: Any) -> None:
        if lane == "lead" and hasattr(request, "compares"):
            request = request._replace(compares=tuple(c for c in request.compares if "/members/" not in c.key))
        ask(self, lane, why, request, *rest)

    patch.setattr(RequestQueue, "request", unguarded)


def _success_when_told_to_leave(patch: pytest.MonkeyPatch) -> None:
    finish = Leave.finish

    def well(self: Leave, exit_code: int, reason: str, verdict: Verdict | None, now: float) -> None:
        finish(self, 0 if exit_code == 143 else exit_code, reason, verdict, now)

    patch.setattr(Leave, "finish", well)


def _watchdog_without_margin(patch: pytest.MonkeyPatch) -> None:
    """It ends with the lease: too late only for whoever is cut off in that very second."""

    def extend(self: LeaseKeeper) -> None:
        self._member.emit(ExtendWatchdog(self.membership_until))

    patch.setattr(LeaseKeeper, "_extend_watchdog", extend)


def _renewals_too_rare(patch: pytest.MonkeyPatch) -> None:
    renewed = LeaseKeeper.extend_lease

    def later(self: LeaseKeeper, sent_at: float, ttl_s: float) -> None:
        renewed(self, sent_at, ttl_s)
        self._keep_alive_at += 2.5

    patch.setattr(LeaseKeeper, "extend_lease", later)


def _removed_in_peace(patch: pytest.MonkeyPatch) -> None:
    stop = LocalRound.stop

    def gently(self: LocalRound, mode: str, reason: str, now: float) -> None:
        stop(self, "kill" if mode == "fence" else mode, reason, now)

    patch.setattr(LocalRound, "stop", gently)


def _ages_rounded_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(budget, "_compute_age_s", lambda at, now: float(math.ceil(now - at)))


def _any_outsider_leads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "may_lead", lambda self, job, seal, now: True)


def _takeover_unproven(patch: pytest.MonkeyPatch) -> None:
    def gone_since(self: PeerLiveness, member_id: str, address: str) -> float:
        return self.unreachable_since.get(member_id, math.inf)

    patch.setattr(PeerLiveness, "get_gone_since", gone_since)


@pytest.mark.parametrize(
    ("letter", "plant"),
    [
        ("S1", _watchdog_without_margin),
        ("S2", _removed_in_peace),
        ("S2", _takeover_unproven),
        ("S3", _success_when_told_to_leave),
        ("S5", _ages_rounded_up),
        ("S5", _free_failures),
        ("S6", _watches_left_behind),
        ("S7", _any_outsider_leads),
        ("S8", _first_port_for_ever),
        ("S9", _last_failure_blamed),
        ("S10", _own_membership_unnamed),
        ("L1", _restless),
        ("L2", _renewals_too_rare),
        ("L5|S1", _lost_watches),
    ],
)
def test_a_planted_bug_is_found_by_its_letter(
    letter: str, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(simulate.Violation, match=f"^({letter}): "):
        _run_seeds()


def _run_seeds() -> None:
    for seed in range(SEEDS):
        simulate.run(seed)
