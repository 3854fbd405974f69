"""The checker has no blind spot where it says that it looks: each bug planted here is found, and by its letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rendezvous import charge, sealing
from rendezvous.budget import Ledger
from rendezvous.farewell import Farewell
from rendezvous.following import Following
from rendezvous.lanes import Lanes
from rendezvous.records import Verdict
from rendezvous.testing import simulate
from rendezvous.view import View

SEEDS = 130  # each is found within so many


def _free_failures(patch: pytest.MonkeyPatch) -> None:
    def charge(self: Ledger, round: int, failed_at: float, now: float) -> Ledger:
        return self

    patch.setattr(Ledger, "charge", charge)


def _first_port_for_ever(patch: pytest.MonkeyPatch) -> None:
    candidate = sealing.Sealing._candidate

    def with_one_port(self: sealing.Sealing, view: View, member_id: str) -> Any:
        return candidate(self, view, member_id)._replace(worker_port=20_000)

    patch.setattr(sealing.Sealing, "_candidate", with_one_port)


def _lost_watches(patch: pytest.MonkeyPatch) -> None:
    """Nobody reads again what a watch covered that has ended, neither at once nor with the next look."""
    look_again = Following.look_again

    def look_at_the_watched(self: Following, now: float, looked: Callable[[float], None]) -> None:
        followed = self._followed
        self._followed = followed - self._unwatched
        look_again(self, now, looked)
        self._followed = followed

    patch.setattr(Following, "_follow_again", lambda self, key, now: None)
    patch.setattr(Following, "look_again", look_at_the_watched)


def _watches_left_behind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Following, "unfollow", lambda self, *keys: None)


def _last_failure_blamed(patch: pytest.MonkeyPatch) -> None:
    in_order = charge._in_order
    patch.setattr(charge, "_in_order", lambda view, failures: in_order(view, failures)[::-1])


def _restless(patch: pytest.MonkeyPatch) -> None:
    """It asks to be woken at once, as a lane does that is not paused."""
    wake = Lanes.wake
    patch.setattr(Lanes, "wake", lambda self, at: wake(self, at - 0.5))


def _own_membership_unnamed(patch: pytest.MonkeyPatch) -> None:
    ask = Lanes.ask

    def unguarded(self: Lanes, lane: str, why: str, request: Any, *rest: Any) -> None:
        if lane == "lead" and hasattr(request, "compares"):
            request = request._replace(compares=tuple(c for c in request.compares if "/members/" not in c.key))
        ask(self, lane, why, request, *rest)

    patch.setattr(Lanes, "ask", unguarded)


def _success_when_told_to_leave(patch: pytest.MonkeyPatch) -> None:
    finish = Farewell.finish

    def well(self: Farewell, exit_code: int, reason: str, verdict: Verdict | None, now: float) -> None:
        finish(self, 0 if exit_code == 143 else exit_code, reason, verdict, now)

    patch.setattr(Farewell, "finish", well)


@pytest.mark.parametrize(
    ("letter", "plant"),
    [
        ("S3", _success_when_told_to_leave),
        ("S5", _free_failures),
        ("S6", _watches_left_behind),
        ("S8", _first_port_for_ever),
        ("S9", _last_failure_blamed),
        ("S10", _own_membership_unnamed),
        ("L1", _restless),
        ("L1|S2", _lost_watches),
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
