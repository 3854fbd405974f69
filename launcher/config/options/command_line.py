"""Parses a command line, and finds where an option's value comes from.

The table of options parses the command line, not click: importing click alone takes as long as everything else before
the first worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from launcher import extensions
from launcher.config.options.readers import Option, Value
from launcher.config.options.table import (
    BY_SHORT,
    ROWS,
    SETTING_BY_NAME,
    TABLE,
    find_row,
    list_options,
    name_variable,
)
from launcher.model.errors import UsageError, sanitize

TEXT_MAX = 4096  # characters of a value: the longest path, and more than any list that a user has written


class ParsedArgs(Struct, frozen=True):
    """A parsed command line."""

    values: Mapping[str, str]
    """Option name to its text, "1" for a flag."""
    script: str | None = None
    script_args: tuple[str, ...] = ()
    action: Literal["", "-h", "--help", "--completion", "--version"] = ""
    """When nothing is to be run, the option that asks."""
    topic: str = ""
    """The group of the help, or the shell."""


# docs/internals/decisions/0001-option-table-instead-of-click.md
def parse(argv: Sequence[str], extra: Sequence[Option] = ()) -> ParsedArgs:
    """Parse a command line, by argparse's rules. Raises UsageError for what is no valid option.

    `extra`: options that a command has beside those of the table. Options end at the first word that is none: the
    script. All that follows is the script's, unchanged. One `--` directly before or after the script is dropped, as
    by torchrun; any other is the script's. The last of several values counts.
    """
    values: dict[str, str] = {}
    at = 0
    is_dashed = False
    while at < len(argv) and _is_flag(argv[at]):
        word = argv[at]
        at += 1
        if word == "--":
            is_dashed = True
            break
        for option, attached in _split_options(word, extra):
            if option.read is None:
                following = argv[at] if at < len(argv) else ""
                is_name = following[:1].isalpha() and following.replace("-", "_").isidentifier()  # and no script
                action: Any = option.flag if word.startswith("--") else option.short
                return ParsedArgs(values, action=action, topic=attached or following * is_name)
            if not option.takes_value:
                values[option.name] = "1"
            elif attached is not None:
                values[option.name] = attached
            elif at < len(argv) and _can_be_value(argv[at]):
                values[option.name] = argv[at]
                at += 1
            else:
                raise UsageError(f"{option.flag} needs a value", f"write {option.flag} {option.metavar}")
    if at == len(argv):
        return ParsedArgs(values)
    script, *rest = argv[at:]
    if rest[:1] == ["--"] and not is_dashed:
        del rest[0]
    return ParsedArgs(values, script=script, script_args=tuple(rest))


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-"


def _can_be_value(word: str) -> bool:
    """Whether the word after an option is its value: argparse's rule, by which -1 and "-a b" are values."""
    return not _is_flag(word) or word[1:].replace(".", "", 1).isdigit() or " " in word


def _split_options(word: str, extra: Sequence[Option]) -> Iterator[tuple[Option, str | None]]:
    """Yield the options of one word, each with the value attached to it: --tee=3, -t3, -t=3, or several as in -mt3."""
    if word.startswith("--"):
        name, equals, attached = word.partition("=")
        option = find_option(name, extra)
        if equals and not option.metavar:
            raise UsageError(
                f"{option.flag} is a flag and takes no value, {sanitize(word)} gives it one", f"write {option.flag}"
            )
        yield option, attached if equals else None
        return
    rest = word[1:]
    while rest:
        letter, rest = f"-{rest[0]}", rest[1:]
        if letter not in BY_SHORT:
            raise _make_unknown_error(word, extra)
        option = BY_SHORT[letter]
        if option.takes_value:
            yield option, (rest.removeprefix("=") if rest else None)
            return
        yield option, None


def find_option(spelling: str, extra: Sequence[Option] = ()) -> Option:
    """Return the option of `spelling` (--name, --na_me or the start of one). Raises UsageError for none or several.

    torchrun's own names are tried first, so that a prefix which is complete there means the same here. `extra`: as for
    `parse`.
    """
    name = spelling[2:].replace("_", "-")
    if own := next((option for option in extra if option.name == name), None):
        return own
    if option := find_row(name):
        return option
    if name:
        found = [option for option in TABLE if option.source != "ours" and option.name.startswith(name)]
        found = found or [option for option in (*list_options(), *extra) if option.name.startswith(name)]
        if len(found) == 1:
            return found[0]
        if found:
            sentence = f"{sanitize(spelling)} could mean {' or '.join(option.flag for option in found)}"
            raise UsageError(sentence, _make_unknown_error(spelling, extra).hint)
    raise _make_unknown_error(spelling, extra)


def _make_unknown_error(word: str, extra: Sequence[Option]) -> UsageError:
    known = {option.name: option.flag for option in (*list_options(), *extra)}
    return UsageError(*extensions.ask("option", word, known, SETTING_BY_NAME))


def resolve_values(flags: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Value]:
    """Return each option's value with its origin: the command line, LAUNCHER_*, PET_*, else its default.

    Options of extensions are among them where they were set.
    An empty text counts as not set, except for an empty number on the command line. Raises UsageError for a text of
    more than TEXT_MAX characters.
    """
    set_names = [name for name in extensions.OPTIONS if name in flags or name_variable(name) in environ]
    rows = (*ROWS, *filter(None, map(find_row, set_names)))
    return {option.name: _resolve_value(option, flags, environ) for option in rows if option.read is not None}


def _resolve_value(option: Option, flags: Mapping[str, str], environ: Mapping[str, str]) -> Value:
    candidates = [(option.flag, flags.get(option.name)), *((name, environ.get(name)) for name in option.variables)]
    for origin, text in candidates:
        if text is None or (text == "" and (option.is_text or origin != option.flag)):
            continue
        if origin != option.flag and origin.endswith("_PORT") and text.startswith(("tcp://", "udp://", "sctp://")):
            continue  # Kubernetes' link to a Service of that name
        if len(text) > TEXT_MAX:
            raise UsageError(f"{origin} has {len(text)} characters; the limit is {TEXT_MAX}")
        return Value(option, text, origin)
    return Value(option, option.default, "default")
