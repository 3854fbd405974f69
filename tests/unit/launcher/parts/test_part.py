"""Parts: what they are told, when they are advanced, and what it costs if one fails."""

from __future__ import annotations

import math
import os
import select
from collections.abc import Iterable, Iterator

import pytest

from launcher.parts.host import LONG_S, PASSES_MAX, PartHost
from launcher.parts.part import KEPT_MAX, RETRY_S, Effect, Fact, LatePart, Part, Ready

SHORTAGES = [OSError(24, "Too many open files"), ImportError("x.so: Too many open files", path="x.so"), MemoryError()]


class Recorder:
    """A part that keeps what it is told, and is due when it was told something."""

    def __init__(self, error: Exception | None = None) -> None:
        self.taken: list[object] = []
        self.effects: list[Effect] = []
        self.calls: list[str] = []
        self.wake_at = math.inf
        self.error = error

    def take(self, fact: Fact) -> None:
        self.taken.append(fact.what)
        self.wake_at = fact.at

    def advance(self, now: float) -> Iterable[Effect]:
        self.calls.append("advance")
        self.wake_at = math.inf
        if self.error is not None:
            raise self.error
        yield from self.effects

    def close(self) -> None:
        self.calls.append("close")


class Bench:
    """A host, at a time that the test sets."""

    def __init__(self, *parts: Part) -> None:
        self.now = 10.0
        self.said: list[str] = []
        self.done: list[Effect] = []
        self.poll = select.poll()
        self.host = PartHost(self.poll, lambda: self.now, self.said.append)
        for part in parts:
            self.host.add(part)

    def make_fact(self, what: object) -> Fact:
        return Fact(what, 1, self.now, 1000.0 + self.now)

    def tell(self, *facts: object) -> None:
        for what in facts:
            self.host.tell(self.make_fact(what))

    def run(self) -> bool:
        """Whether a part was due."""
        is_due = self.host.wake_at <= self.now
        self.host.run(self.done.append)
        return is_due


def test_parts_are_told_in_order_and_those_that_are_due_are_advanced() -> None:
    one, two = Recorder(), Recorder()
    one.effects = ["a", "b"]
    bench = Bench(one, two)
    assert bench.host.wake_at == math.inf
    assert not bench.run()
    bench.tell("x")
    two.wake_at = 11.0
    assert bench.host.wake_at == 10.0
    assert bench.run()
    assert (one.taken, two.taken, bench.done) == (["x"], ["x"], ["a", "b"])
    assert (one.calls, two.calls) == (["advance"], [])
    bench.now = 11.0
    bench.run()
    assert two.calls == ["advance"]
    bench.host.close()
    assert (one.calls[-1], two.calls[-1]) == ("close", "close")


def test_what_follows_from_an_effect_is_told_in_the_same_turn_and_holds_no_loop() -> None:
    one, two = Recorder(), Recorder()
    one.effects = ["published"]
    bench = Bench(one, two)
    one.wake_at = 10.0
    bench.host.run(lambda effect: two.take(bench.make_fact(effect)))
    assert (two.taken, two.calls) == (["published"], ["advance"])

    class Restless(Recorder):
        def advance(self, now: float) -> Iterable[Effect]:
            self.calls.append("advance")
            return ()

    part = Restless()
    part.wake_at = -math.inf
    assert Bench(part).run()
    assert len(part.calls) == PASSES_MAX


def test_a_part_that_raises_is_closed_said_once_and_not_advanced() -> None:
    bad, good = Recorder(KeyError("x")), Recorder()
    bench = Bench(bad, good)
    bench.tell("x")
    bench.run()
    bench.tell("y")
    bench.run()
    assert bad.calls == ["advance", "close"]
    assert good.taken == ["x", "y"]
    assert bench.said == ["Recorder: off from here on, the job continues: KeyError: 'x'"]
    assert bench.host.off == ["Recorder"]
    one, two = Recorder(), Recorder()
    one.effects = ["bad"]
    bench = Bench(one, two)
    one.wake_at = two.wake_at = 10.0

    def refuse(fact: Fact) -> None:
        raise KeyError("x")

    two.take = refuse  # type: ignore[method-assign]
    bench.host.run(lambda effect: bench.tell(effect))
    assert two.calls == ["close"]


def test_a_time_that_cannot_be_read_costs_no_other_part_its_own() -> None:
    class Timeless(Recorder):
        @property  # type: ignore[override]
        def wake_at(self) -> float:
            raise KeyError("x")

        @wake_at.setter
        def wake_at(self, at: float) -> None:
            pass

    other = Recorder()
    bench = Bench(Timeless(), other)
    other.wake_at = 12.0
    assert bench.host.wake_at == 12.0


def test_effects_before_an_error_are_not_carried_out_by_half() -> None:
    class Half(Recorder):
        def advance(self, now: float) -> Iterator[Effect]:
            yield "first"
            raise KeyError("x")

    part = Half()
    part.wake_at = 0.0
    bench = Bench(part)
    bench.run()
    assert bench.done == []


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_a_part_that_lacks_resources_is_tried_again(error: Exception) -> None:
    part = Recorder(error)
    bench = Bench(part)
    bench.tell("x")
    bench.run()
    for at in (10.0 + RETRY_S, 10.0 + 2 * RETRY_S):
        part.wake_at = 10.0
        assert bench.host.wake_at == at
        assert not bench.run()
        bench.now = at
        part.error = error if at == 10.0 + RETRY_S else None
        assert bench.run()
    assert part.calls == ["advance"] * 3
    first, last = bench.said
    assert first.startswith("Recorder: ")
    assert last == "Recorder: working again"


def test_a_part_that_takes_long_is_said_once_and_stays() -> None:
    part = Recorder()
    bench = Bench()

    def wait(_: float) -> Iterable[Effect]:
        bench.now += LONG_S + 0.5
        part.wake_at = math.inf
        return ()

    part.advance = wait  # type: ignore[method-assign]
    bench.host.add(part)
    for _ in range(2):
        bench.tell("x")
        bench.run()
    assert part.taken == ["x", "x"]
    assert bench.said == ["Recorder: the agent, which has workers to look after, waited 1.5 s for this"]


def test_a_descriptor_that_is_ready_is_told_to_its_part_alone() -> None:
    one, two = Recorder(), Recorder()
    bench = Bench(one)
    watcher = bench.host.add(two)
    read_end, write_end = os.pipe()
    watcher.register(read_end)
    os.write(write_end, b"x")

    def turn() -> list[int]:
        ready = [number for number, _ in bench.poll.poll(0)]
        bench.host.tell_ready(ready, bench.make_fact(None))
        bench.run()
        return ready

    assert turn() == [read_end]
    assert (one.taken, two.taken) == ([], [Ready(read_end)])
    two.error = OSError(24, "Too many open files")
    turn()
    assert turn() == [], "the loop sleeps until the next try"
    bench.now, two.error = bench.now + RETRY_S, None
    two.wake_at = bench.now
    bench.run()
    assert turn() == [read_end]
    two.error = KeyError("x")
    turn()
    assert turn() == [], "nobody is there to read it"
    os.close(read_end)
    os.close(write_end)


# --- parts that are made late ---


class Kind:
    """Of a fact."""


def test_a_late_part_is_made_when_it_wants_a_fact_and_has_all_that_came_before() -> None:
    part = Recorder()
    late = LatePart("x", lambda: part, {str: math.inf, int: 2.0})
    bench = Bench(late)
    bench.tell("one", Kind())
    assert bench.host.wake_at == math.inf
    bench.tell(2)
    assert bench.host.wake_at == 12.0
    assert not bench.run()
    bench.now = 12.0
    bench.run()
    bench.tell("three")
    assert part.taken == ["one", 2, "three"]


def test_a_late_part_is_made_before_its_facts_are_many_or_keeps_nothing() -> None:
    late = LatePart("x", Recorder, math.inf)
    bench = Bench(late)
    bench.tell(*range(KEPT_MAX - 1))
    assert bench.host.wake_at == math.inf
    bench.tell("last")
    assert bench.host.wake_at == 10.0
    late = LatePart("x", lambda: None, {str: 0.0}, make_at=10.0)
    bench = Bench(late)
    assert bench.run()
    bench.tell("one")
    assert bench.host.wake_at == math.inf
    bench.host.close()


@pytest.mark.parametrize("error", SHORTAGES, ids=repr)
def test_a_late_part_that_cannot_be_made_yet_loses_nothing(error: Exception) -> None:
    part, tries = Recorder(), [error]

    def make() -> Recorder:
        if tries:
            raise tries.pop()
        return part

    bench = Bench(LatePart("what is shown", make, 0.0))
    bench.tell("one")
    bench.run()
    bench.tell("two")
    bench.now += RETRY_S
    bench.run()
    assert part.taken == ["one", "two"]
    assert bench.said[0].startswith("what is shown: ")
    assert bench.said[1:] == ["what is shown: working again"]


def test_a_late_part_that_cannot_be_made_at_all_is_said_once() -> None:
    tries: list[object] = []

    def make() -> Recorder:
        tries.append("tried")
        raise KeyError("x")

    bench = Bench(LatePart("what is shown", make, 0.0, is_written=True))
    bench.tell("one")
    bench.run()
    bench.tell("two")
    bench.run()
    bench.host.close()
    assert tries == ["tried"]
    assert bench.said == ["what is shown: off from here on, the job continues: KeyError: 'x'"]


@pytest.mark.parametrize("is_written", [True, False])
def test_at_the_end_what_is_to_be_written_is_made(is_written: bool) -> None:
    part = Recorder()
    bench = Bench(LatePart("x", lambda: part, 5.0, is_written=is_written))
    bench.tell("one")
    bench.host.close()
    assert (part.taken, part.calls) == ((["one"], ["close"]) if is_written else ([], []))


def test_what_a_part_was_to_have_is_let_go_if_it_was_never_made() -> None:
    gone: list[str] = []
    bench = Bench(LatePart("x", Recorder, {}, discard=lambda: gone.append("listener")))
    bench.host.close()
    assert gone == ["listener"]
