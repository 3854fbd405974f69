"""The locality that the user sets: in an option, in a file for all nodes, or by a command.

It overrides every source, and an error in it ends the start: exit code 2 where only the user can correct it, 75 where
the same may work later.

The file has a line for each node, `node-17  zone=a,spine=s1,leaf=l3`. Lines can be written by any tool and searched by
`grep`, and one invalid line does not make the others unreadable, which is why this is neither YAML nor JSON. The
command is run by a shell, once on every node, within limits of time and of length. It may hang, fail, or print
something else, and then the start ends, because ranks on the wrong nodes would only be noticed by their slowness.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.config.config import Config
from launcher.config.scrub import drop_secrets
from launcher.locality.contract import Level
from launcher.locality.merge import SourceResult
from launcher.model.errors import TemporaryError, UsageError, sanitize
from launcher.model.locality_path import EXAMPLE, LevelPath, parse_path

if TYPE_CHECKING:
    from subprocess import Popen

OTHERS = "*"
LIMIT_S = 10.0  # scontrol and kubectl answer within one second, a busy controller within several
_FILE_MAX = 32 << 20  # bytes: half a million nodes
_OUTPUT_MAX = 4096  # bytes; the longest path is no longer
_NOT_RUN_CODES = (126, 127)  # the shell's codes for what it cannot run or find


def read_explicit(config: Config, environ: Mapping[str, str], names: Sequence[str]) -> list[SourceResult]:
    """Return the user's settings, in the order of precedence. `names`: this node's names and its address.

    Raises UsageError and TemporaryError.
    """
    found = []
    if config.locality:
        found.append(_make_result(config.origins["locality"], config.locality, "it was given"))
    if config.locality_file is not None:
        path, key = find_in_file(config.locality_file, names)
        origin = f"{config.locality_file}, {'all others' if key == OTHERS else key}"
        found.append(_make_result(config.origins["locality_file"], path, f"the line of {key}", origin))
    if config.locality_command is not None:
        origin = config.origins["locality_command"]
        printed = read_output(config.locality_command, environ, origin)
        path = parse_path(printed, f"what {origin} prints, {sanitize(printed)}") if printed else ()
        found.append(_make_result(origin, path, "it was printed" if printed else "the command printed nothing"))
    return found


def _make_result(source: str, path: LevelPath, reason: str, origin: str = "") -> SourceResult:
    return SourceResult(source, tuple(Level(level, domain, origin or source) for level, domain in path), reason)


def find_in_file(file: str, names: Sequence[str]) -> tuple[LevelPath, str]:
    """Return this node's path in the file, and the name of its line. Raises UsageError."""
    wanted = _add_short_names(names)
    bare = {name for name in names if name and "." not in name and ":" not in name}  # its line may have a domain
    called = f"locality file {sanitize(file)}"
    lines: list[tuple[int, str, str]] = []  # number, name, path
    others: list[tuple[int, str, str]] = []
    for number, line in enumerate(read_file(file).splitlines(), 1):
        name, text = (*line.split(None, 1), "", "")[:2]
        if name in wanted or name.partition(".")[0] in bare:
            lines.append((number, name, text))
        elif name == OTHERS:
            others = [(number, name, text)]
    lines = lines or others
    if not lines:
        hint = "a line that begins with * is for all nodes that have none"
        raise UsageError(f"{called} has no line for this node, {sanitize(' or '.join(wanted))}", hint)
    paths = [_parse_line(text, f"{sanitize(file)}, line {number}") for number, _, text in lines]
    number, name, _ = lines[0]
    for path, (other_number, other_name, _) in zip(paths, lines, strict=True):
        if path != paths[0]:
            raise UsageError(
                f"{called} has two lines for this node that differ: "
                f"{sanitize(name)} in line {number}, {sanitize(other_name)} in line {other_number}"
            )
    return paths[0], name


def _add_short_names(names: Sequence[str]) -> list[str]:
    """Return the names, and those of hosts without their domain; in order, each once."""
    found: list[str] = []
    for name in names:
        short = name.partition(".")[0]
        found += [name] if short.isdigit() or ":" in name else [name, short]
    return list(dict.fromkeys(filter(None, found)))


def _parse_line(text: str, what: str) -> LevelPath:
    """Parse the path after a host; none means that nothing is known of it."""
    text = text.partition("#")[0].strip()
    return parse_path(text, what) if text else ()


def read_file(file: str) -> str:
    """Return the text of the file. Raises UsageError if it cannot be read or is no text."""
    called = f"locality file {sanitize(file)}"
    try:
        with open(file, "rb") as opened:
            content = opened.read(_FILE_MAX + 1)
    except OSError as error:
        raise UsageError(f"{called} cannot be read: {error.strerror}") from None
    if len(content) > _FILE_MAX:
        raise UsageError(f"{called} has more than {_FILE_MAX >> 20} MiB")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{called} is not text in UTF-8, in line {line}", EXAMPLE) from None
    if "\0" in text:
        raise UsageError(f"{called} is not text", f"a line is a host and its place: {EXAMPLE}")
    return text


def read_output(command: str, environ: Mapping[str, str], asked_by: str) -> str:
    """Return the one line that the command prints, or "" if it prints nothing. `asked_by`: the option that set it.

    Raises UsageError for a command that cannot be run or has other output, TemporaryError for a failure or a time-out.
    """
    import subprocess

    what = f"{asked_by} {sanitize(command)}"
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=drop_secrets(environ),
        start_new_session=True,  # so that all of its processes can be killed together
    )
    with process:  # which closes its pipes
        try:
            printed, said = _read_streams(process, time.monotonic() + LIMIT_S)
            if len(printed) > _OUTPUT_MAX:
                raise UsageError(
                    f"{what} prints more than {_OUTPUT_MAX} bytes", "one line like zone=a,spine=s1,leaf=l3"
                )
        except subprocess.TimeoutExpired:
            raise TemporaryError(f"{what} has not ended within {LIMIT_S:g} s", "it is run once on each node") from None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode in _NOT_RUN_CODES:
        raise UsageError(f"{what} cannot be run{_format_last_line(said)}")
    if process.returncode:
        code = f"exit code {process.returncode}"
        if process.returncode < 0:
            code = f"signal {_format_signal(-process.returncode)}"
        raise TemporaryError(f"{what} has failed with {code}{_format_last_line(said)}")
    return _decode_line(printed, what)


def _read_streams(process: Popen[bytes], deadline: float) -> tuple[bytes, bytes]:
    """Return the end of stdout and of stderr when the process has ended and both are closed, or stdout is too long.

    Raises TimeoutExpired.
    """
    import select
    from subprocess import TimeoutExpired

    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.fileno(), process.stderr.fileno()
    found = {out: b"", err: b""}
    poll = select.poll()
    for descriptor in found:
        poll.register(descriptor, select.POLLIN)
    left = set(found)
    while left and len(found[out]) <= _OUTPUT_MAX:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            raise TimeoutExpired(process.args, LIMIT_S)
        for descriptor, _ in ready:
            piece = os.read(descriptor, 65536)
            if not piece:
                poll.unregister(descriptor)
                left.discard(descriptor)
            found[descriptor] = (found[descriptor] + piece)[-_OUTPUT_MAX - 1 :]
    if not left:  # it may have closed both and continue
        process.wait(max(0.0, deadline - time.monotonic()))
    return found[out], found[err]


def _decode_line(printed: bytes, what: str) -> str:
    try:
        text = printed.decode().strip()
    except UnicodeDecodeError:
        raise UsageError(f"{what} prints bytes that are no text") from None
    if "\n" in text:
        raise UsageError(f"{what} prints {len(text.splitlines())} lines, one is expected")
    if not text.isprintable():
        raise UsageError(f"{what} prints {sanitize(ascii(text))}, which is no text to read")
    return text


def _format_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return str(number)


def _format_last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {sanitize(last)}" if last else ""
