"""What is known of the round on this node when its workers are to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from launcher.diagnose.request import Target
from launcher.worker.grid import WorkerMesh


class LocalRound(NamedTuple):
    """The round on this node. `targets`: those that run. `mesh`: of the whole world. `exit_codes`: by rank."""

    number: int
    mesh: WorkerMesh
    targets: Sequence[Target]
    exit_codes: dict[int, int]
