"""When a member is dialled, and what refused dials prove: on a clock of the test's own."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from rendezvous.peers import dial_attempt

REFUSED, HELD, LOST = "refused", "taken without an answer", "never arrived"


def proving(now: float = 100.0) -> dial_attempt.DialAttempt:
    pursuit = dial_attempt.DialAttempt("m", "h:1")
    pursuit.prove(now)
    return pursuit


@pytest.mark.parametrize(
    ("dials", "is_proven"),
    [
        ([REFUSED], False),
        ([REFUSED, REFUSED], True),
        ([HELD] * 5, False),
        ([LOST] * 5, False),
        ([REFUSED, HELD, REFUSED], False),
        ([REFUSED, LOST, REFUSED], False),
        ([HELD, HELD, REFUSED, REFUSED], True),
    ],
    ids=str,
)
def test_two_refusals_in_a_row_and_nothing_else_prove_that_nobody_is_left(dials: list[str], is_proven: bool) -> None:
    pursuit, now = proving(), 100.0
    answers = []
    for dial in dials:
        assert pursuit.next_at < math.inf
        now = pursuit.next_at
        answers.append(pursuit.fail(now, is_refused=dial == REFUSED))
    assert answers == [False] * (len(dials) - 1) + [is_proven]
    assert pursuit.is_proving is not is_proven


def test_a_proof_ends_and_is_sought_less_often_where_others_answer() -> None:
    pursuit, times = proving(), [100.0]
    while pursuit.is_wanted:
        pursuit.fail(times[-1], is_refused=False)
        times.append(pursuit.next_at)
    pauses = [later - earlier for earlier, later in pairwise(times[:-1])]
    assert pauses[0] == pytest.approx(dial_attempt.PROOF_INTERVAL_S)
    assert max(pauses) == pytest.approx(dial_attempt.PROOF_DELAY_MAX_S)
    assert times[-1] == math.inf
    assert (
        dial_attempt.PROOF_LIMIT_S <= times[-2] - 100.0 <= dial_attempt.PROOF_LIMIT_S + dial_attempt.PROOF_DELAY_MAX_S
    )
    pursuit = dial_attempt.DialAttempt("m", "h:1")
    pursuit.connect(0.0)
    pursuit.succeed()
    pursuit.prove(10.0)
    assert not pursuit.fail(10.0, is_refused=True)
    assert pursuit.fail(10.1, is_refused=True)
    assert pursuit.is_connecting
    assert 10.1 < pursuit.next_at < math.inf


def test_attended_members_and_strangers_are_dialled_ever_less_often() -> None:
    pursuit, now = dial_attempt.DialAttempt("m", "h:1"), 5.0
    pursuit.connect(now)
    assert pursuit.next_at == now
    pauses = []
    for _ in range(12):
        pursuit.fail(now, is_refused=True)
        pauses.append(pursuit.next_at - now)
        now = pursuit.next_at
    assert pauses[:4] == pytest.approx([0.02, 0.04, 0.08, 0.16])
    assert pauses[-1] == dial_attempt.DELAY_MAX_S
    pursuit.succeed()
    assert pursuit.next_at == math.inf
    pursuit, now, dials = dial_attempt.DialAttempt("m", "h:1"), 0.0, 0
    pursuit.connect(now)
    while now < 60.0:
        pursuit.fail(now, is_refused=False, is_rejected=True)
        now, dials = pursuit.next_at, dials + 1
    assert dials == 22
    pursuit.fail(now, is_refused=False, is_rejected=True)
    assert pursuit.next_at - now == pytest.approx(dial_attempt.REJECTED_DELAY_MAX_S)
    pursuit.fail(now, is_refused=True)  # it has gone, and the member itself may come back there
    assert pursuit.next_at - now == pytest.approx(dial_attempt.DELAY_MAX_S)


def test_a_failed_dial_resolves_anew_and_a_refused_one_follows_at_once() -> None:
    pursuit = dial_attempt.DialAttempt("m", "h:1")
    pursuit.targets = [(2, ("10.0.0.1", 1))]
    pursuit.connect(0.0)
    pursuit.fail(0.0, is_refused=True)
    assert not pursuit.is_source_open
    assert pursuit.targets
    pursuit.fail(1.0, is_refused=False)
    assert pursuit.is_source_open
    assert not pursuit.targets
    pursuit = proving()
    assert pursuit.next_at == 100.0
    pursuit.fail(100.0, is_refused=True)
    assert pursuit.next_at == 100.0 + dial_attempt.PROOF_INTERVAL_S
    pursuit = dial_attempt.DialAttempt("m", "h:1")
    pursuit.connect(0.0)
    assert not any(pursuit.fail(now, is_refused=True) for now in range(10))
