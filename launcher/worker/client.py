"""The worker's side of the signals between worker and agent: stop requested, heartbeat, progress, checkpoint saved.

They are numbers in the shared page, memory that both processes map (`launcher.hardware.linux.shared_page`): to poll or
to report is a read or a write of memory, a fraction of a microsecond. What a worker says about its own failure is in
`claims`.

Under a launcher without a shared page, and in a process that has not inherited it, such as those that the `spawn`
method of multiprocessing starts, no stop is requested and no report is read: the answers are False.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from launcher.hardware.linux import shared_page
from launcher.worker import recorder


class WorkerPage:
    """The shared page as this worker sees it: the numbers of the agent's line, and of its own."""

    __slots__ = ("agents", "has_sent_heartbeat", "line", "own", "round")

    def __init__(self, numbers: memoryview, line: int, round_number: int) -> None:
        self.agents = numbers[: shared_page.NUMBERS_PER_LINE]
        self.own = numbers[line * shared_page.NUMBERS_PER_LINE :]
        self.line = line
        self.round = round_number
        self.has_sent_heartbeat = False


_page: WorkerPage | None = None
_is_resolved = False


def stop_requested() -> bool:
    """Return whether this round's workers should save and exit, with any exit code.

    True from the moment at which the agent of this node acts on a signal, a drain, or a restart on more nodes, until
    the worker ends; the agent kills it after `--shutdown-timeout`. Never true because a worker has failed: the next
    round repeats the lost work anyway. Agents of other nodes act a moment earlier or later, so ranks that communicate
    in every step must agree first, for instance with an all-reduce of the result.

    A worker that calls this function needs no signal handler. After the first call, the agent sends the worker a stop
    signal only if the worker has a handler for it, and never sends SIGINT. A call costs less than a microsecond. Always
    False without a shared page. For the remaining time and the reason, use `stop_request`.
    """
    page = find_page()
    if page is None:
        return False
    page.own[shared_page.POLLED_ROUND] = page.round
    return bool(page.agents[shared_page.STOPPED_ROUND] >= page.round)


class StopRequest(NamedTuple):
    """`reason`: a sentence from this node's agent. `seconds_left`: the remaining time to save; never negative."""

    reason: str
    seconds_left: float


def stop_request() -> StopRequest | None:
    """Return the reason for the stop of this round's workers and the remaining time; None without a stop request.

    The time ends when this worker is killed, or when the machine stops, if a notice announces an earlier time. Workers
    on other nodes may have more time. The time can become shorter while workers save. A call has the same effects as
    `stop_requested`, and costs one or two system calls once there is a request. Always None without a shared page.
    """
    page = find_page() if stop_requested() else None
    if page is None:
        return None
    until_s = page.agents[shared_page.STOP_UNTIL_MS] / 1000
    reason = ""
    with suppress(OSError, KeyError, ValueError):  # the script has closed the page, or removed its variable
        reason = shared_page.read_reason(shared_page.find_line(os.environ[shared_page.VARIABLE])[0], 0)
    return StopRequest(reason, max(0.0, until_s - time.clock_gettime(time.CLOCK_BOOTTIME)))


def heartbeat() -> bool:
    """Report that this worker makes progress; return whether the agent reads heartbeats, as it does by default.

    Heartbeats are a sign of progress for `--hang-timeout`. With `--heartbeat-timeout`, a worker that has sent a
    heartbeat and then sends none for that time counts as failed, and the job restarts as after any failure. A worker
    that has sent none has no time-out. Call this function once per step, from the second step on, and also within
    other long phases. A call costs less than a microsecond.

    With `--heartbeat-timeout`, the first heartbeat enables Python's faulthandler unless it is already enabled: the
    agent sends a silent worker SIGABRT, and faulthandler then prints the stacks of its threads to stderr.
    """
    page = find_page()
    if page is None:
        return False
    if not page.has_sent_heartbeat:
        page.has_sent_heartbeat = True
        if page.agents[shared_page.TIMEOUT_MS]:
            import faulthandler

            # A worker that is ended as silent may be restarted: its stacks belong into its output, not into a report.
            if not faulthandler.is_enabled() or hasattr(faulthandler, "is_of_launcher"):
                faulthandler.enable(file=2)
    page.own[shared_page.HEARTBEAT_COUNT] += 1
    return bool(page.agents[shared_page.READS_HEARTBEATS])


def progress(step: int, *, total_steps: int | None = None, metrics: Mapping[str, object] | None = None) -> bool:
    """Report that this worker has completed training step `step`, from 0; return whether the report reached the agent.

    After three failed rounds in a row that did not get beyond the highest step of all rounds before them, the job ends
    with exit code 76. Count the steps of the whole training, not of this round. One worker may report for all, at each
    step or at each checkpoint. A call costs less than a microsecond. Raises ValueError for a negative step, TypeError
    for a value other than an integer.

    `total_steps` and `metrics`, a dictionary of numbers or strings, are for `--progress`; a worker on the node of rank
    0 reports them. Each value is kept until another call replaces it. With one of these arguments, a call costs about
    25 microseconds, plus the wait for a metric that is a tensor on a device. No value of `metrics` raises an error.
    """
    page = find_page()
    if not 0 <= step < shared_page.STEPS_MAX:
        raise ValueError(f"step {step} is not between 0 and {shared_page.STEPS_MAX}")
    if page is None:
        return False
    if step >= page.own[shared_page.REACHED_STEP]:
        page.own[shared_page.REACHED_STEP] = step + 1
    if total_steps is not None or metrics:
        from launcher.worker.figures import report_figures

        report_figures(page.line, page.round, total_steps, metrics or {})
    return True


def checkpoint_saved() -> bool:
    """Report that the workers have saved their state; return whether the report reached the agent.

    One worker may report for all. With `--grow checkpoint`, the agent reads the report within a second, and the job
    restarts on more nodes if there are any.
    """
    page = find_page()
    if page is None or not page.agents[shared_page.SAVE_COUNT]:
        return False
    page.agents[shared_page.SAVE_COUNT] += 1
    return True


def find_page() -> WorkerPage | None:
    """Return this worker's shared page; None where there is none. Opens the flight recorder's socket, if it is time."""
    if not recorder.is_settled:
        recorder.open_recorder()
    return _page if _is_resolved else _resolve_page()


def write_claim(kind: int, reason: str) -> bool:
    """Tell the agent what this worker claims about its failure; True if the agent was reached."""
    page = _page if _is_resolved else _resolve_page()
    if page is None:
        return False
    with suppress(OSError, KeyError, ValueError):  # without the text the claim still counts
        descriptor, _ = shared_page.find_line(os.environ[shared_page.VARIABLE])
        os.pwrite(descriptor, shared_page.encode_reason(reason), shared_page.find_reason_offset(page.line))
    page.own[shared_page.CLAIM] = kind
    return True


def _resolve_page() -> WorkerPage | None:
    """Map the shared page once for this process; None where there is none."""
    global _page, _is_resolved
    try:
        _page = _map_page(os.environ.get(shared_page.VARIABLE, ""), os.environ.get("LAUNCHER_ROUND", ""))
    except (OSError, ValueError):  # closed, or the descriptor is another file by now
        _page = None
    _is_resolved = True
    return _page


def _map_page(name: str, round_text: str) -> WorkerPage | None:
    """Map the page that `name` describes, None if it is too small for its line. Raises what `find_line` does."""
    descriptor, line = shared_page.find_line(name)
    if (line + 1) * shared_page.LINE_SIZE > os.fstat(descriptor).st_size:
        return None
    import mmap

    size = (line + 1) * shared_page.LINE_SIZE  # far behind lie texts, which are written to the file
    return WorkerPage(memoryview(mmap.mmap(descriptor, size)).cast("Q"), line, int(round_text))
