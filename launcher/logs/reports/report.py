"""The report of a failed job as someone on call reads it: who failed, how, where its log is, what to do next.

    ================================================================================
    train.py FAILED
    Root Cause (first observed failure): rank 5 (pp=1,tp=1) on h2
      ValueError: bad shape
        File "/home/ada/train.py", line 12, in step
          loss = model(batch)
      exitcode  : 1 (pid: 6409), local_rank: 1, 2026-01-02 03:04:05
      log       : /logs/night_1a2b/attempt_0/1/stderr.log
    Other failures:
      ranks 0-4: DistBackendError: connection to rank 5 lost
    --------------------------------------------------------------------------------
    a worker failed on h2 in round 3, 2 of 2 restarts used
    hint: ...
    ================================================================================

One worker's crash makes the others fail too, and their output hides its cause. So the first failure comes first, with
the last frames of its traceback, and the others have a line for each way in which they failed. This module only formats
values; `failures` prints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from launcher import extensions
from launcher.model.console import escape
from launcher.supervisor.messages import find_signal_name
from rendezvous import codec
from rendezvous.errors import RecordError
from rendezvous.reasons import Reason

WIDTH = 80
LINE_LIMIT = 400
FRAMES_LIMIT = 3
LINES_LIMIT = 6  # of a text that is no traceback, and sentences of a finding
GROUPS_LIMIT = 4  # of failures that ended alike
RANKS_MAX = 40  # letters; more are counted

_Answer = TypeVar("_Answer")

FATAL = "Fatal Python error: "
"""Begins what faulthandler writes at a crash."""

Claim = Literal["", "gave up", "blamed its node"]
HangCause = Literal["", "known", "likely", "unknown"]
"""How far it is known why a job hangs: "likely" is told by stacks alone. "" where it does not."""


class Finding(Struct, frozen=True):
    """What all ranks of a round do, as the leader concludes."""

    sentences: tuple[str, ...] = ()
    """The verdict, then where some of them are; none if they go on."""
    cause: HangCause = ""
    """Of a hang, for which workers will be ended."""
    culprits: tuple[int, ...] = ()
    """The ranks that the others wait for; another one that is ended stands in for them."""

    def add_to(self, failure: WorkerFailure, *, is_ended: bool, has_waited: bool) -> WorkerFailure:
        """Add it to a failure.

        `is_ended`: the agent has ended the worker since it did not go on; `has_waited`: the worker itself gave up.
        """
        hang = self.cause if is_ended else ""
        is_other = failure.rank not in self.culprits
        is_victim = has_waited and not hang and is_other and bool(self.culprits)
        return replace(
            failure, finding=self.sentences, hang=hang, is_stand_in=bool(hang) and is_other, is_victim=is_victim
        )


class LastWords(NamedTuple):
    """What a worker has left of its end, see launcher/extensions/hints/last_words.py."""

    frames: tuple[str, ...] = ()
    """The innermost last: '"train.py", line 3, in step'."""
    exception: str = ""
    """Its type and text, if the script has ended by one; SystemExit is one, too."""
    stacks: str = ""
    """What all threads did at a crash, of the worker or of a process that it has forked."""
    has_begun: bool = False
    """Its script has: what is missing then is the user's choice."""
    is_abrupt: bool = False
    """The script has neither ended nor raised: `os._exit`, exit() of a library, or another program in its place."""


class WorkerFailure(Struct, frozen=True, kw_only=True):
    """How one worker ended."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    """Negative for a signal."""
    time: str
    """Local time as ISO text."""
    host: str
    error_file: str | None = None
    message: str | None = None
    """The traceback from its error file."""
    tail: tuple[str, ...] = ()
    """The last lines of its stderr if they were captured."""
    is_out_of_memory: bool = False
    sentence: str | None = None
    """What the agent knows, for example that its program could not be started."""
    hint: str = ""
    """What to do about it on its node; "" if that is not known."""
    failure_class: str = ""
    """See launcher/logs/reports/failure_class.py."""
    class_reason: str = ""
    """Why it is of that class."""
    claim: Claim = ""
    """What the worker itself reported about its failure."""
    claim_reason: str = ""
    """Why, in its own words."""
    exception: str = ""
    """One line, from its error file or its stderr."""
    role: str = ""
    coordinates: str = ""
    """Its place in a mesh of several axes, "pp=1,tp=0"."""
    log_file: str = ""
    """Keeps its stderr."""
    is_timeout: bool = False
    """A collective gave up waiting for another rank."""
    finding: tuple[str, ...] = ()
    """What all ranks did when they were looked at before: the verdict, then where some of them were."""
    hang: HangCause = ""
    """It was ended because the job hung."""
    is_stand_in: bool = False
    """It was ended so that all restart, and is not known to be why the job hung."""
    is_victim: bool = False
    """It gave up waiting for another rank, which `finding` names."""
    frames: tuple[str, ...] = ()
    """Of its Python code where it crashed or called `sys.exit`, the innermost last: '"train.py", line 3, in step'."""
    stacks_file: str = ""
    """Has what all of its threads did when it crashed."""
    has_own_handler: bool = False
    """Its script, or the user, has chosen where Python's stacks go when it crashes, or that there are none."""
    is_abrupt: bool = False
    """It ended without an exception and without `sys.exit`."""
    has_stdout_tail: bool = False
    """`tail` is of its stdout, since there is nothing of its stderr."""

    def describe_ending(self) -> str:
        """Describe how it ended, for the words after a worker's name."""
        if self.claim:
            return f"{self.claim}: {self.claim_reason} (exit code {self.exit_code})"
        class_text = f" ({self.failure_class}: {self.class_reason})" if self.class_reason else ""
        return self._describe_exit() + ("" if self.sentence else class_text)

    def identify(self, why: Reason | None) -> Reason:
        """Return how it failed, the same when it fails in the same way again. `why`: it is of its class."""
        if self.claim:
            return Reason.of("logs/claim", claim=self.claim)
        if why is None and (name := find_signal_name(self.exit_code)):
            why = Reason.of("logs/signal", signal=name)
        why = why or Reason.of("logs/exit-code", exit_code=self.exit_code)
        return Reason.of("logs/failure", failure_class=self.failure_class, why=why)

    def _describe_exit(self) -> str:
        if self.is_stand_in:
            return "was ended so that all ranks restart"
        if self.sentence and not self.pid:
            return f"could not be started: {self.sentence}"
        if self.sentence and self.exit_code > 0:  # by its own handler of the signal that prints its stacks
            return f"showed {self.sentence}, was stopped, and failed with exit code {self.exit_code}"
        if self.sentence:
            return f"showed {self.sentence} and was killed"
        if name := find_signal_name(self.exit_code):
            is_said = bool(self.class_reason) or not self.is_out_of_memory
            return f"was killed by {name}" + ("" if is_said else " (out of memory)")
        how = ", without an exception or sys.exit()" if self.is_abrupt else ""
        return f"failed with exit code {self.exit_code}{how}"


def parse_failure(text: str) -> WorkerFailure | None:
    """Parse the failure that an agent wrote; None for none, and for what cannot be read."""
    with suppress(RecordError):
        return codec.decode(WorkerFailure, text, "a worker's failure")
    return None


def ask_hint(what: str, otherwise: _Answer, *values: object) -> _Answer:
    """Ask a function of HINTS; return `otherwise` if nothing is left to load it with."""
    try:
        answer: _Answer = extensions.ask(what, *values)
    except (OSError, ImportError, MemoryError):
        return otherwise
    return answer


def render(
    script: str, failures: Sequence[WorkerFailure], *, outcome: str, is_order_known: bool = True, here: str = ""
) -> str:
    """Return the box that goes to stderr, without a line end.

    `failures` is not empty and begins with the root cause. `outcome` is the launcher's decision: "restarts used 2 of
    2". `is_order_known` is false when another failure came so close, on another host, that either may have been first.
    `here` is the host on which the report is read, "" for the failure's own.
    """
    root, *others = failures
    coordinates = f" ({_strip_controls(root.coordinates)})" if root.coordinates else ""
    order = "first observed failure" if is_order_known else "first reported; others failed at nearly the same time"
    who = f"rank {root.rank}{coordinates} on {_strip_controls(root.host)}"
    head = _wrap(f"Root Cause ({order}): {who}")
    if root.hang:
        head = _describe_hang(root, f"Ended so that all ranks restart: {who}")
    elif root.is_victim:
        head = _describe_hang(root, f"Gave up waiting ({order}): {who}")
    role = f", role: {_strip_controls(root.role)}" if root.role not in ("", "default") else ""
    lines = ["=" * WIDTH, f"{_strip_controls(script)} FAILED", *head, *_describe_cause(root)]
    lines.append(
        f"  exitcode  : {_format_exit_code(root)}, local_rank: {root.local_rank}{role}, "
        f"{_strip_controls(root.time.replace('T', ' ', 1))}"
    )
    there = "" if here in ("", root.host) else f"{root.host}:"
    if path := root.log_file or root.error_file:
        lines.append(f"  {'log       ' if root.log_file else 'error_file'}: {_strip_controls(there + path)}")
    if root.stacks_file:
        whose = "" if root.exit_code < 0 else " (of a process that it forked, which crashed)"
        lines.append(f"  stacks    : {_strip_controls(there + root.stacks_file)}{whose}")
    if root.finding and not (root.hang or root.is_victim):
        lines += ["Before it failed:", *_indent(root.finding)]
    if others:
        lines += ["Other failures:", *_list_others(others)]
    lines += ["-" * WIDTH, *_wrap(outcome)]
    if hint := ask_hint("next step", "", root, here):
        lines += _wrap(f"hint: {hint}")
    return "\n".join([*lines, "=" * WIDTH])


def _describe_hang(root: WorkerFailure, failed: str) -> list[str]:
    """Describe why the job hung: the verdict, where ranks were, and `failed`, which failed because of it."""
    verdict, *places = root.finding
    cause = {"known": "Root Cause (hang)", "unknown": "Root Cause not known (hang)"}
    head = f"{cause.get(root.hang, 'Likely Cause (hang)')}: {_strip_controls(verdict)}"
    return [*_wrap(head), *_indent(places), *_wrap(failed)]


def _indent(sentences: Sequence[str]) -> list[str]:
    return [f"  {line}" for sentence in sentences[:LINES_LIMIT] for line in _wrap(_strip_controls(sentence))]


def _describe_cause(failure: WorkerFailure) -> list[str]:
    """Return how it ended, and the end of its traceback or of its output."""
    from launcher.logs.reports import symptoms  # only the last failure of a job is shown

    text = failure.message or "\n".join(failure.tail)
    frames, exception = symptoms.split_innermost(text)
    said = _strip_controls(failure.exception) if failure.exception and not failure.sentence else ""
    if not said or failure.exit_code < 0:
        ending = f"{failure.describe_ending()}: {said}" if said else failure.describe_ending()
        said = _strip_controls(ending)
    lines = [] if failure.hang else _wrap(said)
    if frames:
        first, *rest = exception.split("\n")[:LINES_LIMIT]
        more = rest if symptoms.cut_exception(first) == failure.exception else [first, *rest]
        more += [f"caused by {cause}" for cause in [symptoms.find_cause(text)] if cause]
        body = [line for frame in symptoms.choose_frames(frames, FRAMES_LIMIT) for line in frame]
    else:
        body, more = text.strip("\n").split("\n")[-LINES_LIMIT:] if text.strip() else [], []
        body = [] if [*map(symptoms.cut_exception, body)] == [failure.exception] else [f"  {line}" for line in body]
        if failure.has_stdout_tail and body:
            body.insert(0, "last lines of its stdout:")
        own = [frame for frame in failure.frames if _ARGPARSE not in frame] or failure.frames
        body[:0] = [f"  File {frame}" for frame in own[-FRAMES_LIMIT:]]
    return [f"  {line}".rstrip() for line in [*lines, *map(_strip_controls, [*more, *body])]]


def _list_others(failures: Sequence[WorkerFailure]) -> list[str]:
    """List failures by how they ended; texts that differ only in numbers, such as addresses and pids, are one."""
    endings: dict[tuple[int, str], tuple[str, list[int]]] = {}
    for failure in failures:
        ending = _name_ending(failure)
        key = failure.exit_code, re.sub(r"0x[0-9a-f]+|\d+", "", ending)
        endings.setdefault(key, (ending, []))[1].append(failure.rank)
    shown, rest = [*endings.values()][:GROUPS_LIMIT], [*endings.values()][GROUPS_LIMIT:]
    listed = [f"{_format_ranks(sorted(ranks))}: {ending}" for ending, ranks in shown]
    return _indent([*listed, *([f"and {sum(len(ranks) for _, ranks in rest)} more"] if rest else [])])


def _name_ending(failure: WorkerFailure) -> str:
    """Name how it ended in the words that it would have as the root cause."""
    name = find_signal_name(failure.exit_code) or f"exit code {failure.exit_code}"
    if failure.is_out_of_memory:
        name += ", out of memory"
    if failure.claim:
        return f"{failure.claim}: {failure.claim_reason} ({name})"
    if failure.exception and not failure.sentence:
        return failure.exception if failure.exit_code == 1 else f"{failure.exception} ({name})"
    return failure.sentence or name


def _format_ranks(ranks: Sequence[int]) -> str:
    from launcher.model import ranges

    text = ranges.format_ranges(ranks)
    if len(text) > RANKS_MAX:
        return f"{len(ranks)} ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def _format_exit_code(failure: WorkerFailure) -> str:
    """Format -9 (pid: 12)  (SIGKILL)."""
    name = find_signal_name(failure.exit_code)
    return f"{failure.exit_code} (pid: {failure.pid})" + (f"  ({name})" if name else "")


_ARGPARSE = '/argparse.py", line '


def _strip_controls(text: str) -> str:
    """Return one line without colours, and with what else controls a terminal escaped."""
    text = escape(re.sub(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)", "", text))
    return text if len(text) <= LINE_LIMIT else f"{text[:LINE_LIMIT]} ..."


def _wrap(text: str) -> list[str]:
    """Wrap a sentence to the width of the box."""
    from launcher.model.text import wrap  # only the last failure of a job is shown

    return wrap(" ".join(text.split()))
