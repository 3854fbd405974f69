"""Every schedule of a small cluster: short forms of `make slow WHAT=explore`, and faults that it must find."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.simulation.explore import search, snapshot
from tests.simulation.explore.scopes import SCOPES, Scope
from tests.support.protocol.rules import take_out


def _scope(fault: str, detours: int, *, runs: bool = True) -> Scope:
    """Two nodes, this fault anywhere, and so many detours from the usual schedule."""
    name = f"{fault}, {detours} detours"
    faults = ((fault, 1), ("restart", 1))
    more: dict[str, Any] = {"name": name, "faults": faults, "detours_max": detours, "begins_running": runs}
    return replace(SCOPES["two, any one fault"], **more)


NO_FAULT = SCOPES["two, no fault"]
PLANTED = [
    ("guards hold always", NO_FAULT, "S10"),
    ("who joins compares another job", NO_FAULT, "L1"),
    ("one success is enough", _scope("fail", 0), "S4"),
    ("a round ends before it is stopped", _scope("fail", 0), "S8"),
    ("a failure is charged twice", _scope("fail", 0), "S5"),
    ("late answers are believed", _scope("pause", 0), "L1"),
    ("an assignment is believed under any seal", _scope("fail", 1, runs=False), "S2"),
    ("unaware members are gone", SCOPES["two, a lease ends early"], "S2"),
]


@pytest.mark.parametrize(("bug", "scope", "what"), PLANTED)
def test_a_planted_fault_is_found(bug: str, scope: Scope, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_out(monkeypatch, bug)
    result = search.explore(scope, states=3000)
    assert what in result.found or "AssertionError" in result.found  # whichever a fault breaks first
    assert result.record[-1].startswith(("violation of", "AssertionError")) or what == "L1"


TWO_LEASES = replace(SCOPES["two, a lease ends early"], faults=(("lease", 2),), faults_max=2)


@pytest.mark.parametrize(
    ("scope", "depth"), [(NO_FAULT, 17), (_scope("crash", 0), 36), (_scope("late request", 0), 200), (TWO_LEASES, 7)]
)
def test_no_schedule_breaks_an_invariant(scope: Scope, depth: int) -> None:
    result = search.explore(scope, depth=depth)
    assert result.found == "", "\n".join(result.record)
    assert result.depth == depth or (result.is_complete and result.over > 0)


def test_no_state_is_lost_and_what_concerns_nobody_else_leaves_no_trace() -> None:
    reduced, whole = (search.explore(NO_FAULT, depth=15, is_reduced=is_reduced) for is_reduced in (True, False))
    assert reduced.widths == whole.widths
    assert reduced.transitions < whole.transitions
    table, names = snapshot.ValueTable(), set()
    for order in ((0, 0), (1, 0)):
        world = search.build(NO_FAULT)
        for index in order:
            world.take(world.list_choices()[index])
        names.add(snapshot.digest(world, table))
    assert len(names) == 1
    table = snapshot.ValueTable()
    early, late = (search.build(NO_FAULT) for _ in range(2))
    assert snapshot.digest(early, table) == snapshot.digest(late, table)
    late.timeline.now += 1.0  # what was granted a lease is a second older now
    assert snapshot.digest(early, table) != snapshot.digest(late, table)


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
