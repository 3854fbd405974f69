"""A few of the command lines of `make slow WHAT=compat`, by meshrun alone: torchrun takes minutes.

What is expected is what torchrun was seen to do, or the row of the list of differences; see tests/compat.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.differences import differences, expected, plain
from tests.compat.runs import Case, run
from tests.compat.table import CASES, duplicate_sentences

# What no other test looks at: every option at once, what can be run, nodes that differ.
CHOSEN = (
    "PET_ variables",
    "flags without a value",
    "underscores and a blank",
    "beginnings of names",
    "a script",
    "a module",
    "a directory",
    "run-path",
    "run-path and exit 0",
    "run-path and exit 3",
    "a zip file",
    "another interpreter",
    "two workers",
    "a static rendezvous by its endpoint",
    "log files that are not wanted",
    "output that is not UTF-8",
    "a process of a worker's own",
    "two nodes of unequal size",
    "two roles",
)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in CHOSEN], ids=lambda case: case.name)
def test_a_command_line_does_what_it_does_under_torchrun(case: Case, tmp_path: Path) -> None:
    seen = run(case, "meshrun", tmp_path)
    listed = differences()
    shown = {sentence: plain(see(seen)) for sentence, (see, _) in case.looks.items()}
    wanted = {
        sentence: expected("meshrun", sentence, torchruns, listed) for sentence, (_, torchruns) in case.looks.items()
    }
    assert shown == wanted, seen.said


def test_the_chosen_cases_are_there() -> None:
    assert set(CHOSEN) <= {case.name for case in CASES}
    assert not duplicate_sentences(CASES)
