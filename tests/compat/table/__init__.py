"""The table: command lines, and what torchrun 2.13 does with them. One file for each thing that people rely on.

`python -m tests.compat WORDS` shows what both launchers do now with the cases whose names hold these words.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.compat.runs import Case
from tests.compat.table import environment, failure, nodes, output, scripts, signals, spelling

CASES: tuple[Case, ...] = (
    *spelling.CASES,
    *scripts.CASES,
    *environment.CASES,
    *output.CASES,
    *failure.CASES,
    *signals.CASES,
    *nodes.CASES,
)


def duplicate_sentences(cases: Iterable[Case]) -> list[str]:
    """Sentences that stand for two different behaviours of torchrun, and names that two cases have."""
    means: dict[str, str] = {}
    names: set[str] = set()
    found = []
    for case in cases:
        if case.name in names:
            found.append(case.name)
        names.add(case.name)
        for sentence, (_, torchrun) in case.looks.items():
            if means.setdefault(sentence, torchrun) != torchrun:
                found.append(sentence)
    return found
