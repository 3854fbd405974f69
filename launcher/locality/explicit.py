"""The locality that the user sets: in an option, or in a file for all nodes that the option names.

It overrides every source, and an error in it ends the start, because ranks on the wrong nodes would only be noticed by
their slowness.

The file has a line for each node, `node-17  zone=a,spine=s1,leaf=l3`. Lines can be written by any tool and searched by
`grep`, and one invalid line does not make the others unreadable, which is why this is neither YAML nor JSON.
`meshctl measure --output` writes such a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from launcher.config.config import LocalityOptions
from launcher.locality.contract import Level
from launcher.locality.merge import SourceResult
from launcher.model.errors import UsageError, sanitize
from launcher.model.locality_path import LevelPath, parse_path

OTHERS = "*"
_LINE_EXAMPLE = "use for example node-17 zone=a,leaf=l3"
_TEXT_HINT = "write a text file in UTF-8 with a line for each host"
_FILE_MAX = 32 << 20  # bytes: half a million nodes


def read_explicit(options: LocalityOptions, names: Sequence[str]) -> tuple[SourceResult, ...]:
    """Return what the user says; nothing if that is nothing. `names`: this node's names and its address.

    Raises UsageError.
    """
    if not options.locality:
        return ()
    source = options.origins["locality"]
    if isinstance(options.locality, str):
        path, key = find_in_file(options.locality, source, names)
        origin, reason = f"{sanitize(options.locality)}, {'all others' if key == OTHERS else key}", f"the line of {key}"
    else:
        path, origin, reason = options.locality, source, "it was given"
    return (SourceResult(source, tuple(Level(level, domain, origin) for level, domain in path), reason),)


def check_file(options: LocalityOptions) -> None:
    """Raise UsageError for a file that cannot be read; whether this node is in it is checked with its address."""
    if isinstance(options.locality, str):
        read_file(options.locality, options.origins["locality"])


def find_in_file(file: str, option: str, names: Sequence[str]) -> tuple[LevelPath, str]:
    """Return this node's path in the file, and the name of its line. `option`: that names the file.

    Raises UsageError.
    """
    called = _name_file(file, option)
    wanted = _add_short_names(names)
    bare = {name for name in names if name and "." not in name and ":" not in name}  # its line may have a domain
    own: list[tuple[int, str, str]] = []  # number, name, path
    others: list[tuple[int, str, str]] = []
    for number, line in enumerate(read_file(file, option).splitlines(), 1):
        name, text = (*line.split(None, 1), "", "")[:2]
        is_own = name in wanted or name.partition(".")[0] in bare
        if not name.startswith("#") and (is_own or name == OTHERS):
            (own if is_own else others).append((number, name, text.partition("#")[0].strip()))
    lines = own or others
    if not lines:
        hint = f"add one, or a line that begins with {OTHERS}, for all hosts without a line"
        raise UsageError(f"{called} has no line for this node, {sanitize(' or '.join(wanted))}", hint)
    # Without a path nothing is known of the host.
    paths = [parse_path(text, f"{called}, line {number}") if text else () for number, _, text in lines]
    number, name, _ = lines[0]
    for path, (other_number, other_name, _) in zip(paths, lines, strict=True):
        if path != paths[0]:
            raise UsageError(
                f"{called} has two lines for this node that differ: "
                f"{sanitize(name)} in line {number}, {sanitize(other_name)} in line {other_number}",
                "remove one of them",
            )
    return paths[0], name


def _name_file(file: str, option: str) -> str:
    """Return the option as the user has written it, for messages: a flag, or a variable."""
    return f"{option}{' ' if option.startswith('--') else '='}@{sanitize(file)}"


def _add_short_names(names: Sequence[str]) -> list[str]:
    """Return the names, and those of hosts without their domain; in order, each once."""
    found: list[str] = []
    for name in names:
        short = name.partition(".")[0]
        found += [name] if short.isdigit() or ":" in name else [name, short]
    return list(dict.fromkeys(filter(None, found)))


@cache  # a pipe, as of <(command), can be read once
def read_file(file: str, option: str) -> str:
    """Return the text of the file. Raises UsageError if it cannot be read, or is empty or no text."""
    called = _name_file(file, option)
    try:
        with open(file, "rb") as opened:
            content = opened.read(_FILE_MAX + 1)
    except OSError as error:
        raise UsageError(f"{called} cannot be read: {error.strerror}") from None
    if not content.strip():
        raise UsageError(f"{called}: the file is empty", f"write a line for each host; {_LINE_EXAMPLE}")
    if len(content) > _FILE_MAX:
        raise UsageError(f"{called}: the file has more than {_FILE_MAX >> 20} MiB", "check that it lists locations")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{called}, line {line}: the text is not in UTF-8", _TEXT_HINT) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(f"{called}, line {line}: a byte has the value 0, so the file is not text", _TEXT_HINT)
    return text
