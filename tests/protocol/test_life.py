"""The tables of phases tell what happens: each of their transitions is made in the simulation."""

from __future__ import annotations

import pytest

from rendezvous.state import life
from rendezvous.state.state import MembershipState, RoundState
from tests.simulation import simulate

SEEDS = 60
# The simulated launcher restarts for ever and stops when it is told to; the others need two faults within a second.
NOT_SIMULATED = {
    ("running", "failed for good"),
    ("running", "workers gone"),
    ("stopping", "failed for good"),
    ("fencing", "failed for good"),
    ("held", "removal suspected"),
    ("fenced", "lease held out"),
    ("fenced", "own key found"),
}


def test_every_transition_of_the_tables_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: set[tuple[str, str]] = set()
    for owner in (MembershipState, RoundState):
        move = owner.move

        def noted(self: MembershipState | RoundState, event: str, move=move) -> bool | None:  # type: ignore[no-untyped-def]
            made.add((self.phase, event))
            return move(self, event)

        monkeypatch.setattr(owner, "move", noted)
    for seed in range(SEEDS):
        simulate.run(seed)
    assert {*life.MEMBERSHIP, *life.ROUND} - NOT_SIMULATED <= made


@pytest.mark.parametrize(("table", "first", "last"), [(life.MEMBERSHIP, "joining", "ended"), (life.ROUND, "idle", "")])
def test_every_phase_can_be_reached_and_left(table: life.Life, first: str, last: str) -> None:
    reached, phases = {first}, {phase for (before, _), after in table.items() for phase in (before, after.phase)}
    for _ in phases:
        reached |= {after.phase for (before, _), after in table.items() if before in reached}
    assert reached == phases
    assert phases - {before for (before, _), after in table.items() if after.phase != before} == ({last} - {""})
