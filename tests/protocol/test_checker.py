"""The checker has no blind spot where it says that it looks: each bug planted here is found, and by its letter.

Nor does it see a bug where there is none.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import simulate, transcript
from tests.support.protocol.rules import take_out

SEEDS = 130  # each is found within so many


@pytest.mark.parametrize(
    ("letter", "bug"),
    [
        ("S1", "the watchdog ends with the lease"),
        ("S2", "a fence leaves a grace"),
        ("S2", "a broken connection is a proof"),
        ("S3", "success when told to leave"),
        ("S5", "ages are rounded up"),
        ("S5", "ages count from the last read"),
        ("S5", "ages stand still"),
        ("S5", "the oldest loss is forgotten"),
        ("S5", "failures are free"),
        ("S6", "there is no watchdog"),
        ("S6", "watches are left behind"),
        ("S7", "non-members of the roster may lead"),
        ("S8", "the first port is used for ever"),
        ("S9", "the last failure is blamed"),
        ("S10", "writes do not name the own key"),
        ("L1", "it wakes at once"),
        ("L2", "renewals are too rare"),
        ("L1|L5|S1", "lost watches stay lost"),
    ],
)
def test_a_planted_bug_is_found_by_its_letter(letter: str, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_out(monkeypatch, bug)
    with pytest.raises(simulate.Violation, match=f"^({letter}): "):
        _run_seeds()


def test_a_node_at_fault_that_is_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (Path(__file__).parent / "transcripts" / "blamed_node_sits_out.txt").read_text()
    take_out(monkeypatch, "the oldest node at fault is forgotten")
    assert "S5: of the nodes at fault b b," in transcript.run(script)


def test_a_new_strike_and_an_answer_that_names_the_next_leader_are_no_faults() -> None:
    assert simulate.run(922).counts["restart given back"] == 1
    result = simulate.run(4764)
    assert result.counts["asked: seal"] > result.rounds  # the one that the store refused


def _run_seeds() -> None:
    for seed in range(SEEDS):
        simulate.run(seed)
