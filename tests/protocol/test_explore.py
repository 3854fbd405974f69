"""Every schedule of a small cluster: short forms of `make slow WHAT=explore`, and faults that it must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from rendezvous.events import Answer, StartRound
from rendezvous.leader.guarded_writer import GuardedWriter
from rendezvous.member.join import Join
from rendezvous.member.round import LocalRound
from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.view import View
from rendezvous.records import Assignment
from rendezvous.state.request_queue import RequestQueue
from rendezvous.stores.contract import Compare, TxnResult
from rendezvous.testing.explore import search, snapshot
from rendezvous.testing.explore.scopes import SCOPES, Scope

Patch = pytest.MonkeyPatch


def _guards_hold_always(patch: Patch) -> None:
    """No write names what it was decided on."""

    def anything(self: GuardedWriter, *names: str) -> tuple[Compare, ...]:
        return tuple(Compare(name, "mod", ">", -1) for name in names)

    patch.setattr(GuardedWriter, "guard_unchanged", anything)


def _registers_beside_the_job(patch: Patch) -> None:
    """Who joins compares another revision of what names the job than the one it has read."""
    register = Join._register

    def blind(self: Join, job: Any, why: str, guards: Any, writes: Any, now: float) -> None:
        current = self.current
        self.current = None if current is None else current._replace(mod_revision=0)
        register(self, job, why, guards, writes, now)
        self.current = current

    patch.setattr(Join, "_register", blind)


def _nobody_is_unaware(patch: Patch) -> None:
    """Whose key is gone has no workers, though it was connected and cannot know of it."""
    patch.setattr(View, "list_unaware", lambda self, now: [])


def _starts_on_another_seal(patch: Patch) -> None:
    """An assignment is believed whatever has been sealed or stopped since it was asked for."""

    def take_up(self: LocalRound, job: Any, sealed: Any, answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        found = answer.found[0].first
        assignment = self._member.decode(Assignment, found) if found is not None else None
        self._answered_token = sealed.plan_token
        if assignment is not None and self.alive_round is None:
            self.alive_round, self._stop_mode = sealed.round, ""
            self._member.election.note_ranks(sealed)
            self._begin_status(sealed, is_stopped=False)
            start = (sealed.round, sealed.restart_count, sealed.world_size, sealed.coordinator, assignment.content)
            self._member.emit(StartRound(*start))

    patch.setattr(LocalRound, "_take_up", take_up)


def _seals_before_the_stop(patch: Patch) -> None:
    patch.setattr(View, "has_stopped", lambda self, member_id: True)


def _one_success_is_enough(patch: Patch) -> None:
    outcome = View.get_outcome

    def of_anyone(self: View, member_id: str) -> str:
        return next((o for m in self.active if (o := outcome(self, m)) == "succeeded"), outcome(self, member_id))

    patch.setattr(View, "get_outcome", of_anyone)


def _charges_twice(patch: Patch) -> None:
    charge = RestartBudget.charge

    def twice(self: RestartBudget, round: int, failed_at: float, now: float) -> RestartBudget:
        return charge(charge(self, round, failed_at, now), round, failed_at, now)

    patch.setattr(RestartBudget, "charge", twice)


def _believes_late_answers(patch: Patch) -> None:
    """A membership that has ended leaves requests behind, whose answers the next one believes."""
    patch.setattr(RequestQueue, "drop_requests", lambda self: self._retry_at.clear())


def _scope(fault: str, detours: int, *, runs: bool = True) -> Scope:
    """Two nodes, this fault anywhere, and so many detours from the usual schedule."""
    name = f"{fault}, {detours} detours"
    faults = ((fault, 1), ("restart", 1))
    more: dict[str, Any] = {"name": name, "faults": faults, "detours_max": detours, "begins_running": runs}
    return replace(SCOPES["two, any one fault"], **more)


NO_FAULT = SCOPES["two, no fault"]
PLANTED = [
    (_guards_hold_always, NO_FAULT, "S10"),
    (_registers_beside_the_job, NO_FAULT, "L1"),
    (_one_success_is_enough, _scope("fail", 0), "S4"),
    (_seals_before_the_stop, _scope("fail", 0), "S8"),
    (_charges_twice, _scope("fail", 0), "S5"),
    (_believes_late_answers, _scope("pause", 0), "L1"),
    (_starts_on_another_seal, _scope("fail", 1, runs=False), "S2"),
    (_nobody_is_unaware, SCOPES["two, a lease ends early"], "S2"),
]


@pytest.mark.parametrize(("plant", "scope", "what"), PLANTED)
def test_a_planted_fault_is_found(
    plant: Callable[[Patch], None], scope: Scope, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    result = search.explore(scope, states=3000)
    assert what in result.found or "AssertionError" in result.found  # whichever a fault breaks first
    assert result.record[-1].startswith(("violation of", "AssertionError")) or what == "L1"


TWO_LEASES = replace(SCOPES["two, a lease ends early"], faults=(("lease", 2),), faults_max=2)


@pytest.mark.parametrize(
    ("scope", "depth"),
    [(NO_FAULT, 18), (_scope("crash", 0), 200), (_scope("late request", 0), 200), (TWO_LEASES, 11)],
)
def test_no_schedule_breaks_an_invariant(scope: Scope, depth: int) -> None:
    result = search.explore(scope, depth=depth)
    assert result.found == "", "\n".join(result.record)
    assert result.depth == depth or (result.is_complete and result.over > 0)


def test_no_state_is_lost_where_one_order_of_two_is_tried() -> None:
    reduced, whole = (search.explore(NO_FAULT, depth=19, is_reduced=is_reduced) for is_reduced in (True, False))
    assert reduced.widths == whole.widths
    assert reduced.transitions < whole.transitions


def test_a_copy_goes_on_as_the_original_does() -> None:
    random, table = Random(1), snapshot.ValueTable()
    record: list[str] = []
    world = search.build(_scope("crash", 2, runs=False))
    while choices := world.list_choices():
        copy = snapshot.load(snapshot.dump(world, table), table)
        assert snapshot.digest(copy, table) == snapshot.digest(world, table)
        assert [choice.label for choice in copy.list_choices()] == [choice.label for choice in choices]
        index = random.randrange(len(choices))
        record.append(choices[index].label)
        copy.take(copy.list_choices()[index])
        world.take(choices[index])
        assert snapshot.digest(copy, table) == snapshot.digest(world, table)
    assert len(record) > 30


def test_the_order_of_steps_that_do_not_concern_each_other_leaves_no_trace() -> None:
    table, names = snapshot.ValueTable(), set()
    for order in ((0, 0), (1, 0)):
        world = search.build(NO_FAULT)
        for index in order:
            world.take(world.list_choices()[index])
        names.add(snapshot.digest(world, table))
    assert len(names) == 1


def test_time_that_has_passed_alike_leaves_no_trace() -> None:
    table = snapshot.ValueTable()
    early, late = (search.build(NO_FAULT) for _ in range(2))
    assert snapshot.digest(early, table) == snapshot.digest(late, table)
    late.now += 1.0  # what was granted a lease is a second older now
    assert snapshot.digest(early, table) != snapshot.digest(late, table)
