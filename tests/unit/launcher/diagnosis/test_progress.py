"""When a node's silence is a hang: signs, stages, phases, time that does not count, and the recorder's counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.config.options.readers import HangLimits
from launcher.diagnosis.progress import (
    HEARTBEAT,
    INTERVAL_MIN_S,
    OUTPUT,
    PHASE,
    ProgressNews,
    ProgressSigns,
    ProgressWatch,
    RankPhase,
)

LIMITS = HangLimits(step_s=80.0, start_s=800.0, first_step_s=1600.0)  # 10 s between looks
EVALUATION = RankPhase(rank=3, name="eval", limit_s=240.0)
Find = Callable[[float], ProgressSigns]


def see(*, phases: tuple[RankPhase, ...] = (), is_paused: bool = False, **signs: int) -> ProgressSigns:
    return ProgressSigns(signs={OUTPUT: 0, HEARTBEAT: 0, **signs}, phases=phases, is_paused=is_paused)


class Node:
    """A node that is looked at whenever the watch asks for it, and what was said, with the time."""

    def __init__(self, limits: HangLimits = LIMITS, counters: Callable[[float], Mapping[int, object]] | None = None):
        self.watch = ProgressWatch(limits, 0.0)
        self.now = 0.0
        self.said: list[tuple[float, ProgressNews]] = []
        self.asked: list[float] = []
        self._counters = counters

    def live(self, until: float, find: Find) -> Node:
        while (at := max(self.now, self.watch.wake_at)) <= until:
            self.now = at
            if news := self.watch.check(self.now, find(self.now)):
                self.said.append((self.now, news))
            if self.watch.needs_counters and self._counters is not None:
                self.asked.append(self.now)
                self.watch.take_counters(self._counters(self.now))
        return self

    def sleep(self, until: float) -> Node:
        self.now = until
        return self


def train(now: float) -> ProgressSigns:
    """A step in every second, since the 100th; heartbeats."""
    return see(heartbeat=max(0, int(now) - 100))


def hang_at(at: float, find: Find = train) -> Find:
    return lambda now: find(min(now, at))


def test_a_silence_is_told_once_and_again_with_what_was_looked_at_in_it() -> None:
    node = Node().live(1000, hang_at(500)).live(2000, lambda now: train(min(now, 1500)))
    (first_at, first), (back_at, back), (second_at, second) = node.said
    assert first.sentence == "no progress for 80 s: no output or heartbeat on this node"
    assert 580 <= first_at <= 600
    assert back.sentence == f"progress again after {back_at - 500:.0f} s: heartbeat"
    assert 1000 < back_at <= 1010
    assert second.kind == "silent"
    assert 1580 <= second_at <= 1600
    answers: list[dict[int, object]] = [{0: 7}, {0: 7}]
    node = Node(counters=lambda _: answers.pop() if answers else {})
    node.live(700, hang_at(500)).live(2000, lambda now: train(min(now, 1500)))
    first, _, second = (news.sentence for _, news in node.said)
    assert ("collective" in first, "collective" in second) == (True, False)


@pytest.mark.parametrize(
    ("find", "said_at", "words"),
    [
        (lambda _: see(), 800, "no output or heartbeat on this node since the start, 800 s of 800 s"),
        # A few lines, then a long compilation: it has not made a step yet.
        (lambda now: see(output=min(int(now), 45)), 1650, "on this node in the first step, 1600 s of 1600 s"),
        # Output in more looks than a limit holds, for less than ten minutes: it may compile.
        (lambda now: see(output=min(int(now), 595)), 2200, "on this node in the first step, 1600 s of 1600 s"),
        # For longer: it makes steps.
        (lambda now: see(output=min(int(now), 605)), 690, "no output or heartbeat on this node"),
        # One heartbeat: a step is over.
        (lambda now: see(heartbeat=int(now > 95)), 180, "no output or heartbeat on this node"),
        (lambda now: see(heartbeat=min(int(now), 45), **{PHASE: int(now > 45)}, phases=(EVALUATION,) * (now > 45)), 290,
         "no output or heartbeat on this node; rank 3 is in phase eval, 240 s of 240 s"),
    ],
    ids=["start", "first step", "little output", "output", "heartbeat", "phase"],
)  # fmt: skip
def test_each_stage_and_phase_has_its_own_limit(find: Find, said_at: float, words: str) -> None:
    ((at, silence),) = Node().live(5000, find).said
    assert at == said_at
    assert silence.sentence.endswith(words)


def test_a_phase_is_no_silence_and_costs_few_looks() -> None:
    """24 evaluations of nearly three times the limit, of one rank; then the limit of the steps holds again."""

    def evaluate(now: float) -> ProgressSigns:
        step, inside = divmod(now, 300)
        is_evaluating = inside > 60 and step < 24
        steps = int(step) * 60 + min(60, int(inside)) if step < 24 else 24 * 60
        changes = int(step) * 2 + is_evaluating if step < 24 else 48
        return see(heartbeat=steps, **{PHASE: changes}, phases=(EVALUATION,) if is_evaluating else ())

    ((at, silence),) = Node().live(24 * 300 + 200, evaluate).said
    assert at >= 24 * 300 + 80
    assert silence.kind == "silent"
    assert "phase" not in silence.sentence
    watch = ProgressWatch(LIMITS, 0.0)
    watch.check(0.0, see(heartbeat=1, phases=(RankPhase(rank=0, name="save", limit_s=0.001),)))
    assert watch.wake_at == pytest.approx(INTERVAL_MIN_S)
    assert watch.check(watch.wake_at, see(heartbeat=1, phases=(RankPhase(rank=0, name="save", limit_s=0.001),)))


def test_the_longest_phase_of_any_rank_counts_and_one_without_a_limit_is_never_silent() -> None:
    short = RankPhase(rank=0, name="save", limit_s=20.0)
    ((at, silence),) = Node().live(1000, lambda _: see(heartbeat=1, phases=(short, EVALUATION))).said
    assert 240 <= at <= 260
    assert "rank 3 is in phase eval" in silence.sentence
    endless = RankPhase(rank=0, name="save", limit_s=float("inf"))
    assert Node().live(1e6, lambda _: see(heartbeat=1, phases=(endless,))).said == []


@pytest.mark.parametrize("pause", ["asleep", "stopped"])
def test_time_asleep_or_stopped_does_not_count(pause: str) -> None:
    node = Node().live(500, hang_at(470))
    if pause == "asleep":
        node.sleep(5000)
    else:
        node.live(5000, lambda _: see(heartbeat=370, is_paused=True))
    assert node.live(5010, hang_at(470)).said == []
    assert len(node.live(5060, hang_at(470)).said) == 1


def test_time_before_a_look_does_not_count_and_counters_end_a_silence() -> None:
    """It may have run for a moment of it only."""
    watch = ProgressWatch(LIMITS, 0.0)
    watch.check(0.0, see(heartbeat=1))
    for look in range(1, 100):  # it is stopped and runs by turns: seven looks count half of the limit
        assert watch.check(look * 10.0, see(heartbeat=1, is_paused=bool(look % 2))) is None
    node = Node(counters=lambda now: {0: max(0, int(now) - 700)}).live(800, hang_at(500))
    (_, silence), (back_at, back) = node.said
    assert silence.kind == "silent"
    assert (back_at > 700, back.sentence.endswith(" s: collective")) == (True, True)


def test_a_worker_that_stays_stopped_is_told_once_and_again_after_it_ran() -> None:
    def stop(now: float) -> ProgressSigns:
        return ProgressSigns(signs={HEARTBEAT: 370}, is_paused=True, halted=(3,))

    node = Node().live(500, hang_at(470)).live(5000, stop)
    ((at, halt),) = node.said
    assert halt.sentence == (
        "rank 3 is stopped by a signal or a debugger for 80 s now: until it continues (kill -CONT), no hang is detected"
    )
    assert 560 < at < 600
    node.live(5100, lambda now: see(heartbeat=int(now))).live(6000, stop)
    assert [news.kind for _, news in node.said] == ["halted", "halted"]


def test_a_debugger_that_comes_while_counters_are_awaited_is_in_time() -> None:
    watch = ProgressWatch(LIMITS, 0.0)
    watch.check(0.0, see(heartbeat=1))
    for look in range(1, 9):
        assert watch.check(look * 10.0, see(heartbeat=1)) is None
        if look == 4:
            watch.take_counters({0: 7})
    assert watch.needs_counters
    assert watch.check(90.0, see(heartbeat=1, is_paused=True)) is None
    watch.take_counters({0: 7})
    assert watch.check(100.0, see(heartbeat=1, is_paused=True)) is None
    assert watch.check(110.0, see(heartbeat=1)) is not None


def test_counters_are_asked_for_at_half_the_limit_and_at_the_limit_and_a_change_since_is_progress() -> None:
    node = Node(counters=lambda _: {0: 7, 1: 7}).live(585, hang_at(500))
    ((at, silence),) = node.said
    assert silence.sentence == "no progress for 80 s: no output, heartbeat or collective on this node"
    assert node.asked[-2:] == [540, 580]
    assert node.asked[:-2] == []  # heartbeats had come all the time, after a start without
    assert at == 580
    node = Node(counters=lambda now: {0: min(int(now), 900), 1: 7}).live(1200, hang_at(200))
    ((at, _),) = node.said
    assert 900 + 80 <= at <= 900 + 1.5 * 80 + 20
    # Output comes every 50 s, and after 40 s without it the recorder is asked, whose counters change until 500.
    node = Node(counters=lambda now: {0: min(int(now), 500)})
    node.live(1000, lambda now: see(heartbeat=1, output=int(min(now, 500) // 50)))
    assert 490 in node.asked
    assert [at for at, _ in node.said] == [580]


@pytest.mark.parametrize(
    "answers",
    [[], [{}], [{0: 7}], [{0: 7}, {}], [{0: 7}, {1: 7}]],
    ids=["none", "no recorder", "the first alone", "the second is empty", "of other ranks"],
)
def test_without_two_answers_of_a_rank_nothing_is_said_of_collectives(answers: list[dict[int, object]]) -> None:
    left, watch, news = list(answers), ProgressWatch(LIMITS, 0.0), None
    for _ in range(20):
        news = news or watch.check(watch.wake_at, see(heartbeat=1))
        if watch.needs_counters and left:
            watch.take_counters(left.pop(0))
    assert news is not None
    assert news.sentence in (f"no progress for {late} s: no output or heartbeat on this node" for late in (80, 90))


@given(
    gaps=st.lists(st.floats(0.5, 60), min_size=1, max_size=40),
    late=st.lists(st.floats(0, 30), min_size=1, max_size=20),
    kind=st.sampled_from([OUTPUT, HEARTBEAT]),
)
def test_a_job_whose_signs_come_in_time_is_never_silent(gaps: list[float], late: list[float], kind: str) -> None:
    """However late the agent looks, and whatever the pattern of signs is: none is further than 60 s from the next."""
    watch, now, looks = ProgressWatch(LIMITS, 0.0), 0.0, 0
    times = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    while now < times[-1]:
        now = watch.wake_at + late[looks % len(late)]
        looks += 1
        assert watch.check(now, see(**{kind: sum(at <= now for at in times)})) is None


@given(
    silent_from=st.floats(150, 1000),
    late=st.lists(st.floats(0, 9), min_size=1, max_size=20),
    answers=st.lists(st.booleans(), min_size=1, max_size=20),
)
def test_a_hang_is_told_once_whatever_the_looks(silent_from: float, late: list[float], answers: list[bool]) -> None:
    """Within the limit and three intervals of looks that are late, whether the recorder answers or not."""
    watch, now, looks, told = ProgressWatch(LIMITS, 0.0), 0.0, 0, []
    while now < silent_from + 1000:
        now = watch.wake_at + late[looks % len(late)]
        looks += 1
        if news := watch.check(now, train(min(now, silent_from))):
            told.append((now, news))
        if watch.needs_counters and answers[looks % len(answers)]:
            watch.take_counters({0: 1})
    ((at, silence),) = told
    assert silence.kind == "silent"
    assert silent_from + 80 - 20 <= at <= silent_from + 80 + 3 * 20
