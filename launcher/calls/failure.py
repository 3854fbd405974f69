"""The exception of `launch` for a failed worker: the primary failure in full, as the command would report it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.logs.reports import report
from launcher.model.errors import LauncherError, TemporaryError, UsageError
from launcher.supervisor.messages import find_signal_name
from rendezvous.errors import EXIT_TEMPORARY, EXIT_USAGE, MeshrunError

if TYPE_CHECKING:
    from launcher.logs.reports.outcome import RunOutcome
    from launcher.logs.reports.report import WorkerFailure

_MESSAGE_MAX = 200  # characters of an exception in the sentence; the box below has more
_ERRORS: dict[int, type[LauncherError]] = {EXIT_USAGE: UsageError, EXIT_TEMPORARY: TemporaryError}


class WorkerFailed(LauncherError):
    """A worker failed, and no restart was left: the first failure, on any node.

    `rank`, `local_rank`, `host` and `pid` identify the worker. `exit_code` is its exit code, or the negative number of
    the signal that ended it. `traceback` is the text of the exception that left the function, or None (after a signal
    or `os._exit`). If the worker ran under this call and its exception can be pickled, `__cause__` is that exception.
    `failures` has all known facts about this and other failed workers; `outcome` is why the job did not restart.

    `title`: the program. `failures`: not empty, the root cause first; the others are of any node, of the job's last
    round. `is_order_known`: False if another failure came so close, on another host, that it may have been first.
    """

    def __init__(
        self, title: str, failures: tuple[WorkerFailure, ...], outcome: str, is_order_known: bool = True
    ) -> None:
        root = failures[0]
        box = report.render(title, failures, outcome=outcome, is_order_known=is_order_known)
        super().__init__(f"{title}: {_describe_failure(root)}\n{box}")
        self._arguments = title, failures, outcome, is_order_known
        self.rank = root.rank
        self.local_rank = root.local_rank
        self.host = root.host
        self.pid = root.pid
        self.exit_code = root.exit_code
        self.traceback = root.message
        self.failures = failures
        self.outcome = outcome

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments


def _describe_failure(failure: WorkerFailure) -> str:
    who = f"rank {failure.rank} on {failure.host}"
    if failure.is_stand_in:
        return failure.finding[0]
    if failure.exit_code < 0:
        return f"{who} was ended by {find_signal_name(failure.exit_code)}"
    said = failure.sentence or failure.exception
    return f"{who} failed with exit code {failure.exit_code}" + (f": {said[:_MESSAGE_MAX]}" if said else "")


def add_hint(error: MeshrunError) -> MeshrunError:
    """Add the hint where Python shows it, below the sentence."""
    note = f"hint: {error.hint}"
    if error.hint and note not in (*getattr(error, "__notes__", ()), *str(error).split("\n")):
        if hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(note)
        else:
            error.args = (f"{error}\n{note}",)
    return error


def require_success(
    title: str, end: RunOutcome, failures: tuple[WorkerFailure, ...], cause: BaseException | None = None
) -> None:
    """Raise the error of a job that did not succeed. `failures`: as they are to be reported; `cause`: of the first."""
    if end.exit_code == 0:
        return
    if not failures:
        raise _ERRORS.get(end.exit_code, LauncherError)(end.reason, end.hint)
    raise WorkerFailed(title, failures, end.reason, end.is_order_known) from cause


# The name that users import: shorter in a traceback, and the one by which pickle imports it.
WorkerFailed.__module__ = "launcher"
