"""Clients as their users start them, with meshrun in front. If one fails, torchrun shows whose fault it is."""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.jobs.examples import LIMIT_S, Run

PROGRAMS = Path(__file__).parent / "programs"
# A thread of gloo's that still has a tensor to give back when Python ends aborts the process, whoever has started it
# (pytorch issue 190489): 4 of 72 processes without a launcher. What the client had to do is done by then.
ABORT = "terminate called without an active exception"
TRIES = 3


def outcome(launcher: str, directory: Path, *words: str) -> tuple[int | None, str]:
    """The exit code and all that was printed; None for one that does not end."""
    with Run(launcher, directory, *words) as run:
        with suppress(AssertionError):
            run.wait(LIMIT_S)
        return run.exit_code, run.output


def said(directory: Path, *words: str) -> str:
    """What the client prints under meshrun. Fails if it does not exit with 0, and says how it fares under torchrun.

    One that torch has aborted at its end gets two more tries.
    """
    for _ in range(TRIES):
        code, output = outcome("meshrun", directory, *words)
        if code != 128 + signal.SIGABRT or ABORT not in output:
            break
        print(f"aborted by torch as it ended, tried again: {' '.join(words)}")
    if code != 0:
        other, _ = outcome("torchrun", directory, *(word for word in words if not word.startswith("--mesh")))
        pytest.fail(f"exit code {code} under meshrun, {other} under torchrun (None: does not end):\n{output}")
    return output


def losses(output: str) -> list[float]:
    """The numbers behind "loss" at the start of a line."""
    return [float(loss) for loss in re.findall(r"^loss ([0-9.]+)$", output, re.MULTILINE)]
