"""Workers that start warm: which modules are imported once for all of them, and how many wait for a restart."""

from __future__ import annotations

import keyword
from collections.abc import Mapping

from launcher.errors import UsageError
from launcher.options import Given, shown
from launcher.options.reading import whole_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class Warm(TypedDict, total=False):
        """The fields of a Config that this is about."""

        preload: tuple[str, ...]
        standby: int


CALL_VARIABLE = "LAUNCHER_CALL"
"""Set where workers run a function: the directory of the call. Their command is then Python's, whatever else it is."""
_STANDBY_MAX = 16  # sets: each costs as many processes as there are workers, and a restart needs one


def warm(given: Mapping[str, Given], notes: list[str], *, is_python: bool, is_alone: bool) -> Warm:
    """What --preload and --standby ask for; `is_alone`: one machine is all there will be. Raises UsageError."""
    preload, standby = given["preload"], given["standby"]
    modules = () if preload.is_default else _modules(preload)
    sets = 0 if standby.is_default else _sets(standby)
    asked = preload if modules else standby
    if not is_python and (modules or sets):
        raise UsageError(
            f"{asked}: {given['no-python']} runs a program, and only Python can be forked with modules in memory",
            f"leave out {asked.origin}, or give Python's script itself",
        )
    if sets and is_alone and given["max-restarts"].text == "0":
        notes.append(f"{standby} has no effect without --max-restarts: nothing is restarted here")
        sets = 0
    return {"preload": modules, "standby": sets}


def _modules(given: Given) -> tuple[str, ...]:
    names = [name.strip() for name in given.text.split(",")]
    for number, name in enumerate(names):
        if not name:
            raise UsageError(f"{given} holds an empty name", f"{given.option.flag} {given.option.metavar}")
        if not all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split(".")):
            raise UsageError(f"{given}: {shown(name)} is no name of a module", "write it as import does: torch.nn")
        if name in names[:number]:
            raise UsageError(f"{given} names {shown(name)} twice")
    return tuple(names)


def _sets(given: Given) -> int:
    number = whole_number(given.text)
    if number is None or number < 0:
        raise UsageError(f"{given} is not a whole number of at least 0")
    if number > _STANDBY_MAX:
        raise UsageError(
            f"{given}: more than {_STANDBY_MAX} sets of workers that wait", "a restart needs one; they are made anew"
        )
    return number
