"""The primary failure of a job that torchrun gives up: recorded by its node, shown by the others.

torchrun raises it as an exception at the end of the job, and does not pass it to its rendezvous. But it closes the
rendezvous while that exception is being handled.
"""

from __future__ import annotations

import json
import os
import time

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from launcher.logs.error_file import read_error_file
from launcher.logs.reports.final_report import report_failure
from launcher.logs.reports.report import WorkerFailure
from rendezvous.events import Exit


def find_root_cause(error: BaseException | None) -> tuple[int, str, int]:
    """Return the first failure among the workers here: the job's exit code, the text for the verdict, the rank."""
    if not isinstance(error, ChildFailedError):
        return 1, "", -1
    rank, found = error.get_first_failure()
    failure = WorkerFailure(
        rank=rank,
        local_rank=found.local_rank,
        pid=found.pid,
        exit_code=found.exitcode,
        time=time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(found.timestamp)),
        host=os.uname().nodename,
        message=read_error_file(found.error_file),
    )
    exit_code = found.exitcode if found.exitcode > 0 else 128 - found.exitcode
    return exit_code, json.dumps(failure.to_json()), rank


def report(end: Exit) -> None:
    """Show the failure of another node, if the verdict carries one; torchrun shows those of its own workers."""
    if end.verdict is not None and end.verdict.kind == "failure" and end.verdict.failure:
        report_failure(end.verdict, (), os.uname().nodename, "torchrun")
