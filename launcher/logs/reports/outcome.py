"""How the run ended, said once: to the program that started it, or as the failure report on stderr.

A program that has requested the outcome by a variable gets it as JSON in a file, and informs its user itself;
`launcher.launch` is one. The file is written at every end, a success included, under another name first, so that it is
complete or absent. A failure of another node comes as text in the verdict, and what this node knows of its own workers
is added to it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from launcher.config.scrub import END_FILE
from launcher.hardware.linux.files import replacing
from launcher.logs.error_file import copy_error_file
from launcher.logs.reports.report import WorkerFailure, parse_failure, render
from launcher.model.console import log, write_stderr
from launcher.model.errors import describe, give_hint
from rendezvous import codec
from rendezvous.errors import EXIT_TEMPORARY, RecordError
from rendezvous.events import Exit
from rendezvous.records import Verdict

_MISSING_NODES_HINT = "start the same command on the missing nodes; --start-timeout sets how long the other nodes wait"
REPORT_LIMIT_S = 5.0  # for a reader of a full stderr: this is the last output, so nothing else is delayed


class RunOutcome(Struct, frozen=True, kw_only=True):
    """How a run ended on this node."""

    exit_code: int
    reason: str
    """A sentence."""
    hint: str | None = None
    round: int = 0
    """The last round."""
    ranks: tuple[int, ...] = ()
    """This node's ranks in that round, none if it had none."""
    failures: tuple[WorkerFailure, ...] = ()
    """The root cause first; empty if no worker's failure was the reason."""
    is_order_known: bool = True
    has_verdict: bool = False
    """Whether the job has ended, and not only this node's part in it."""
    version: Literal[1] = 1


def write(outcome: RunOutcome) -> bool:
    """Write it if the variable is set; False if it is not, or if writing failed and it must be reported otherwise."""
    path = os.environ.get(END_FILE)
    if not path:
        return False
    try:
        with replacing(path) as file:
            file.write(codec.encode(outcome))
    except OSError:
        return False
    return True


def read(path: str) -> RunOutcome | None:
    """Read the outcome; None for nothing, and for what cannot be read."""
    try:
        with open(path, "rb") as file:
            return codec.decode(RunOutcome, file.read(), "the outcome")
    except (OSError, RecordError):
        return None


def write_outcome(end: Exit, own: Sequence[WorkerFailure], ranks: Sequence[int], host: str) -> bool:
    """Write the outcome to the file that the program which started this agent has named; False if it has not.

    `own`: the failures of this node's workers; `ranks`: its ranks in the verdict's round.
    """
    verdict = end.verdict
    failures = _sort_failures(verdict, own) if verdict is not None else []
    outcome = RunOutcome(
        exit_code=end.exit_code,
        reason=describe(end.reason if verdict is None else verdict.reason),
        hint=give_hint(end.reason) or None,
        round=verdict.round if verdict is not None else 0,
        ranks=tuple(ranks),
        failures=tuple(failures),
        is_order_known=verdict is None or verdict.is_first_sure,
        has_verdict=verdict is not None,
    )
    if (is_left := write(outcome)) and failures:
        _copy_error_file(failures[0], host)
    return is_left


def report_failure(verdict: Verdict, own: Sequence[WorkerFailure], host: str, script: str) -> None:
    """Report why the job failed: the verdict's failure first, then the others it names and this node's own."""
    failures = _sort_failures(verdict, own)
    if not failures:
        log(f"error: {describe(verdict.reason)}")
        if verdict.exit_code == EXIT_TEMPORARY and verdict.round == 0:
            write_stderr(f"hint: {_MISSING_NODES_HINT}")
        return
    text = render(script, failures, outcome=describe(verdict.reason), is_order_known=verdict.is_first_sure, here=host)
    write_stderr(text, patience_s=REPORT_LIMIT_S)
    _copy_error_file(failures[0], host)


def _sort_failures(verdict: Verdict, own: Sequence[WorkerFailure]) -> list[WorkerFailure]:
    """Return the verdict's failure, then the others; none if it has none that can be read."""
    root = parse_failure(verdict.failure)
    if root is None:
        return []
    known = {_identify(failure): failure for failure in own}  # with their last lines
    root = known.get(_identify(root), root)
    told = [failure for text in verdict.others if (failure := parse_failure(text)) is not None]
    others = {_identify(failure): failure for failure in told} | known
    others.pop(_identify(root), None)
    return [root, *others.values()]


def _copy_error_file(root: WorkerFailure, host: str) -> None:
    """Copy the root cause's file to the launcher's own TORCHELASTIC_ERROR_FILE."""
    target = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if target and root.error_file and root.host == host:
        try:
            copy_error_file(root.error_file, target, root.exit_code)
        except OSError as error:
            log(f"cannot copy the failure to {target}: {error.strerror}")


def _identify(failure: WorkerFailure) -> tuple[str, int, int]:
    return failure.host, failure.pid, failure.rank
