"""Plug-ins of other packages: detectors, sources of locality, environments of frameworks.

A package provides one under a name in an entry-point group; here it is found, loaded and called. Installed packages are
searched only for a name that is not built in, because that costs tens of milliseconds. A plug-in is foreign code in our
process, so each of its errors becomes one sentence that names its package.

The groups: `meshrun.devices` (--devices NAME), `meshrun.locality` (--locality-sources NAME) and
`meshrun.environments` (--framework NAME). An entry point names a class, or a function, that is called without
arguments and returns the object with the contract's methods. See docs/reference/plug-ins.md. Our own extensions are
found by name in `launcher.extensions`, without a search.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from launcher.model.errors import UsageError, describe_bug, suggest

Answer = TypeVar("Answer")


class Plugin(Struct, frozen=True):
    """A loaded plug-in."""

    name: str
    package: str
    """The distribution it comes from, with its version."""
    value: Any

    def __str__(self) -> str:
        return f"the plug-in {self.name} of {self.package}"


def load(group: str, name: str, asked_by: str, *, built_in: Iterable[str] = (), otherwise: str = "") -> Plugin:
    """The plug-in of this name, made. `asked_by`: the option that named it, as it was written.

    `built_in`: the names that need no plug-in, and `otherwise`: what can be done without one, for the hint.

    Raises UsageError if no package offers it, several do, or it cannot be found or loaded.
    """
    from importlib.metadata import entry_points

    try:
        offered = entry_points(group=group)
    except Exception as error:  # a file entry_points.txt of any package that is no such file
        raise UsageError(f"{asked_by}: cannot read the installed packages: {describe_bug(error)}") from error
    found = {point.value: point for point in offered if point.name == name}
    if not found:
        names = sorted({*built_in, *offered.names})
        there = f"use one of {', '.join(names)}" if names else "install the package that has it, for the agent's Python"
        hint = suggest(name, {each: each for each in names}) or "; ".join(filter(None, (there, otherwise)))
        raise UsageError(f"{asked_by}: no installed package has a plug-in {name} ({group})", hint)
    if len(found) > 1:
        packages = sorted(_describe_package(point) for point in found.values())
        raise UsageError(f"{asked_by}: {len(found)} packages provide a plug-in named {name}: {', '.join(packages)}")
    (point,) = found.values()
    plugin = Plugin(name, _describe_package(point), None)
    try:
        return replace(plugin, value=point.load()())
    except (Exception, SystemExit) as error:
        raise UsageError(f"{plugin} cannot be loaded: {describe_bug(error)}") from error


def ask(plugin: Plugin, method: str, kind: type[Answer], *arguments: object) -> Answer:
    """Call a method of the plug-in and return its result.

    Raises UsageError if there is no such method, or it raises, or the result is no `kind`.
    """
    call = getattr(plugin.value, method, None)
    if not callable(call):
        raise UsageError(f"{plugin} has no method {method}()")
    try:
        answer = call(*arguments)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{plugin} failed: {describe_bug(error)}") from error
    if not isinstance(answer, kind):
        raise UsageError(f"{plugin}: {method}() must return {kind.__name__}, not {type(answer).__name__}")
    return answer


def _describe_package(point: Any) -> str:
    distribution = point.dist
    return f"{distribution.name} {distribution.version}" if distribution is not None else "an unknown package"
