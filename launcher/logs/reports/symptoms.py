"""What the last words of a failed worker tell: its exception, and whether another process is the reason.

When one rank fails or stays away, the others fail too: a connection breaks, or a collective waits in vain and gives up.
Their messages name the connection or the operation, never the cause, so these failures are told apart by their texts:
those of gloo, NCCL, torch's stores, and JAX's coordinator. A text that says only "timed out" is not enough: a download,
a queue or a data loader can do that by itself.

Functions of texts alone. They are loaded when a worker has failed.
"""

from __future__ import annotations

import re

EXCEPTION_MAX = 200  # characters

# Said of any socket: of a rank's only where the text is about one of the libraries below, be it by a path in a frame.
_CONNECTION = r"Connection closed by peer|Connection reset by peer|Broken pipe|Socket (?:closed|Timeout)"
_BETWEEN_RANKS = (
    r"(?i:gloo|nccl|torch.distributed|ProcessGroup|TCPStore|c10d|coordination.service|jax.{0,10}distributed|mpi4py|paddle)"
    r"|\bDist(?:Network|Store|Backend)Error|XlaRuntimeError|JaxRuntimeError"
)
_PEER_LOSS = (
    r"ncclRemoteError|remote process exited|recvValue failed|failed to recv, got 0 bytes|Connection was likely closed"
    r"|caused pair closure|transport/tcp/pair\.cc:\d+\] TIMEOUT self_rank"  # the latter is how Paddle's gloo says it
    r"|(?<!connected to )(?<!Notified )coordination service|CoordinationService/"
    r"|JAX distributed service detected fatal errors"
    r"|process group .* (?:aborted|terminated)|Watchdog caught collective operation timeout"
)
_COLLECTIVE_TIMEOUT = (
    r"Timed out waiting \d+ ?ms for (?:recv|send|unbound buffer|\w+) operation"  # gloo
    r"|Watchdog caught collective operation timeout|Some NCCL operations have failed or timed out"
    r"|failed to pass monitoredBarrier in \d+ ?ms|Ranks? [\d, ]+ failed to pass monitoredBarrier"
    r"|wait timeout after \d+ ?ms, keys:|Timed out after \d+ seconds waiting for clients"  # torch's stores
    r"|DEADLINE_EXCEEDED: (?:Barrier|GetKeyValue|BlockingKeyValueGet|WaitAtBarrier)|Barrier timed out"  # JAX
    r"|\bheartbeat timeout\b|stopped sending heartbeats"
)
_WATCHDOG = r"(?i:watchdog|heartbeat ?monitor)"  # of NCCL's process groups, in messages and in names of functions
# Of a Python that has found nothing to run; it ends without a traceback.
_REFUSAL = (
    r"(?:SystemExit: )?[^:]*(?:python|pypy)[\w.-]*: "
    r"(?:No module named|Error while finding|can't (?:open|find)|No code object|Relative module).*"
)
_PREFIX = re.compile(r"^\[rank\d+\]:\s?")  # torch's own, before every line of a traceback
_TRACEBACK = "Traceback (most recent call last)"
_DIRECT_CAUSE = "\nThe above exception was the direct cause of the following exception:\n"
_PLACE = re.compile(r'  File "(?:.*/)?(.*)", line (\d+)')
_FRAME = re.compile(r'^  File ".*", line \d+')
_EXCEPTION = re.compile(r"[^\W\d][\w.]*(?::|$)")


def is_peer_loss(text: str) -> bool:
    """Whether a traceback, or the last lines of stderr, are about a connection to another rank."""
    if re.search(_CONNECTION, text) and re.search(_BETWEEN_RANKS, text):
        return True
    return bool(re.search(_PEER_LOSS, text))


def is_collective_timeout(text: str) -> bool:
    """Whether they are about an operation of several ranks in which another one did not take part in time."""
    return bool(re.search(_COLLECTIVE_TIMEOUT, text))


def is_watchdog(text: str) -> bool:
    """Whether they are of a watchdog that ends its process because nothing goes on."""
    return bool(re.search(_WATCHDOG, text))


def find_exception(text: str) -> str:
    """Return the line that names the exception, "ValueError: bad", from the last traceback in a text; "" without one.

    The text may begin within the traceback. Where Python has found nothing to run, it is the line that says so.
    """
    last = text.rstrip().rpartition("\n")[2]
    is_alone = is_refusal(last) or last.startswith("SyntaxError: ")
    return cut_exception(split_traceback(text)[1] or (last.removeprefix("SystemExit: ") if is_alone else ""))


def is_refusal(exception: str) -> bool:
    """Whether it says that Python has found nothing to run."""
    return ("python" in exception or "pypy" in exception) and bool(re.fullmatch(_REFUSAL, exception))


def is_explained(exception: str) -> bool:
    """Whether more is known of it: launcher/extensions/hints/start_failure.py."""
    named = exception.startswith(("ModuleNotFoundError", "ImportError")) or "module '" in exception
    return named or is_refusal(exception)


def cut_exception(text: str) -> str:
    """Return the first line of an exception's text, of a length that fits a status."""
    first = text.strip().partition("\n")[0].rstrip()
    return first if len(first) <= EXCEPTION_MAX else f"{first[: EXCEPTION_MAX - 3]}..."


def split_innermost(text: str) -> tuple[list[list[str]], str]:
    """Split the traceback that an exception's own text ends with, as that of a process whose exception was passed on.

    The same as `split_traceback` of an exception without one.
    """
    frames, exception = split_traceback(text)
    inner, its_exception = split_traceback(exception[max(0, exception.rfind(_TRACEBACK)) :])
    return (inner, its_exception) if inner else (frames, exception)


def find_cause(text: str) -> str:
    """Return the exception that the last one was raised from, with its place, "KeyError: 1 (train.py:3)"; else ""."""
    before, direct, _ = text.rpartition(_DIRECT_CAUSE)
    frames, exception = split_innermost(before.rstrip().removesuffix('"""')) if direct else ([], "")
    found = [match for frame in frames if _is_own(frame[0]) and (match := _PLACE.match(frame[0]))]
    place = f" ({found[-1][1]}:{found[-1][2]})" if found else ""
    return f"{cut_exception(exception)}{place}" if exception else ""


def choose_frames(frames: list[list[str]], most: int) -> list[list[str]]:
    """Return the innermost frames, the first of them the innermost of the user's own code if none of them is."""
    shown = frames[-most:]
    own = [frame for frame in frames if _is_own(frame[0])]
    return shown if not own or own[-1] in shown else [own[-1], *shown[1:]]


def _is_own(line: str) -> bool:
    return not re.search(r"site-packages/|dist-packages/|/lib/python3|<frozen", line)


def split_traceback(text: str) -> tuple[list[list[str]], str]:
    """Split the last traceback of a text into its frames, each of some lines, and the exception with what follows it.

    Without a traceback there are no frames, and the exception is "".
    """
    lines = [_PREFIX.sub("", line) for line in text.rstrip().split("\n")]
    starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    frames: list[list[str]] = []
    for number in range(starts[-1] + 1 if starts else 0, len(lines)):
        line = lines[number]
        if _FRAME.match(line):
            frames.append([line])
        elif frames and line.startswith("  "):
            frames[-1].append(line)
        elif frames and _EXCEPTION.match(line):
            return frames, "\n".join(lines[number:])
        elif frames:
            frames = []  # output between two tracebacks
    return [], ""
