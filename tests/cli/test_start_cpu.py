"""What meshrun's start and restart cost in CPU time, in units of a Python that does nothing.

`test_start` counts modules and bytes; this test sees what they cost, on the day that they cost more. CPU time, unlike
wall time, hardly changes when other programs use the cores, and a slower machine needs as much longer for the unit. The
two are measured in turns, and the median of the turns counts.

The limits are a fifth above what was measured. They only fall: a change that needs more first has to save elsewhere.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence

import pytest

from benchmarks.pairs import COMMANDS as LAUNCHERS
from benchmarks.pairs import environment
from benchmarks.runs import OURS

START_MAX = 7.8
"""Of a job of one worker that does nothing."""
WORKER_MAX = 0.35
"""Of each further worker."""
RESTART_MAX = 4.0
"""Of a restart of four workers after one of them has failed."""
TURNS = 5
LAUNCHER = [*LAUNCHERS[OURS], "--standalone", "--no-python"]
# One worker fails in the first round, if it is to; the others sleep until they are stopped.
FAILING = 'test "$TORCHELASTIC_RESTART_COUNT" = $0 && exit 0; test $LOCAL_RANK = 1 && exit 1; exec sleep 60'
COMMANDS = {
    "unit": [sys.executable, "-c", "pass"],
    "one": [*LAUNCHER, "--nproc-per-node=1", "true"],
    "eight": [*LAUNCHER, "--nproc-per-node=8", "true"],
    "no restart": [*LAUNCHER, "--nproc-per-node=4", "--max-restarts=1", "sh", "-c", FAILING, "0"],
    "restart": [*LAUNCHER, "--nproc-per-node=4", "--max-restarts=1", "sh", "-c", FAILING, "1"],
}
UNITS = 5  # of them in each turn, since one is short

Turn = dict[str, float]


def spend_cpu_s(command: Sequence[str]) -> float:
    """CPU time of a program and of all that it starts and waits for. Fails if the program does."""
    with open(os.devnull, "r+b") as nothing:
        actions = [(os.POSIX_SPAWN_DUP2, nothing.fileno(), descriptor) for descriptor in (0, 1, 2)]
        pid = os.posix_spawn(command[0], command, environment(), file_actions=actions)
    _, status, used = os.wait4(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, command
    return used.ru_utime + used.ru_stime


def take_turn() -> Turn:
    """CPU time of every command, in units."""
    unit_s = statistics.fmean(spend_cpu_s(COMMANDS["unit"]) for _ in range(UNITS))
    return {name: spend_cpu_s(command) / unit_s for name, command in COMMANDS.items() if name != "unit"}


@pytest.fixture(scope="module")
def turns() -> list[Turn]:
    take_turn()  # compiles modules and fills caches
    return [take_turn() for _ in range(TURNS)]


def test_a_start_needs_no_more_cpu_time_than_it_did(turns: list[Turn]) -> None:
    assert statistics.median(turn["one"] for turn in turns) <= START_MAX


def test_a_further_worker_needs_no_more_cpu_time_than_it_did(turns: list[Turn]) -> None:
    assert statistics.median((turn["eight"] - turn["one"]) / 7 for turn in turns) <= WORKER_MAX


def test_a_restart_needs_no_more_cpu_time_than_it_did(turns: list[Turn]) -> None:
    assert statistics.median(turn["restart"] - turn["no restart"] for turn in turns) <= RESTART_MAX
