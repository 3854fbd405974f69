"""What the leader decides, a rule at a time: decisions.txt, in the words of tests/support/protocol/views.py.

To accept a change of a decision, run with UPDATE_TRANSCRIPTS=1 and read the difference as you would code.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from rendezvous.policy.decide import decide
from rendezvous.policy.decisions import EndJob
from rendezvous.settings import Settings
from tests.support.protocol.views import describe, failed, members, play, running, sizer, stopping

FILE = Path(__file__).parent / "decisions.txt"
RULES = [block for block in FILE.read_text().strip().split("\n\n") if not block.startswith("##")]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.partition("\n")[0].strip("# "))
def test_the_leader_decides(rule: str) -> None:
    if os.environ.get("UPDATE_TRANSCRIPTS"):
        FILE.write_text(play(FILE.read_text()))
        return
    assert play(rule) == rule + "\n"


def test_what_is_named_in_a_verdict_or_reason_is_few_and_short() -> None:
    texts = ["cause", "x" * 30_000, "2", "", "4", "5", "6", "7"]
    ids = "abcdefgh"
    statuses = {
        m: failed(100.0 + i, revision=i, failure=text) for i, (m, text) in enumerate(zip(ids, texts, strict=True))
    }
    view = replace(stopping(), active=tuple(ids), statuses=statuses, members=members(ids))
    decision = decide(view, 200.0, Settings(), sizer)
    assert isinstance(decision, EndJob)
    assert (decision.verdict.failure, decision.verdict.others) == ("cause", ("2", "4", "5", "6"))
    names = {f"m{index}": f"n{index}" for index in range(7)}
    view = replace(running("a"), active=tuple(names), lost_at=dict.fromkeys(names, 120.0), names=names)
    said = describe(decide(view, 130.0, Settings(), sizer))
    assert "nodes=n0,n1,n2,n3,n4,n5,n6 " in said
    assert said.endswith(": lost nodes=(nodes names=n0,n1,n2,n3 count=7) round=4")
