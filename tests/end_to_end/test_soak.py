"""Some seconds of the soak: agents that come and go at random, and every rule that must hold meanwhile."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.support.soak.__main__ import soak, told

pytestmark = pytest.mark.server

SEED = int(os.environ.get("SOAK_SEED", random.SystemRandom().randrange(10**6)))
SECONDS = 10.0


def test_agents_that_come_and_go_at_random_break_no_rule(tmp_path: Path) -> None:
    """SOAK_SEED gives the same faults again."""
    outcomes = soak(SECONDS, agents=5, seed=SEED, directory=tmp_path)
    print(f"seed {SEED}: {told(outcomes)}")
    assert [sentence for outcome in outcomes for sentence in outcome.broken] == []
    assert all(outcome.faults for outcome in outcomes)
