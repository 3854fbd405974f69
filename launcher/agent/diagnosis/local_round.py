"""What is known of the round on this node when its workers are to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from launcher.diagnose.request import Target
from launcher.worker.grid import WorkerMesh


class LocalRound(NamedTuple):
    """The round on this node."""

    number: int
    mesh: WorkerMesh
    """Of the whole world."""
    targets: Sequence[Target]
    """The workers that run."""
    exit_codes: dict[int, int]
    """By rank, of the workers that have ended."""
