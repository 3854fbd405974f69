"""The report of a failed job: the primary failure, the secondary ones, and a hint.

One worker's crash makes the others fail too, and their output hides its cause. So the first failure comes first
and in full: exit code or signal by name, time, host, and the traceback if there is one. The others get a line each.
The labels (FAILED, Root Cause, rank with local_rank, exitcode with pid, error_file, time, host, traceback) are
torchrun's, because log collectors search for them. This is the box of `--failure-report torchrun`; `short_report` has
the usual one. This module only formats values; `failures` prints.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from rendezvous import codec
from rendezvous.errors import RecordError

WIDTH = 80
OTHERS_LIMIT = 16  # failures that get a line of their own; with a thousand ranks the box must still fit a screen
MESSAGE_LINES_LIMIT = (20, 60)  # kept at the start and the end of a longer traceback
LINE_LIMIT = 400

_NOT_AVAILABLE = "<N/A>"
_FIRST_REALTIME_SIGNAL = 34  # SIGRTMIN of the C library, which uses the kernel's first two itself


class WorkerFailure(Struct, frozen=True, kw_only=True):
    """How one worker ended. `exit_code` is negative for a signal; `time` is local time as ISO text.

    `message` is the traceback from its error file, `tail` the last lines of its stderr if they were captured,
    `sentence` what the agent knows: that its program could not be started, for example. `failure_class` is its class
    (launcher/diagnose/failure_class.py), `class_reason` why it is that one; `claim` what the worker itself said of it.
    `exception` is one line, from either; `coordinates` its place in a mesh of several axes, "pp=1,tp=0"; `log_file`
    keeps its stderr. `is_timeout`: a collective gave up waiting for another rank.
    """

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    time: str
    host: str
    error_file: str | None = None
    message: str | None = None
    tail: tuple[str, ...] = ()
    is_out_of_memory: bool = False
    sentence: str | None = None
    failure_class: str = ""
    class_reason: str = ""
    claim: str = ""
    exception: str = ""
    role: str = ""
    coordinates: str = ""
    log_file: str = ""
    is_timeout: bool = False

    def describe_ending(self) -> str:
        """Describe how it ended, for the words after a worker's name."""
        if self.claim:
            return f"{self.claim} (exit code {self.exit_code})"
        class_text = f" ({self.failure_class}: {self.class_reason})" if self.class_reason else ""
        return self._describe_exit() + ("" if self.sentence else class_text)

    def describe_class(self) -> str:
        """Describe how it failed, in words that are the same when it fails in the same way again."""
        if self.claim:
            return self.claim.partition(":")[0]
        ending = find_signal_name(self.exit_code) or f"exit code {self.exit_code}"
        return f"{self.failure_class or 'unknown'}: {self.class_reason or ending}"

    def _describe_exit(self) -> str:
        if self.sentence and not self.pid:
            return f"could not be started: {self.sentence}"
        if self.sentence and self.exit_code > 0:  # by its own handler of the signal that prints its stacks
            return f"gave {self.sentence}, was told to end, and failed with exit code {self.exit_code}"
        if self.sentence:
            return f"gave {self.sentence} and was killed"
        if name := find_signal_name(self.exit_code):
            is_said = bool(self.class_reason) or not self.is_out_of_memory
            return f"was killed by {name}" + ("" if is_said else " (out of memory)")
        return f"failed with exit code {self.exit_code}"


def parse_failure(text: str) -> WorkerFailure | None:
    """Parse the failure that an agent wrote; None for none, and for what cannot be read."""
    with suppress(RecordError):
        return codec.decode(WorkerFailure, text, "a worker's failure")
    return None


def render(
    script: str, failures: Sequence[WorkerFailure], *, outcome: str, is_order_known: bool = True, here: str = ""
) -> str:
    """Return the box that goes to stderr, without a line end.

    `failures` is not empty and begins with the root cause. `outcome` is the launcher's decision: "restarts used 2 of
    2". `is_order_known` is false when another failure came so close, on another host, that either may have been first.
    `here` is the host on which the report is read, "" for the failure's own. Raises ValueError without a failure.
    """
    if not failures:
        raise ValueError("a report needs at least one failure")
    root, *others = failures
    heavy, light = "=" * WIDTH, "-" * WIDTH
    lines = [
        heavy,
        f"{strip_controls(script)} FAILED",
        light,
        f"Root Cause ({describe_order(is_order_known)}):",
        *_format_root(root),
        light,
    ]
    lines.append("Other failures:" if others else "Other failures: <NO_OTHER_FAILURES>")
    lines += [_format_other(failure) for failure in others[:OTHERS_LIMIT]]
    if len(others) > OTHERS_LIMIT:
        lines.append(f"and {len(others) - OTHERS_LIMIT} more")
    lines += [light, *wrap(outcome)]
    if hint := choose_hint(root, here):
        lines += wrap(f"hint: {hint}")
    return "\n".join([*lines, heavy])


def describe_order(is_known: bool) -> str:
    """Say how sure it is that the first failure came first."""
    return "first observed failure" if is_known else "first reported; others failed at nearly the same time"


def find_signal_name(exit_code: int) -> str | None:
    """Return the name of the signal that an exit code represents, None when it is a real exit code."""
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"SIGRTMIN+{-exit_code - _FIRST_REALTIME_SIGNAL}" if -exit_code >= _FIRST_REALTIME_SIGNAL else None


def _format_root(failure: WorkerFailure) -> list[str]:
    first, *rest = _describe_cause(failure)
    return [
        f"[{failure.rank}]:",
        f"  time      : {strip_controls(failure.time.replace('T', '_', 1))}",
        f"  host      : {strip_controls(failure.host)}",
        f"  rank      : {failure.rank} (local_rank: {failure.local_rank})",
        f"  exitcode  : {format_exit_code(failure)}",
        f"  error_file: {strip_controls(failure.error_file or _NOT_AVAILABLE)}",
        f"  traceback : {first}",
        *(f"  {line}".rstrip() for line in rest),
    ]


def _format_other(failure: WorkerFailure) -> str:
    # The labels with torchrun's spaces, for programs that search for them literally.
    rank = f"rank      : {failure.rank} (local_rank: {failure.local_rank})"
    remark = " out of memory" if failure.is_out_of_memory else ""
    return f"  {rank}  exitcode  : {format_exit_code(failure)}{remark}  host: {strip_controls(failure.host)}"


def format_exit_code(failure: WorkerFailure) -> str:
    """Format -9 (pid: 12)  (SIGKILL)."""
    name = find_signal_name(failure.exit_code)
    return f"{failure.exit_code} (pid: {failure.pid})" + (f"  ({name})" if name else "")


def _describe_cause(failure: WorkerFailure) -> list[str]:
    """Return the lines for the cause, the best that is known, with the last output where a traceback is missing."""
    lines: list[str] = []
    lines += [strip_controls(text) for text in (failure.claim, failure.sentence) if text]
    if failure.exit_code < 0:
        # torchrun's sentence, for which programs search; the reason is ours.
        reason = ": killed by the kernel: out of memory" if failure.is_out_of_memory else ""
        name = find_signal_name(failure.exit_code) or _NOT_AVAILABLE
        sentence = f"Signal {-failure.exit_code} ({name}) received by PID {failure.pid}{reason}"
        if not failure.message or reason:
            lines.append(sentence)
    if failure.message:
        lines += _shorten([strip_controls(line) for line in failure.message.strip("\n").split("\n")])
    elif failure.tail:
        count = len(failure.tail)
        lines.append("its last line on stderr:" if count == 1 else f"its last {count} lines on stderr:")
        lines += [f"  {strip_controls(line)}" for line in failure.tail]
    return lines or [_NOT_AVAILABLE]


def choose_hint(failure: WorkerFailure, here: str = "") -> str | None:
    """Return what to do next, for a reader on the host `here`; None if the report says it."""
    code = failure.exit_code
    if failure.sentence and failure.exit_code < 0 and not failure.tail:
        return f"where each of its threads stood is {_find_output(failure, here)}"
    if failure.sentence or failure.claim:
        return None  # it names the problem
    if failure.is_out_of_memory:
        return "give the job more memory, or use smaller batches or fewer data loading processes"
    if code in _SIGNAL_HINTS:
        return _SIGNAL_HINTS[code]
    if code == 2:
        return "2 is the worker's own exit code (argparse's for bad arguments), not a usage error of meshrun"
    if 128 < code <= 128 + signal.SIGRTMAX and (name := find_signal_name(128 - code)):
        return f"exit code {code} is how a shell in between reports {name}"
    if _JAX_UNCONFIGURED in (failure.message or "\n".join(failure.tail)):
        return "`--framework jax` tells the workers what jax.distributed.initialize() looks for"
    if not failure.message and not failure.tail:
        return f"its traceback, if it printed one, is {_find_output(failure, here)}"
    return None


def _find_output(failure: WorkerFailure, here: str) -> str:
    if failure.log_file:
        return f"in {failure.log_file} on {failure.host}"
    is_near = here in ("", failure.host)
    return ("further up" if is_near else f"in the output of {failure.host}") + "; `--tee 2` repeats its last lines here"


_JAX_UNCONFIGURED = "coordinator_address should be defined"
_NATIVE_CRASH = "the worker crashed in native code; with PYTHONFAULTHANDLER=1 it prints where its Python code was"
_SIGNAL_HINTS = {
    -signal.SIGKILL: "somebody outside the job sent it: the host out of memory (see dmesg), a scheduler, a person",
    -signal.SIGSEGV: _NATIVE_CRASH,
    # torch's gloo threads may outlive the interpreter, and the job has done its work by then.
    -signal.SIGABRT: f"{_NATIVE_CRASH}; if all it said was `terminate called without an active exception`, end the "
    "script with torch.distributed.barrier() and destroy_process_group()",
    -signal.SIGILL: _NATIVE_CRASH,
    -signal.SIGFPE: _NATIVE_CRASH,
    -signal.SIGBUS: "shared memory that is full ends this way: look at /dev/shm, in a container raise its size",
    -signal.SIGXCPU: "the limit on CPU time is spent: see `ulimit -t`",
    -signal.SIGXFSZ: "a file grew beyond the limit: see `ulimit -f`",
}


def _shorten(lines: list[str]) -> list[str]:
    start, end = MESSAGE_LINES_LIMIT
    left_out = len(lines) - start - end
    if left_out <= 1:
        return lines
    return [*lines[:start], f"... {left_out} lines left out ...", *lines[-end:]]


def strip_controls(text: str) -> str:
    """Return one line without characters that move the cursor or change colours on a terminal."""
    text = re.sub(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)", "", text)
    text = re.sub(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", "?", text)
    return text if len(text) <= LINE_LIMIT else f"{text[:LINE_LIMIT]} ..."


def wrap(text: str) -> list[str]:
    """Wrap a sentence to the width of the box."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return lines
