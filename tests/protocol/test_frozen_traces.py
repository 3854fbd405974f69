"""The agreement does what it did before anything was renamed, to the last message of each simulated run.

`tests/unit/frozen/traces.txt` holds a digest of the traces of every fifty seeds. A trace has the kinds of reasons and
no English, so neither a better sentence nor a renamed class changes it. A request more, or one in another order, draws
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


def digest(seeds: range) -> str:
    """Of the traces and results of these seeds."""
    found = hashlib.sha256()

    def take(line: str) -> None:
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
