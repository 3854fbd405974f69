"""Options as keyword arguments: `max_restarts=2, mesh={"dp": "*", "tp": 2}` becomes a command line.

The table of options defines the format of each, so a keyword is an option's name with underscores and nothing is listed
twice. Values are parsed, and refused, where the command's own are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.config.options.command_line import suggest
from launcher.config.options.table import BY_ALIAS, BY_NAME, Option
from launcher.model.errors import UsageError

Scalar = str | int | float
OptionValue = Scalar | Sequence[Scalar] | Mapping[str, Scalar] | Mapping[int, Scalar] | None
"""The value of an option: a text or number; True or False for a flag; a sequence for several values or FIRST:LAST; a
mapping for pairs; None for not set."""

_SCRIPT_MODES = ("module", "no-python", "run-path", "legacy-local-rank")


def format_arguments(options: Mapping[str, OptionValue]) -> list[str]:
    """Return the equivalent command line. Raises UsageError for what is no option of a launch."""
    found = []
    for keyword, value in options.items():
        option = _find_option(keyword)
        if value is None:
            continue
        if option.kind == "flag":
            if _is_set(option, value):
                found.append(option.flag)
        else:
            found.append(f"{option.flag}={_format_value(option, value)}")
    return found


def list_suppressed_variables(options: Mapping[str, OptionValue]) -> set[str]:
    """Return the variables to ignore: those of flags that are False, and of the script's form."""
    flags = [name.replace("_", "-") for name, value in options.items() if value is False]
    return {variable for name in (*flags, *_SCRIPT_MODES) for variable in BY_NAME[name].all_variables}


def _find_option(keyword: str) -> Option:
    name = keyword.replace("_", "-")
    if name in _SCRIPT_MODES:
        raise UsageError(f"{keyword} is about scripts, and launch runs a function or a program")
    option = BY_NAME.get(name) or BY_ALIAS.get(name)
    if option is None or option.kind == "ask" or "-" in keyword:
        keywords = {one.name: one.name.replace("-", "_") for one in BY_NAME.values() if one.kind != "ask"}
        raise UsageError(
            f"launch has no option {keyword}",
            suggest(name, keywords)
            or "options are those of the command; what the function takes by name goes into functools.partial",
        )
    return option


def _is_set(option: Option, value: OptionValue) -> bool:
    if isinstance(value, int) and value in (0, 1):  # True and False are whole numbers in Python
        return bool(value)
    raise UsageError(f"{_format_keyword(option)}={value!r} is neither True nor False")


def _format_value(option: Option, value: OptionValue) -> str:
    """Format a value for the command line; the option's metavar determines the separators."""
    if isinstance(value, Mapping):
        if "," not in option.metavar:
            raise UsageError(f"{_format_keyword(option)} takes one value, not a {type(value).__name__}")
        between = "=" if "=" in option.metavar else ":"
        return ",".join(f"{key}{between}{part}" for key, part in value.items())
    if isinstance(value, (str, int, float)):
        return str(value)
    if not isinstance(value, Sequence) or not all(isinstance(part, (str, int, float)) for part in value):
        raise UsageError(f"{_format_keyword(option)} takes texts and numbers, not a {type(value).__name__}")
    if "," not in option.metavar and ":" not in option.metavar:
        raise UsageError(f"{_format_keyword(option)} takes one value, not a {type(value).__name__}")
    return ("," if "," in option.metavar else ":").join(map(str, value))


def _format_keyword(option: Option) -> str:
    return option.name.replace("-", "_")
