"""The failures on this node in the present round: recorded when a worker ends, reported when the job has failed.

When a worker dies, its peers' collectives break, and they fail too, with messages that name the connection and not the
reason. Such a secondary failure is the root cause only if no better one is found.

A worker that ends with SIGKILL looks the same whether a user, a scheduler or the kernel sent it. The kernel counts
its own kills per control group, and workers are in the agent's, or below it in one without a memory controller: if the
count has grown while a round ran, a SIGKILL in that round was the kernel's. On a host without limits, or where the
control groups are invisible, there is no count and the report names no cause.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from launcher.config.scrub import END_FILE
from launcher.hardware.linux import shared_page
from launcher.hardware.linux.cgroups import UNIFIED, find_groups, parse_groups
from launcher.hardware.linux.kernel import read_text
from launcher.model.console import format_local_time, log, write_stderr
from launcher.model.errors import describe, give_hint, sanitize
from launcher.placement.adapter.description import NodeAssignment
from launcher.supervisor.messages import describe_exit
from rendezvous import codec
from rendezvous.errors import EXIT_USAGE
from rendezvous.events import Exit
from rendezvous.reasons import Reason

if TYPE_CHECKING:
    from launcher.hardware.linux.kernel_log import KernelLog
    from launcher.hardware.linux.shared_page import SharedPage
    from launcher.logs.pump import OutputPump, StreamName
    from launcher.logs.reports.failure_class import FailureEvidence
    from launcher.logs.reports.report import Claim, Finding, WorkerFailure

_Answer = TypeVar("_Answer")

TAIL_LIMIT_S = 0.5  # for the last lines of workers that have just ended, all of a round together
_CLAIMS: dict[int, Claim] = {shared_page.CLAIM_GIVES_UP: "gave up", shared_page.CLAIM_BLAMES_NODE: "blamed its node"}

Origin = Literal["own", "unclear", "another"]
"""Where a worker's failure began, as far as its end tells. "unclear": it was ended because it did not go on, by its
agent or a watchdog of its own, and it may have waited for another one; so may one whose failure began at "another".
"""


class RootCause(Struct, frozen=True):
    """The job's exit code (128 + signal), the text for the verdict, the rank, how it failed, and what follows.

    The rank is -1 if it only stands in for the cause.
    """

    exit_code: int
    text: str
    rank: int
    failure_class: Reason | None
    consequence: tuple[Reason | None, bool]


class Failures:
    """The failures of the present round. `aborts_are_secondary`: workers abort when another has gone, as under JAX."""

    def __init__(
        self,
        host: str,
        pump: OutputPump | None,
        *,
        aborts_are_secondary: bool = False,
        role: str = "",
        program: str = "",
        is_python: bool = True,
        page: SharedPage | None = None,
    ) -> None:
        self._page = page
        self._program, self._is_python = program, is_python
        self._role = role
        self._aborts_are_secondary = aborts_are_secondary
        self._host = host
        self._pump = pump
        self._oom_kills: int | None = None
        self._round = 0
        self._assignment: NodeAssignment | None = None
        self._failures: dict[int, WorkerFailure] = {}  # by local rank, the cause first once it is known
        self._evidence: dict[int, FailureEvidence] = {}  # by local rank
        self._exit_codes: dict[int, int] = {}  # by local rank, of all that have failed
        self.finding: Finding | None = None
        self._configuration_error = 0, ""  # the last one, and its round
        self._kernel_log: KernelLog | None = None
        self._patience_s = TAIL_LIMIT_S  # the rest of it in this round

    def begin(
        self,
        round: int,
        assignment: NodeAssignment,
        find_error_file: Callable[[int], str],
        find_log_file: Callable[[int], str] = lambda local_rank: "",
        describe_rank: Callable[[int], str] = lambda rank: "",
    ) -> None:
        """Begin a round and forget earlier failures.

        `find_error_file` and `find_log_file` return the path of a local rank's error file and of what keeps its stderr
        in this round, or ""; `describe_rank` the coordinates of a rank.
        """
        self._find_log_file, self._describe_rank = find_log_file, describe_rank
        self._round, self._assignment, self._find_error_file = round, assignment, find_error_file
        self._oom_kills = count_oom_kills()
        self._failures, self._evidence, self._exit_codes = {}, {}, {}
        self.finding = None
        self._patience_s = TAIL_LIMIT_S

    def watch_kernel(self) -> None:
        """Have the kernel's log read from here on; without this a failure reads all of it."""
        if self._kernel_log is None:
            with suppress(OSError):
                self._get_kernel_log().skip()

    def note(
        self,
        local_rank: int,
        pid: int,
        exit_code: int,
        at: float,
        sentence: str | None,
        *,
        spawn_error: int = 0,
        claim: tuple[int, str] | None = None,
        is_leaving: bool = False,
    ) -> Origin:
        """Record that a worker failed at `at` (time.time()); return where its failure began.

        `claim`: what it said of its own failure, as in the shared page. The rest is as in FailureEvidence.
        """
        self._exit_codes.setdefault(local_rank, exit_code)
        try:
            import launcher.model.sentences  # noqa: F401
            import rendezvous.sentences  # noqa: F401  # of its class, when it is the cause
            from launcher.logs.error_file import read_error
            from launcher.logs.reports import symptoms
            from launcher.logs.reports.failure_class import FailureEvidence
            from launcher.logs.reports.report import FATAL, LastWords, WorkerFailure, ask_hint
        except (OSError, ImportError, MemoryError):  # nothing is left to import them with: only its exit is known
            return "own"

        assert self._assignment is not None
        if local_rank in self._failures:
            return "own"
        error_file = self._find_error_file(local_rank)
        message, exception = read_error(error_file) if error_file else (None, "")
        tail = self._read_last_lines(local_rank)
        said = "\n".join(tail)
        left = self._ask_page(lambda page: page.read_last_words(local_rank), "") if pid and claim is None else ""
        last = LastWords(has_begun=bool(left))
        # Nothing is loaded for a worker that was killed, or whose traceback is known: a restart waits for this.
        if FATAL in left or FATAL in said or (message is None and exit_code > 0 and left):
            last = ask_hint("end", last, left, exit_code, said)
        words = message or "\n".join(filter(None, (last.exception, said)))
        exception = symptoms.cut_exception(exception) or symptoms.find_exception(words)
        has_run = message is None and last.has_begun and bool(last.frames or not last.exception)  # the script itself
        # A Python that has found nothing to run is then another, which the script has started.
        exception = "" if has_run and symptoms.is_refusal(exception) else exception
        hint = ""
        if spawn_error or symptoms.is_explained(exception) or exit_code == 2 or _DISK_FULL in words:
            known = (self._program, self._is_python, exception, spawn_error, words, has_run)
            cause, hint = ask_hint("failure", ("", ""), *known)
            sentence = cause or sentence
        ending = exception or symptoms.cut_exception(last.exception)
        if not last.exception.startswith("SystemExit"):  # which by itself says no more than the exit code
            exception = ending
        if is_stdout := not words and bool(found := self._read_tail(local_rank, stream="stdout")):
            tail = found
        rank = self._assignment.ranks[local_rank]
        # Nothing is compiled where there is nothing to read.
        may_be_secondary = claim is None and sentence is None and bool(words)
        is_timeout = may_be_secondary and symptoms.is_collective_timeout(words)
        is_secondary = (
            is_timeout
            or (may_be_secondary and symptoms.is_peer_loss(words))
            or (claim is None and self._aborts_are_secondary and is_abort(exit_code, message, sentence))
        )
        is_killed, xid = self._ask_kernel_log(pid, exit_code) if pid and not is_secondary else (False, 0)
        evidence = FailureEvidence(
            exit_code=exit_code,
            exception=exception,
            spawn_error=spawn_error,
            is_out_of_memory=is_killed or is_out_of_memory(exit_code, self._oom_kills, count_oom_kills()),
            xid=xid,
            is_peer_loss=is_secondary,
            is_leaving=is_leaving,
            is_unresponsive=sentence is not None and pid > 0,
        )
        self._evidence[local_rank] = evidence
        self._failures[local_rank] = WorkerFailure(
            rank=rank,
            local_rank=local_rank,
            pid=pid,
            exit_code=exit_code,
            time=format_local_time(at),
            host=self._host,
            error_file=error_file if message is not None else None,
            message=message,
            tail=tail,
            is_out_of_memory=evidence.is_out_of_memory,
            sentence=sentence,
            hint=hint,
            claim=_CLAIMS.get(claim[0], "") if claim else "",
            claim_reason=sanitize(claim[1]) if claim else "",
            exception=ending,
            role=self._role,
            coordinates=self._describe_rank(rank),
            log_file=self._find_log_file(local_rank),
            is_timeout=is_timeout,
            frames=last.frames,
            stacks_file=ask_hint("stacks", "", last.stacks, error_file) if last.stacks else "",
            has_own_handler=exit_code < 0 and last.has_begun and not last.stacks,
            is_abrupt=last.is_abrupt and not exception and message is None and sentence is None and claim is None,
            has_stdout_tail=is_stdout,
        )
        if is_secondary:
            return "another"
        # Where its stderr does not go through the agent, an abort may always be a watchdog's.
        has_waited = is_abort(exit_code, message, sentence) and (not words or symptoms.is_watchdog(words))
        return "unclear" if claim is None and (evidence.is_unresponsive or has_waited) else "own"

    def _ask_page(self, ask: Callable[[SharedPage], _Answer], otherwise: _Answer) -> _Answer:
        try:
            return ask(self._page) if self._page is not None else otherwise
        except (OSError, MemoryError):  # a worker's page may be cut, and this node short of memory
            return otherwise

    def _ask_kernel_log(self, pid: int, exit_code: int) -> tuple[bool, int]:
        """Return whether the kernel's log says that it has killed this process for memory, and its Xid or 0."""
        kernel_log = self._get_kernel_log()
        kernel_log.read()
        return exit_code == _KILLED and pid in kernel_log.killed, kernel_log.xids.get(pid, 0)

    def _get_kernel_log(self) -> KernelLog:
        if self._kernel_log is None:
            from launcher.hardware.linux.kernel_log import KernelLog

            self._kernel_log = KernelLog()
        return self._kernel_log

    def set_root_cause(self, local_rank: int, *, is_port_taken: bool = False) -> RootCause:
        """Make this worker the cause, and log how it ended. `is_port_taken`: as in FailureEvidence."""
        assert self._assignment is not None
        exit_code = self._exit_codes[local_rank]
        verdict_code = exit_code if exit_code > 0 else 128 - exit_code
        if local_rank not in self._failures:
            rank = self._assignment.ranks[local_rank]
            log(f"rank {rank} {describe_exit(exit_code)}; the agent had no descriptor or memory left to find out why")
            return RootCause(verdict_code, "", rank, None, (None, False))
        from launcher.logs.reports.failure_class import classify, find_configuration_error, find_consequence

        evidence = replace(self._evidence[local_rank], is_port_taken=is_port_taken)
        self._evidence[local_rank] = evidence
        failure = self._add_class(local_rank, self._failures[local_rank])
        if self.finding is not None:
            has_waited = failure.is_timeout or is_abort(exit_code, failure.message, failure.sentence)
            failure = self.finding.add_to(failure, is_ended=evidence.is_unresponsive, has_waited=has_waited)
        words = find_configuration_error(failure.failure_class, evidence.exception, failure.frames)
        if self._ask_page(lambda page: page.read_step() >= 0 or page.read_save_count() > 0, False):
            words = ""  # a restart gets past it
        repeated = Reason.of("logs/repeated", node=self._host, error=words)
        is_repeated = words and self._configuration_error == (self._round - 1, words)
        self._configuration_error = self._round, words
        consequence = find_consequence(
            evidence, is_alone=self._assignment.group_world_size == 1, repeated=repeated if is_repeated else None
        )
        self._failures = {local_rank: failure} | self._failures | {local_rank: failure}
        pid = f" (pid {failure.pid})" if failure.pid else ""  # without one it never started
        is_crash = exit_code < 0 and failure.frames and not failure.sentence
        where = f" at {failure.frames[-1]}" if is_crash else ""
        log(f"rank {failure.rank}{pid} {failure.describe_ending()}{where}")
        text = codec.encode(failure).decode()
        rank = -1 if failure.is_stand_in else failure.rank
        return RootCause(verdict_code, text, rank, failure.identify(classify(evidence).why), consequence)

    def _settle(self) -> None:
        """Add what no restart waits for: the classes of failures, and the last output of the workers, all of it."""
        found = {rank: self._add_class(rank, failure) for rank, failure in self._failures.items()}
        if self._pump is not None:
            found = {rank: self._add_output(failure, rank) for rank, failure in found.items()}
        self._failures = found

    def _add_class(self, local_rank: int, failure: WorkerFailure) -> WorkerFailure:
        from launcher.logs.reports.failure_class import classify

        failure_class, why = classify(self._evidence[local_rank])
        return replace(failure, failure_class=failure_class, class_reason=describe(why))

    def _add_output(self, failure: WorkerFailure, local_rank: int) -> WorkerFailure:
        from launcher.logs.reports.symptoms import find_exception

        if not (tail := self._read_tail(local_rank)) and not failure.message and not failure.frames:
            tail = self._read_tail(local_rank, stream="stdout")
            return replace(failure, tail=tail, has_stdout_tail=bool(tail))
        exception = failure.exception or find_exception("\n".join(tail))
        return replace(failure, tail=tail, exception=exception, has_stdout_tail=False)

    def report_end(self, end: Exit, script: str, logged: Reason | None) -> None:
        """Report how the job ended, unless well or for the `logged` reason; or leave it to the outcome's reader."""
        self._settle()
        verdict = end.verdict
        is_here = verdict is not None and verdict.round == self._round  # a spare may have failed in an earlier round
        own = tuple(self._failures.values()) if is_here else ()
        has_failed = verdict is not None and verdict.kind == "failure"
        if has_failed or os.environ.get(END_FILE):
            from launcher.logs.reports import outcome

            ranks = self._assignment.ranks if is_here and self._assignment is not None else ()
            if outcome.write_outcome(end, own, ranks, self._host):
                return
            if verdict is not None and has_failed:
                outcome.report_failure(verdict, own, self._host, script)
                return
        if end.exit_code != 0 and end.reason != logged:
            is_refused = verdict is None and end.exit_code == EXIT_USAGE
            sentence = describe(end.reason)
            log(f"error: {sentence}" if is_refused else sentence)
            if hint := give_hint(end.reason):
                write_stderr(f"hint: {hint}")

    def _read_last_lines(self, local_rank: int) -> tuple[str, ...]:
        """Return its last lines: other nodes get these, and a peer's loss is recognised by them."""
        began_at = time.monotonic()
        found = self._read_tail(local_rank, self._patience_s)
        self._patience_s = max(0.0, self._patience_s - (time.monotonic() - began_at))
        return found

    def _read_tail(self, local_rank: int, limit_s: float = 0.0, *, stream: StreamName = "stderr") -> tuple[str, ...]:
        return self._pump.read_tail(local_rank, stream, limit_s) if self._pump is not None else ()


def find_spawn_exit_code(error_number: int) -> int:
    """Return a shell's exit code: 127 not found, 126 not executable."""
    import errno

    return {errno.ENOENT: 127, errno.EACCES: 126, errno.ENOEXEC: 126}.get(error_number, 1)


_DISK_FULL = "No space left on device"
_ABORTED = -6  # SIGABRT
_KILLED = -9  # SIGKILL


def is_abort(exit_code: int, message: str | None, sentence: str | None) -> bool:
    """Whether a worker ended by SIGABRT for no known reason: so JAX ends a process that has lost another one.

    `message`: from the worker's error file; `sentence`: what the agent knows.
    """
    return exit_code == _ABORTED and message is None and sentence is None


def count_oom_kills(proc_dir: str = "/proc/self") -> int | None:
    """Return the processes of this one's control group that the kernel has killed for memory so far; None if unknown.

    `proc_dir`: /proc/self, or a copy of it for tests.
    """
    file = _find_file(proc_dir)
    match = re.search(r"^oom_kill (\d+)$", read_text(file), re.MULTILINE) if file else None
    return int(match[1]) if match else None


def is_out_of_memory(exit_code: int, before: int | None, after: int | None) -> bool:
    """Whether the kernel's lack of memory ended a worker, given the counts before its round and now."""
    return exit_code == _KILLED and before is not None and after is not None and after > before


@cache
def _find_file(proc_dir: str) -> str | None:
    """Return the file with the count: memory.events in version 2 of control groups, memory.oom_control in version 1."""
    groups, mounts = read_text(f"{proc_dir}/cgroup"), read_text(f"{proc_dir}/mountinfo")
    # Where both are mounted, the memory controller belongs to one of them; version 1 has it if it names it.
    controller = "memory" if "memory" in parse_groups(groups) else UNIFIED
    name = "memory.oom_control" if controller else "memory.events"
    # A container may see its group's path as the host does, but have only the group itself mounted.
    found = (f"{path}/{name}" for place in find_groups(groups, mounts, controller) for path in place.path)
    return next(filter(os.path.exists, found), None)
