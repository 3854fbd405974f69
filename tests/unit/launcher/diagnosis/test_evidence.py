"""What travels of a rank's evidence: no more than 2 kB, and the inner frames and open calls of it."""

from __future__ import annotations

import pytest

from launcher.diagnosis.evidence import Call, Frame, GroupCalls, RankEvidence
from launcher.diagnosis.request import RANK_BYTES_MAX, shorten_evidence
from rendezvous.codec import decode, encode

STACK = tuple(Frame(function=f"step_{at}", file="/home/somebody/project/src/train.py", line=at) for at in range(40))


def group(at: int) -> GroupCalls:
    calls = [
        Call(
            number=number, operation="all_reduce", shape="[[4096, 4096]] ['Float']", is_open=number == 7, age_s=312.125
        )
        for number in (7, 100_000, 100_001, 100_002)
    ]
    times = (1_795_464_500_314, *(1200 for _ in range(19)))
    return GroupCalls(name=str(at), description="mesh_tp", calls=tuple(calls), entered_ms=times, lengths_ms=times[1:])


@pytest.mark.parametrize("groups", [3, 8])
def test_evidence_is_cut_to_2_kb_and_keeps_what_a_verdict_needs(groups: int) -> None:
    full = RankEvidence(
        rank=1000, state="sleeps", stack=STACK, groups=tuple(map(group, range(groups))), missing=("no stack: " * 99,)
    )
    assert len(encode(full)) > 2 * RANK_BYTES_MAX
    cut = decode(RankEvidence, encode(shorten_evidence(full)), "evidence")
    assert len(encode(cut)) <= RANK_BYTES_MAX
    assert cut.stack
    assert cut.stack[:4] == STACK[:4]
    assert cut.groups
    assert all(one.oldest_open == group(0).calls[0] and one.last == 100_002 for one in cut.groups)
    assert cut.is_truncated == (len(cut.groups) < groups)
    assert cut.missing[0].startswith("no stack: ")


def test_what_is_small_travels_whole() -> None:
    small = RankEvidence(rank=1, state="runs", stack=STACK[:3], groups=(group(1),), missing=("no recorder",))
    assert shorten_evidence(small) == small
