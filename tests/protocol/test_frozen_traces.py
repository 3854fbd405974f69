"""The agreement does what it did before anything was renamed, to the last message of each simulated run.

`tests/unit/frozen/traces.txt` holds a digest of the traces of every fifty seeds; BEFORE says which phrases of a trace
are others now. A renamed class leaves each trace as it is. A request more, or one in another order, draws
other random numbers and so changes all that follows. FREEZE_SEEDS=2000 plays all of them, and FREEZE=1 writes them
anew, for a change of behaviour.
"""

from __future__ import annotations

import hashlib
import os

import pytest

from tests.simulation import simulate
from tests.support.frozen import FOLDER

BLOCK = 50
SEEDS = int(os.environ.get("FREEZE_SEEDS", BLOCK))
FILE = FOLDER / "traces.txt"
BEFORE = {
    "quarantined for": "benched for",
    "reaches the end of its watchdog": "reaches the end of its leash",
    "no node has joined for": "nobody came for",
    "workers continue while no node of": "waiting for it as long as all nodes of",
    " reaches it": " find the same",
    "runs 1 rank": "runs 1 ranks",
    "failed; checking whether a lost node is the cause": "failed: waiting whether a lost node explains it",
    "not enough nodes within": "no world could be formed within",
}
"""What a phrase of today was when the traces were frozen."""


def digest(seeds: range) -> str:
    """Of the traces and results of these seeds, in the words of that time."""
    found = hashlib.sha256()

    def take(line: str) -> None:
        for new, old in BEFORE.items():
            line = line.replace(new, old)
        found.update(f"{line}\n".encode())

    for seed in seeds:
        result = simulate.run(seed, take)
        found.update(f"{seed} {result.members} {result.verdict} {result.rounds}\n".encode())
    return found.hexdigest()[:16]


@pytest.mark.parametrize("start", range(0, SEEDS, BLOCK))
def test_seeds_go_as_they_have_always_gone(start: int) -> None:
    frozen = dict(line.split() for line in FILE.read_text().splitlines()) if FILE.exists() else {}
    found = digest(range(start, start + BLOCK))
    if os.environ.get("FREEZE"):
        frozen[str(start)] = found
        lines = [f"{first} {frozen[first]}\n" for first in sorted(frozen, key=int)]
        FILE.write_text("".join(lines))
    assert frozen[str(start)] == found
