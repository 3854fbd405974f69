"""The locality that the user sets: in an option, in a file for all nodes, or by a command.

It overrides every source, and an error in it ends the start: exit code 2 where only the user can correct it, 75 where
the same may work later.

The file has a line for each node:

    # racks of the east wing
    node-17     zone=a,spine=s1,leaf=l3
    10.0.4.9    zone=a,spine=s1,leaf=l4
    *           zone=a

A node is found by its name (--node-name), by the name of its host with or without domain, or by its address; `*` is for
all that have no line. Lines of text can be written by any tool and searched by `grep`, and one invalid line does not
make the others unreadable, which is why this is neither YAML nor JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.config.config import Config
from launcher.config.options.command_line import sanitize
from launcher.config.scrub import PRIVATE
from launcher.locality.contract import Level
from launcher.locality.merge import SourceResult
from launcher.locality.sources.command import read_output
from launcher.model.errors import UsageError
from launcher.model.locality_path import EXAMPLE, LevelPath, parse_path

OTHERS = "*"
_FILE_MAX = 32 << 20  # bytes: half a million nodes


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
        printed = read_output(config.locality_command, _remove_secrets(environ), origin)
        path = parse_path(printed, f"what {origin} prints, {sanitize(printed)}") if printed else ()
        reason = "it was printed" if printed else "the command printed nothing"
        found.append(_make_result(config.origins["locality_command"], path, reason))
    return found


def find_in_file(file: str, names: Sequence[str]) -> tuple[LevelPath, str]:
    """Return this node's path in the file, and the name of its line. Raises UsageError."""
    wanted = _add_short_names(names)
    bare = {name for name in names if name and "." not in name and ":" not in name}  # its line may have a domain
    lines: list[tuple[int, str, str]] = []  # number, name, path
    others: tuple[int, str, str] | None = None
    for number, line in enumerate(read_file(file).splitlines(), 1):
        words = line.split(None, 1)
        if not words or words[0][0] == "#":
            continue
        name = words[0]
        if name in wanted or name.partition(".")[0] in bare:
            lines.append((number, name, words[1] if len(words) > 1 else ""))
        elif name == OTHERS:
            others = (number, name, words[1] if len(words) > 1 else "")
    if not lines and others is not None:
        lines = [others]
    if not lines:
        raise UsageError(
            f"locality file {sanitize(file)} has no line for this node, {sanitize(' or '.join(wanted))}",
            "a line that begins with * is for all nodes that have none",
        )
    paths = [_parse_line(text, f"{sanitize(file)}, line {number}") for number, _, text in lines]
    number, name, _ = lines[0]
    for path, (other_number, other_name, _) in zip(paths, lines, strict=True):
        if path != paths[0]:
            raise UsageError(
                f"locality file {sanitize(file)} has two lines for this node that differ: "
                f"{sanitize(name)} in line {number}, {sanitize(other_name)} in line {other_number}"
            )
    return paths[0], name


def _parse_line(text: str, what: str) -> LevelPath:
    """Parse the path after a host; none means that nothing is known of it."""
    text = text.partition("#")[0].strip()
    return parse_path(text, what) if text else ()


def read_file(file: str) -> str:
    """Return the text of the file. Raises UsageError if it cannot be read or is no text."""
    try:
        with open(file, "rb") as opened:
            content = opened.read(_FILE_MAX + 1)
    except OSError as error:
        raise UsageError(f"locality file {sanitize(file)} cannot be read: {error.strerror}") from None
    if len(content) > _FILE_MAX:
        raise UsageError(f"locality file {sanitize(file)} has more than {_FILE_MAX >> 20} MiB")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"locality file {sanitize(file)} is not text in UTF-8, in line {line}", EXAMPLE) from None
    if "\0" in text:
        raise UsageError(f"locality file {sanitize(file)} is not text", f"a line is a host and its place: {EXAMPLE}")
    return text


def _add_short_names(names: Sequence[str]) -> list[str]:
    """Return the names, and those of hosts without their domain; in order, each once."""
    found: list[str] = []
    for name in names:
        short = name.partition(".")[0]
        found += [name] if short.isdigit() or ":" in name else [name, short]
    return list(dict.fromkeys(filter(None, found)))


def _make_result(source: str, path: LevelPath, reason: str, origin: str = "") -> SourceResult:
    return SourceResult(source, tuple(Level(level, domain, origin or source) for level, domain in path), reason)


def _remove_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environ.items() if name not in PRIVATE}
