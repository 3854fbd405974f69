"""Breadth first through all states of a small cluster: the first fault found has the shortest schedule.

A level of the search has every state that can be reached by that number of choices and by no fewer. From each, every
choice is made on a copy; a state whose name is known already is dropped, because everything that can follow from it is
found from its first visit. The checker of the simulation checks every step. This module checks what it cannot: that no
cluster is stuck while agents have not ended.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from tests.simulation.explore import snapshot
from tests.simulation.explore.scopes import ANY, Scope
from tests.simulation.explore.world import ExploredCluster
from tests.simulation.invariants.checker import Checker
from tests.simulation.invariants.history import Violation
from tests.simulation.node import describe_status

CALM_STEPS = 2000
CALM_EVERY = 64  # one of this many states is continued without faults until its job ends
CALM = "nothing goes wrong any more"
EXIT_CODES = (75, 137)  # drained, or killed: an agent may end so without being asked to leave


class ScopeResult(Struct, kw_only=True):
    """What was explored. `is_complete`: all states of the scope were visited; else all up to `depth`."""

    scope: Scope
    states: int = 1
    transitions: int = 0
    depth: int = 0
    widths: list[int] = field(default_factory=list)
    over: int = 0
    cut_by_time: int = 0
    ended_calmly: int = 0
    took_s: float = 0.0
    is_complete: bool = False
    found: str = ""
    schedule: list[str] = field(default_factory=list)
    record: list[str] = field(default_factory=list)


def build(scope: Scope, trace: Callable[[str], None] = lambda line: None) -> ExploredCluster:
    """The cluster of this scope in its first state."""
    world = ExploredCluster(scope, trace)
    world.checker = Checker(world, exit_codes=EXIT_CODES, has_witnesses=False)
    world.begin()
    return world


# docs/internals/decisions/0044-exhaustive-exploration-of-small-clusters.md
def explore(
    scope: Scope,
    *,
    depth: int = 1 << 30,
    limit_s: float = float("inf"),
    states: int = 1 << 30,
    is_reduced: bool = True,
    progress: Callable[[ScopeResult], None] = lambda result: None,
) -> ScopeResult:
    """Visit all states up to this depth, as far as CPU time and the number of states allow.

    `is_reduced`: of two choices that commute, only one order is tried. No state is lost by that.
    """
    return _Search(scope, is_reduced and scope.detours_max == ANY).run(depth, limit_s, states, progress)


Sleeping = frozenset[tuple[str, tuple[str, ...]]]  # choices by label, with what they touch
AWAKE: Sleeping = frozenset()


def explore_share(task: tuple[Scope, float, int, bool]) -> ScopeResult:
    """`explore` for a process of its own. `task`: scope, CPU seconds, depth, whether to print each finished level."""
    scope, limit_s, depth, prints = task
    return explore(scope, depth=depth, limit_s=limit_s, progress=_print_level if prints else lambda result: None)


def _print_level(result: ScopeResult) -> None:
    line = f"{result.scope.name}: depth {result.depth}, {result.widths[-1]} of {result.states} states are new"
    print(f"{line}; {result.took_s:.0f} s", file=sys.stderr, flush=True)


class _State(NamedTuple):
    """A state to continue from. `asleep`: choices that need not be made; `only`: those to make at a second visit."""

    number: int
    world: bytes
    asleep: Sleeping
    only: Sleeping


class _Search:
    def __init__(self, scope: Scope, is_reduced: bool) -> None:
        self.result = ScopeResult(scope=scope)
        self._is_reduced = is_reduced  # not where detours are counted: one order may cost more of them
        self._table = snapshot.ValueTable()
        root = build(scope)
        name = snapshot.digest(root, self._table)
        self._frontier = {name: _State(0, self._copy(root), AWAKE, AWAKE)}
        self._next: dict[bytes, _State] = {}
        self._numbers = {name: 0}
        self._asleep: dict[bytes, Sleeping] = {}  # of states that were visited: what was not chosen there
        self._parents = array("I", [0])
        self._choices: list[str] = [""]

    def run(self, depth: int, limit_s: float, states: int, progress: Callable[[ScopeResult], None]) -> ScopeResult:
        result, started = self.result, time.process_time()
        sys.setrecursionlimit(10_000)  # the pickler goes from object to object
        gc.disable()  # clusters are full of reference cycles, and are dropped together
        try:
            while self._frontier and result.depth < depth and not result.found:
                if not self._visit_level(started + limit_s, states):
                    break
                result.depth += 1
                result.widths.append(len(self._frontier))
                result.states, result.took_s = len(self._parents), time.process_time() - started
                progress(result)
        finally:
            gc.enable()
        result.is_complete = not self._frontier and not result.found
        if result.is_complete and not result.over + result.cut_by_time:
            self._report(0, "", "L1: no schedule ends, all go in circles")
        result.states, result.took_s = len(self._parents), time.process_time() - started
        return result

    def _copy(self, world: ExploredCluster) -> bytes:
        return zlib.compress(snapshot.dump(world, self._table), 1)

    def _visit_level(self, until: float, states: int) -> bool:
        """Make all choices in the states of this level. Whether the level was finished."""
        old, self._table = self._table, snapshot.ValueTable()
        for count, (name, state) in enumerate(self._frontier.items()):
            if time.process_time() > until or len(self._parents) > states:
                return False
            if not count % 64:
                gc.collect(1)
            self._visit(name, state, old)
            if self.result.found:
                return True
        self._frontier, self._next = self._next, {}
        gc.collect()
        return True

    def _visit(self, name: bytes, state: _State, old: snapshot.ValueTable) -> None:
        result, packed = self.result, zlib.decompress(state.world)
        world: ExploredCluster = snapshot.load(packed, old)
        choices = world.list_choices()
        if not choices and world.is_over:
            result.over += 1
        elif not choices and world.jumps_left:
            self._report(state.number, "", "L1: nothing will ever happen again, and not all agents have ended")
        elif not choices:
            result.cut_by_time += 1
            self._end_calmly(state.number, world)
        elif not name[0] % CALM_EVERY:
            self._end_calmly(state.number, world)
            world = snapshot.load(packed, old)
            choices = world.list_choices()
        labels = Counter(choice.label for choice in choices)
        asleep = set(state.asleep)
        self._asleep[name] = state.asleep
        is_fresh = True
        for index in range(len(choices)):
            choice = choices[index]
            key = (choice.label, choice.touched)
            if key in asleep or (state.only and key not in state.only):
                continue
            if not is_fresh:
                world = snapshot.load(packed, old)
                choice = world.list_choices()[index]
            is_fresh = False
            try:
                is_local = world.take(choice)
            except Violation as violation:
                self._report(state.number, choice.label, str(violation))
                return
            except Exception:  # a bug may show as anything
                self._report(state.number, choice.label, traceback.format_exc())
                return
            result.transitions += 1
            others = frozenset(key for key in asleep if not set(key[1]) & set(choice.touched)) if is_local else AWAKE
            self._arrive(world, state.number, choice.label, others)
            if is_local and labels[choice.label] == 1 and self._is_reduced:
                asleep.add(key)

    def _end_calmly(self, number: int, world: ExploredCluster) -> None:
        """Continue without faults: the job must end."""
        world.stop_faults(CALM_STEPS)
        steps: list[str] = []
        what = ""
        try:
            while not world.is_over and len(steps) < CALM_STEPS and (choice := world.find_usual_choice()) is not None:
                steps.append(choice.label)
                world.take(choice)
        except Exception as error:  # a bug may show as anything
            what = str(error)
        self.result.ended_calmly += 1
        if what or not world.is_over:
            status = describe_status(world.nodes.values())
            self._report(number, "", what or f"L1: no end within {CALM_STEPS} steps of calm; {status}", steps)

    def _arrive(self, world: ExploredCluster, parent: int, label: str, asleep: Sleeping) -> None:
        """Record the state after a choice, with the choices that are still to be made there."""
        name = snapshot.digest(world, self._table)
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._parents)
            self._parents.append(parent)
            self._choices.append(sys.intern(label))
            self._next[name] = _State(number, self._copy(world), asleep, AWAKE)
        elif name in self._next:
            known = self._next[name]
            if known.only:
                only = known.only | (self._asleep[name] - asleep)
                self._next[name] = known._replace(only=only)
                self._asleep[name] &= asleep
            else:
                self._next[name] = known._replace(asleep=known.asleep & asleep)
        else:
            before = self._asleep.get(name) if name in self._asleep else self._frontier[name].asleep
            missed = (before or AWAKE) - asleep
            if missed:
                self._asleep[name] = (before or AWAKE) & asleep
                self._next[name] = _State(number, self._copy(world), AWAKE, missed)

    def _report(self, state: int, last: str, what: str, calm: Sequence[str] = ()) -> None:
        """Report a violation, with the schedule that leads to it and its record."""
        path = [last] if last else []
        while state:
            path.append(self._choices[state])
            state = self._parents[state]
        self.result.found = what
        self.result.schedule = [*path[::-1], *((CALM, *calm) if calm else ())]
        self.result.record = play(self.result.scope, self.result.schedule)


def play(scope: Scope, schedule: Sequence[str]) -> list[str]:
    """Make the choices with these labels; the record."""
    record: list[str] = []
    world = build(scope, record.append)
    try:
        for label in schedule:
            if label == CALM:
                world.stop_faults(CALM_STEPS)
                continue
            world.take(next(choice for choice in world.list_choices() if choice.label == label))
    except Exception as error:
        record.append(f"violation of {error}" if isinstance(error, Violation) else repr(error))
    return record
