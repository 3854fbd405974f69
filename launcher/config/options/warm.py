"""Options of workers that start warm: the modules to import once for all of them, and the number on standby."""

from __future__ import annotations

import keyword
from collections.abc import Mapping

from launcher.config.options.command_line import Value, sanitize
from launcher.config.options.readers import parse_integer
from launcher.model.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class Warm(TypedDict, total=False):
        """The fields of a Config for these options."""

        preload: tuple[str, ...]
        standby: int


CALL_VARIABLE = "LAUNCHER_CALL"
"""Set where workers run a function: the directory of the call. Their command is then a Python one in any case."""
_STANDBY_MAX = 16  # sets: each costs as many processes as there are workers, and a restart needs one


def resolve_warm_start(values: Mapping[str, Value], notes: list[str], *, is_python: bool, is_alone: bool) -> Warm:
    """Resolve --preload and --standby; `is_alone`: the job has one machine only. Raises UsageError."""
    preload, standby = values["preload"], values["standby"]
    modules = () if preload.is_default else _parse_modules(preload)
    sets = 0 if standby.is_default else _parse_standby(standby)
    asked = preload if modules else standby
    if not is_python and (modules or sets):
        raise UsageError(
            f"{asked}: {values['no-python']} runs a program, and only Python can be forked with modules in memory",
            f"leave out {asked.origin}, or give Python's script itself",
        )
    if sets and is_alone and values["max-restarts"].text == "0":
        notes.append(f"{standby} has no effect without --max-restarts: nothing is restarted here")
        sets = 0
    return {"preload": modules, "standby": sets}


def _parse_modules(value: Value) -> tuple[str, ...]:
    names = [name.strip() for name in value.text.split(",")]
    for number, name in enumerate(names):
        if not name:
            raise UsageError(f"{value} holds an empty name", f"{value.option.flag} {value.option.metavar}")
        if not all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split(".")):
            raise UsageError(f"{value}: {sanitize(name)} is no name of a module", "write it as import does: torch.nn")
        if name in names[:number]:
            raise UsageError(f"{value} names {sanitize(name)} twice")
    return tuple(names)


def _parse_standby(value: Value) -> int:
    number = parse_integer(value.text)
    if number is None or number < 0:
        raise UsageError(f"{value} is not a whole number of at least 0")
    if number > _STANDBY_MAX:
        raise UsageError(
            f"{value}: more than {_STANDBY_MAX} sets of workers that wait", "a restart needs one; they are made anew"
        )
    return number
