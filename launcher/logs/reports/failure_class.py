"""Which class of failure ended a worker, and what follows from the class: a table of evidence, without I/O.

A worker ends with a signal, an exit code, or an exception, and its node knows some more: what the kernel killed for
memory or logged about a device, whether the worker was started at all. A row of `RULES` turns such facts into a class;
the first that applies counts, and what no row knows is "unknown". The words of a message are read only below a type or
a code that leaves the class open, such as the errno of an OSError: by themselves they decide nothing, since any
program may print "out of memory".

A class is for people and for programs that sort failures; it changes nothing by itself. What follows is as without it:
every failure costs a restart, but for a lost connection, a taken port and a departure, whose rules are in
`rendezvous.policy.charge`. Only two cases are so clear that it does: a program that does not exist, and an error of the
configuration that comes again (see `find_consequence`).
"""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from launcher.logs.reports.symptoms import is_refusal
from rendezvous.reasons import Reason

FailureClass = Literal[
    "user code", "configuration", "memory", "device", "network", "storage", "preemption", "launcher", "unknown"
]


class FailureEvidence(Struct, frozen=True, kw_only=True):
    """What is known about how a worker ended."""

    exit_code: int
    """Negative for a signal."""
    exception: str = ""
    """"ValueError: bad", or ""."""
    spawn_error: int = 0
    """The errno with which its program could not be started, 0 if it ran."""
    is_out_of_memory: bool = False
    """The OOM killer ended it, by the counter of its control group or by the kernel log."""
    xid: int = 0
    """The number of NVIDIA's message about this process in the kernel log, 0 for none."""
    is_peer_loss: bool = False
    """It looks like a lost connection to another worker."""
    is_port_taken: bool = False
    """Another process listens on the worker port."""
    is_leaving: bool = False
    """This node had been told to leave before."""
    is_unresponsive: bool = False
    """The agent ended it because it sent no heartbeats."""

    @property
    def exception_type(self) -> str:
        """The last part of its dotted name, "OutOfMemoryError"; "" if the text begins with no name.

        A failure that comes again is known by it, so nothing else of the text may get into it: an error file may hold
        any words, with pids, ranks and addresses.
        """
        found = re.match(r"(?:[\w<>]+\.)*([^\W\d]\w*)(?::|$)", self.exception)
        return found[1] if found else ""

    @property
    def error_number(self) -> int:
        """The errno that an OSError names, 0 for none."""
        found = re.match(r"[\w.]+: \[Errno (\d+)\]", self.exception)
        return int(found[1]) if found else 0

    def raised(self, types: Collection[str], *words: str) -> bool:
        """Return whether its exception is of one of these types, and its message has one of these words."""
        return self.exception_type in types and self.mentions(*words)

    def mentions(self, *words: str) -> bool:
        """Return whether the exception's message has one of these words."""
        message = self.exception.partition(":")[2]
        return any(word in message for word in words)


class Classified(NamedTuple):
    """A class, and why; None where its ending says it."""

    failure_class: FailureClass
    why: Reason | None = None


_EXCEPTION = Reason("logs/exception")
"""Stands for the type of the worker's exception."""


class Rule(NamedTuple):
    failure_class: FailureClass
    why: Reason | None
    applies: Callable[[FailureEvidence], bool]


# Which of NVIDIA's messages blame the program (Xid errors, NVIDIA's documentation): illegal addresses and instructions.
_XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68, 69})
_SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC})
_NO_PROGRAM = frozenset({errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR})
_STORAGE_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EREMOTEIO, errno.ENODEV}
)
_NETWORK_ERRORS = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EADDRINUSE}
)
_NETWORK_TYPES = frozenset({
    "DistNetworkError", "DistStoreError", "DistBackendError", "ConnectionError", "ConnectionResetError",
    "ConnectionRefusedError", "ConnectionAbortedError", "BrokenPipeError", "gaierror", "SSLError", "URLError",
    "HTTPError", "ConnectTimeout", "ReadTimeout",
})  # fmt: skip
_MEMORY_TYPES = frozenset({"MemoryError", "OutOfMemoryError"})
_XLA_TYPES = frozenset({"XlaRuntimeError", "JaxRuntimeError"})
_CUDA_TYPES = frozenset({"AcceleratorError", "RuntimeError"})
_DEVICE_WORDS = ("uncorrectable ECC error", "fallen off the bus", "hardware error", "NVLink", "system not yet init")
_IMPORT_TYPES = frozenset({"ModuleNotFoundError", "ImportError", "SyntaxError", "IndentationError", "UsageError"})
_ARGPARSE = 2
_ARGPARSE_FILE = '/argparse.py", line '
_NATIVE_CRASHES = frozenset({-signal.SIGSEGV, -signal.SIGILL, -signal.SIGFPE, -signal.SIGABRT})

RULES = (
    Rule("unknown", None, lambda e: e.is_unresponsive),
    Rule("preemption", Reason.of("logs/node-leaves"), lambda e: e.is_leaving),
    Rule("configuration", Reason.of("logs/no-program"), lambda e: e.spawn_error in _NO_PROGRAM),
    Rule("memory", Reason.of("logs/no-memory"), lambda e: e.spawn_error == errno.ENOMEM),
    Rule("launcher", Reason.of("logs/machine-limit"), lambda e: e.spawn_error in _SHORTAGES),
    Rule("launcher", Reason.of("logs/not-started"), lambda e: bool(e.spawn_error)),
    Rule("launcher", Reason.of("logs/port-taken"), lambda e: e.is_port_taken),
    Rule("memory", Reason.of("logs/killed-for-memory"), lambda e: e.is_out_of_memory),
    Rule("user code", Reason.of("logs/illegal-access"), lambda e: e.xid in _XIDS_OF_PROGRAMS),
    Rule("device", Reason.of("logs/gpu-error"), lambda e: bool(e.xid)),
    Rule("memory", _EXCEPTION, lambda e: e.exception_type in _MEMORY_TYPES),
    Rule("memory", _EXCEPTION, lambda e: e.raised(_XLA_TYPES, " RESOURCE_EXHAUSTED:")),
    Rule("memory", _EXCEPTION, lambda e: e.error_number == errno.ENOMEM),
    Rule("device", _EXCEPTION, lambda e: e.raised(_CUDA_TYPES, " CUDA error:") and e.mentions(*_DEVICE_WORDS)),
    Rule("network", Reason.of("logs/peer-lost"), lambda e: e.is_peer_loss),
    Rule("network", _EXCEPTION, lambda e: e.exception_type in _NETWORK_TYPES),
    Rule("network", _EXCEPTION, lambda e: e.error_number in _NETWORK_ERRORS),
    Rule("network", _EXCEPTION, lambda e: e.raised(_XLA_TYPES, " UNAVAILABLE:", " DEADLINE_EXCEEDED:")),
    Rule("storage", _EXCEPTION, lambda e: e.error_number in _STORAGE_ERRORS),
    Rule("storage", Reason.of("logs/file-too-large"), lambda e: e.exit_code == -signal.SIGXFSZ),
    Rule("configuration", _EXCEPTION, lambda e: e.exception_type in _IMPORT_TYPES),
    Rule("configuration", Reason.of("logs/nothing-to-run"), lambda e: is_refusal(e.exception)),
    Rule("configuration", Reason.of("logs/bad-arguments"), lambda e: e.exit_code == _ARGPARSE and not e.exception),
    Rule("user code", _EXCEPTION, lambda e: bool(e.exception)),
    Rule("user code", Reason.of("logs/native-crash"), lambda e: e.exit_code in _NATIVE_CRASHES),
)


def classify(evidence: FailureEvidence) -> Classified:
    """Return the class of a failure, and why."""
    for rule in RULES:
        if rule.applies(evidence):
            if rule.why is not _EXCEPTION:
                return Classified(rule.failure_class, rule.why)
            name = evidence.exception_type
            return Classified(rule.failure_class, Reason.of("logs/exception", type=name) if name else None)
    return Classified("unknown")


class Consequence(NamedTuple):
    """What follows from a failure besides the charge. `final_reason`: why no restart would help, if none would."""

    final_reason: Reason | None = None
    is_node_fault: bool = False


def find_consequence(evidence: FailureEvidence, *, is_alone: bool, repeated: Reason | None = None) -> Consequence:
    """Return what follows from a failure. `is_alone`: no other node has ranks in the round.

    `repeated`: names an error of the configuration that this node had in the round before, in the same words. One
    restart may find it mended; the next ones would only repeat it.

    A program that does not exist will not exist after a restart. On one of several nodes it may be missing there alone,
    or a module, where a file system is not mounted: then that node is at fault, and the others go on without it.
    """
    if evidence.is_leaving or (repeated is None and evidence.spawn_error not in _NO_PROGRAM):
        return Consequence()
    if not is_alone:
        return Consequence(is_node_fault=True)
    return Consequence(final_reason=repeated or classify(evidence).why)


def find_configuration_error(failure_class: str, exception: str, frames: Sequence[str]) -> str:
    """Return the words of an error that is the same in every restart; "" for any other.

    It is an import or syntax error, or argparse has refused the arguments: exit code 2 alone may mean anything.
    """
    if failure_class != "configuration":
        return ""
    return exception or ("argparse's exit with code 2" if frames and _ARGPARSE_FILE in frames[-1] else "")
