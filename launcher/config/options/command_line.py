"""Parses a command line, and finds where an option's value comes from.

The table of options parses the command line, not click: importing click alone takes as long as everything else before
the first worker. `config` interprets the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from launcher.config.options.table import BY_ALIAS, BY_NAME, BY_SHORT, GROUPS, TABLE, Option
from launcher.model.errors import UsageError
from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


TEXT_MAX = 4096  # characters of a value: the longest path, and more than any list that a user has written
_SANITIZED_MAX = 300


def sanitize(text: str) -> str:
    """Return the text as a sentence can contain it: on one line, without terminal control codes, and not too long."""
    if len(text) > _SANITIZED_MAX:
        return f"{sanitize(text[: _SANITIZED_MAX // 2])}... ({len(text)} characters)"
    return repr(text) if text and (not text.isprintable() or text.isspace()) else text


class ParsedArgs(NamedTuple):
    """A parsed command line. `values`: option name -> its text, "1" for a flag.

    `asks` is "help" (perhaps with the group in `topic`) or "version" when nothing is to be run.
    """

    values: Mapping[str, str]
    script: str | None = None
    script_args: tuple[str, ...] = ()
    action: Literal["", "help", "version"] = ""
    topic: str = ""


# docs/internals/decisions/0001-option-table-instead-of-click.md
def parse(argv: Sequence[str]) -> ParsedArgs:
    """Parse a command line, by argparse's rules. Raises UsageError for what is no valid option.

    Options end at the first word that is none: the script. All that follows is the script's, unchanged. One `--`
    directly before or after the script is dropped, as by torchrun; any other is the script's. The last of several
    values counts.
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
        for option, attached in _split_options(word):
            if option.kind == "ask":
                topic = attached or (argv[at] if at < len(argv) else "")
                asks: Literal["help", "version"] = "help" if option.name == "help" else "version"
                return ParsedArgs(values, action=asks, topic=topic if topic in GROUPS else "")
            if option.kind == "flag":
                values[option.name] = "1"
            elif attached is not None:
                values[option.name] = attached
            elif at < len(argv) and _can_be_value(argv[at]):
                values[option.name] = argv[at]
                at += 1
            else:
                raise UsageError(f"{option.flag} needs a value", f"{option.flag} {option.metavar}")
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


def _split_options(word: str) -> Iterable[tuple[Option, str | None]]:
    """Return the options of one word, each with the value attached to it: --tee=3, -t3, -t=3, or several as in -mt3."""
    if word.startswith("--"):
        name, equals, attached = word.partition("=")
        option = find_option(name)
        if equals and not option.takes_value and option.name != "help":
            raise UsageError(f"{option.flag} is a flag and takes no value, {sanitize(word)} gives it one")
        yield option, attached if equals else None
        return
    rest = word[1:]
    while rest:
        letter, rest = f"-{rest[0]}", rest[1:]
        if letter not in BY_SHORT:
            raise _make_unknown_error(word)
        option = BY_SHORT[letter]
        if not option.takes_value:
            yield option, None
            continue
        yield option, (rest.removeprefix("=") if rest else None)
        return


def find_option(spelling: str) -> Option:
    """Return the option of `spelling` (--name, --na_me or the start of one). Raises UsageError for none or several.

    torchrun's own names are tried first, so that a prefix which is complete there means the same here.
    """
    name = spelling[2:].replace("_", "-")
    if option := BY_NAME.get(name) or BY_ALIAS.get(name):
        return option
    if name:
        begun = [option for option in TABLE if option.name.startswith(name) or option.alias.startswith(name)]
        for found in ([option for option in begun if option.source != "ours"], begun):
            if len(found) == 1:
                return found[0]
            if found:
                raise UsageError(f"{sanitize(spelling)} could mean {' or '.join(option.flag for option in found)}")
    raise _make_unknown_error(spelling)


def _make_unknown_error(word: str) -> UsageError:
    spelling = word.partition("=")[0]
    names = {option.name: option.flag for option in TABLE}
    return UsageError(
        f"unknown option {sanitize(spelling)}",
        suggest(spelling.lstrip("-").replace("_", "-"), names)
        or "meshrun -h lists the options; options of the script stand behind its name",
    )


def suggest(word: str, known: Mapping[str, str], similarity: float = 0.7) -> str:
    """Return the question after a misspelt word, or "" if nothing is similar. `known`: candidate -> how to write it.

    `similarity` runs from 0 to 1, the same word; 0.7 accepts --mehs for --mesh.
    """
    from difflib import get_close_matches  # only on the way to an error

    close = get_close_matches(word, known, n=1, cutoff=similarity)
    if not close:
        # The beginning of a name is a name too, and may be misspelt: --npoc for --nproc-per-node.
        beginnings = {name[: len(word) + 1]: name for name in known}
        close = [beginnings[start] for start in get_close_matches(word, beginnings, n=1, cutoff=similarity)]
    return f"did you mean {known[close[0]]}?" if close else ""


class DetectedValue(NamedTuple):
    """An option's value in a scheduler's environment, and the variable that it was read from."""

    text: str
    origin: str


class Value(NamedTuple):
    """An option's text and where it was found: its flag, a variable, or "default" (then the text is not used).

    `is_detected`: not set by the user, but read from a scheduler's variable, `origin`.
    """

    option: Option
    text: str
    origin: str
    is_detected: bool = False

    @property
    def is_default(self) -> bool:
        return self.origin == "default"

    @property
    def is_flag(self) -> bool:
        return self.origin.startswith("--")

    @property
    def text_if_given(self) -> str | None:
        return None if self.is_default else self.text

    def __str__(self) -> str:
        """The spelling of the user, for messages."""
        text = sanitize(self.text)
        if self.is_detected:
            return f"{self.option.flag} {text} (from {self.origin})"
        if self.is_flag:
            return self.origin if self.option.kind == "flag" else f"{self.origin} {text}"
        return f"{self.origin}={text}"


def resolve_values(
    flags: Mapping[str, str], environ: Mapping[str, str], detected: Mapping[str, DetectedValue] | None = None
) -> dict[str, Value]:
    """Return each option's value with its origin: the command line, LAUNCHER_*, PET_*, `detected`, else its default.

    `detected`: name of an option -> the value in a scheduler's environment. An empty text counts as not set.
    Raises UsageError for a text of more than TEXT_MAX characters.
    """
    return {
        option.name: _resolve_value(option, flags, environ, (detected or {}).get(option.name))
        for option in TABLE
        if option.kind != "ask"
    }


def _resolve_value(
    option: Option, flags: Mapping[str, str], environ: Mapping[str, str], detected: DetectedValue | None
) -> Value:
    candidates = [(option.flag, flags.get(option.name)), *((name, environ.get(name)) for name in option.all_variables)]
    for origin, text in candidates:
        if text is None or (text == "" and option.kind == "text"):
            continue
        if len(text) > TEXT_MAX:
            raise UsageError(f"{origin} has {len(text)} characters, {TEXT_MAX} is the most that is read")
        return Value(option, text, origin)
    if detected is not None:
        return Value(option, detected.text, detected.origin, is_detected=True)
    return Value(option, option.default, "default")
