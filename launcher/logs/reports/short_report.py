"""The report of a failed job as someone on call reads it: who failed, how, where its log is, what to do next.

    ================================================================================
    train.py FAILED
    Root Cause (first observed failure): rank 5 (pp=1,tp=1) on h2
      ValueError: bad shape
        File "/home/ada/train.py", line 12, in step
          loss = model(batch)
      exitcode  : 1 (pid: 6409), local_rank: 1, 2026-01-02 03:04:05
      log       : /logs/night_1a2b/attempt_0/1/stderr.log
    Other failures: ranks 0-4 (exit code 1)
    --------------------------------------------------------------------------------
    a worker failed on h2 in round 3, 2 of 2 restarts used
    hint: ...
    ================================================================================

Of a traceback the last frames, of many failures one line. `report` has torchrun's box, with everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.logs.reports.report import (
    WIDTH,
    WorkerFailure,
    choose_hint,
    describe_order,
    find_signal_name,
    format_exit_code,
    strip_controls,
    wrap,
)
from launcher.logs.reports.symptoms import split_traceback
from launcher.model import ranges

FRAMES_LIMIT = 3
LINES_LIMIT = 6  # of a text that is no traceback
GROUPS_LIMIT = 4  # of failures that ended alike
RANKS_MAX = 40  # letters; more are counted


def render(
    script: str, failures: Sequence[WorkerFailure], *, outcome: str, is_order_known: bool = True, here: str = ""
) -> str:
    """Return the box that goes to stderr, without a line end. The arguments are those of `report.render`."""
    root, *others = failures
    coordinates = f" ({strip_controls(root.coordinates)})" if root.coordinates else ""
    head = (
        f"Root Cause ({describe_order(is_order_known)}): rank {root.rank}{coordinates} on {strip_controls(root.host)}"
    )
    role = f", role: {strip_controls(root.role)}" if root.role not in ("", "default") else ""
    lines = ["=" * WIDTH, f"{strip_controls(script)} FAILED", *wrap(head), *_describe_cause(root)]
    lines.append(
        f"  exitcode  : {format_exit_code(root)}, local_rank: {root.local_rank}{role}, "
        f"{strip_controls(root.time.replace('T', ' ', 1))}"
    )
    if path := root.log_file or root.error_file:
        there = "" if here in ("", root.host) else f"{root.host}:"
        lines.append(f"  {'log       ' if root.log_file else 'error_file'}: {strip_controls(there + path)}")
    if others:
        lines += wrap(f"Other failures: {_summarize(others)}")
    lines += ["-" * WIDTH, *wrap(outcome)]
    if hint := choose_hint(root, here):
        lines += wrap(f"hint: {hint}")
    return "\n".join([*lines, "=" * WIDTH])


def _describe_cause(failure: WorkerFailure) -> list[str]:
    """Return how it ended, and the end of its traceback or of its output."""
    text = failure.message or "\n".join(failure.tail)
    frames, exception = split_traceback(text)
    said = strip_controls(failure.exception) if failure.exception and not failure.sentence else ""
    if not said or failure.exit_code < 0:
        ending = f"{failure.describe_ending()}: {said}" if said else failure.describe_ending()
        said = strip_controls(ending)
    lines = wrap(said)
    if frames:
        more = exception.split("\n")[1:LINES_LIMIT]
        body = [line for frame in frames[-FRAMES_LIMIT:] for line in frame]
    else:
        body, more = text.strip("\n").split("\n")[-LINES_LIMIT:] if text.strip() else [], []
        body = [] if body == [failure.exception] else [f"  {line}" for line in body]
    return [f"  {line}".rstrip() for line in [*lines, *map(strip_controls, [*more, *body])]]


def _summarize(failures: Sequence[WorkerFailure]) -> str:
    """Summarize failures: ranks 0-2, 4 (exit code 1); rank 7 (SIGKILL, out of memory)."""
    by_ending: dict[str, list[int]] = {}
    for failure in failures:
        by_ending.setdefault(_name_ending(failure), []).append(failure.rank)
    parts = [f"{_format_ranks(sorted(ranks))} ({ending})" for ending, ranks in by_ending.items()]
    left_out = sum(map(len, list(by_ending.values())[GROUPS_LIMIT:]))
    return "; ".join([*parts[:GROUPS_LIMIT], *([f"and {left_out} more"] if left_out else [])])


def _name_ending(failure: WorkerFailure) -> str:
    if failure.sentence:
        return strip_controls(failure.sentence)
    name = find_signal_name(failure.exit_code) or f"exit code {failure.exit_code}"
    return f"{name}, out of memory" if failure.is_out_of_memory else name


def _format_ranks(ranks: Sequence[int]) -> str:
    text = ranges.format_ranges(ranks)
    if len(text) > RANKS_MAX:
        return f"{len(ranks)} ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"
