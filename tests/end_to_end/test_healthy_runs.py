"""Jobs that pause for longer than --hang-timeout and are well: some of `make slow WHAT=healthy`, beside a hang."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.jobs.healthy_runs import CONTROL, RUNS, Run, run

SOME = [Run("evaluate", "torch", 2), Run("save", "jax", 1), Run("stopped", "torch", 2)]
HANG = Run(CONTROL, "torch", 2)


def test_of_silent_jobs_only_the_one_without_a_reason_is_called_hung(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    assert set(SOME) <= set(RUNS)
    directories = [tmp_path / str(number) for number in range(len(SOME) + 1)]
    for directory in directories:
        directory.mkdir()
    with ThreadPoolExecutor(len(directories)) as pool:
        *healthy, hung = pool.map(run, (*SOME, HANG), directories)
    assert [outcome.alarms for outcome in healthy] == [[], [], []]
    assert len(hung.alarms) == 2, "each agent says it once"
