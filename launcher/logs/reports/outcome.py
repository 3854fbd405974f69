"""The run's outcome, as JSON in a file, for the program that started it and has requested that by a variable.

It replaces the failure report and an error's sentence on stderr: that program informs its user itself.
`launcher.launch` is one. The file is written at every end, a success included, under another name first, so that it
is complete or absent.
"""

from __future__ import annotations

import json
import os

from launcher.config.scrub import END_FILE
from launcher.logs.reports.report import WorkerFailure
from rendezvous.errors import RecordError
from rendezvous.values import dataclass

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """`round` and `ranks`: the last round and this node's ranks in it, none if it had none. `failures`: the root cause
    first; empty if no worker's failure was the reason. `reason`: a sentence.
    """

    exit_code: int
    reason: str
    hint: str | None = None
    round: int = 0
    ranks: tuple[int, ...] = ()
    failures: tuple[WorkerFailure, ...] = ()
    is_order_known: bool = True


def write(outcome: RunOutcome) -> bool:
    """Write it if the variable is set; False if it is not, or if writing failed and it must be reported otherwise."""
    path = os.environ.get(END_FILE)
    if not path:
        return False
    content = {**vars(outcome), "failures": [failure.to_json() for failure in outcome.failures], "version": VERSION}
    try:
        with open(f"{path}.part", "w") as file:
            json.dump(content, file)
        os.rename(f"{path}.part", path)
    except OSError:
        return False
    return True


def read(path: str) -> RunOutcome | None:
    """Read the outcome; None for nothing, and for what this version cannot read."""
    try:
        with open(path) as file:
            content = json.load(file)
        if content.pop("version") != VERSION:
            return None
        failures = [WorkerFailure.from_json(failure) for failure in content.pop("failures")]
        return RunOutcome(**{**content, "failures": tuple(failures), "ranks": tuple(content["ranks"])})
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, RecordError):
        return None
