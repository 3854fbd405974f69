"""JAX in several processes on CPUs: what is in `make test`, see tests/end_to_end/test_jax.py, is left out here."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.clients.running import PROGRAMS, said
from tests.support.jobs.examples import EXAMPLES, LIMIT_S, Run, finish_after_kill
from tests.support.waiting import wait_until

pytest.importorskip("jax")


def test_a_script_that_passes_torchs_variables_to_jax_needs_no_framework(tmp_path: Path) -> None:
    # --tee: Python prints a line and its end apart, and four workers at once would tear them.
    output = said(tmp_path, "--nproc-per-node=4", "--tee=3", str(PROGRAMS / "jax_sum.py"))
    found = re.findall(r"process ([0-9]) of 4: 4 devices, sum 10$", output, re.MULTILINE)
    assert sorted(found) == ["0", "1", "2", "3"]


def test_the_example_goes_on_where_a_killed_worker_left_it(tmp_path: Path) -> None:
    """Rank 0 among them: it has JAX's coordinator, and the next one listens on a port of its own."""
    finish_after_kill(tmp_path, "digits.npz", 0, "--framework=jax", str(EXAMPLES / "jax_digits.py"), "--epochs", "60")


def test_the_example_ends_at_once_when_it_fails(tmp_path: Path) -> None:
    """JAX alone would wait at exit for five minutes, and end by SIGABRT."""
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "digits.npz").write_bytes(b"not a checkpoint")
    words = ("--nproc-per-node=2", "--framework=jax", str(EXAMPLES / "jax_digits.py"), "--checkpoint", "saved")
    with Run("meshrun", tmp_path, *words) as run:
        assert "exitcode  : 1 " in run.require(1)


def test_the_example_saves_and_leaves_when_it_is_told_to_stop(tmp_path: Path) -> None:
    words = ("--nproc-per-node=2", "--framework=jax", str(EXAMPLES / "jax_digits.py"))
    with Run("meshrun", tmp_path, *words, "--checkpoint", "saved", "--epochs", "100000") as run:
        wait_until((tmp_path / "saved" / "digits.npz").exists, LIMIT_S, "the first checkpoint")
        run.send(signal.SIGTERM)
        assert "told to stop after epoch" in run.require(143)
