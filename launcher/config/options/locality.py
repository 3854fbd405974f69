"""The options that set this node's locality in the network, or the sources for it.

They have an effect only with several nodes. An invalid path is refused in any case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from launcher.config.options.command_line import Value
from launcher.config.options.readers import parse_printable
from launcher.model.errors import UsageError
from launcher.model.locality_path import parse_path

LOCALITY_OPTIONS = ("locality", "locality-file", "locality-command", "locality-sources")


class LocalityFields(TypedDict, total=False):
    """Fields of the Config, for the options that are set."""

    locality: tuple[tuple[str, str], ...]
    locality_file: str
    locality_command: str
    locality_sources: tuple[str, ...]


def parse_locality_options(values: Mapping[str, Value], notes: list[str], *, is_alone: bool) -> LocalityFields:
    """Parse the options. Raises UsageError."""
    said: LocalityFields = {}
    place, file, command, sources = (values[name] for name in LOCALITY_OPTIONS)
    if not place.is_default:
        said["locality"] = parse_path(place.text, str(place))
    if not file.is_default:
        said["locality_file"] = parse_printable(file)
    if not command.is_default:
        if not command.text.strip() or "\0" in command.text:
            raise UsageError(f"{command} is no command", "it prints one line like zone=a,spine=s1,leaf=l3")
        said["locality_command"] = command.text
    if not sources.is_default and sources.text.strip() != "auto":
        said["locality_sources"] = _parse_sources(sources)
    if is_alone:
        useless = [values[name] for name in LOCALITY_OPTIONS if not values[name].is_default]
        notes += [f"{option} has no effect: one machine stands alone" for option in useless]
    return said


def _parse_sources(value: Value) -> tuple[str, ...]:
    """Return the sources by name; () for none."""
    names = tuple(name.strip() for name in parse_printable(value).split(","))
    if names == ("none",):
        return ()
    for name in names:
        if not name:
            raise UsageError(f"{value} has an empty name", "write it like --locality-sources kubernetes,slurm")
        if name in ("auto", "none"):
            raise UsageError(f"{value}: {name} stands alone", "or name all that are to be asked")
        if names.count(name) > 1:
            raise UsageError(f"{value} names {name} twice")
    return names
