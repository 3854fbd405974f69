"""The plug-in that --logs-specs names: found among installed packages, not loaded yet."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from launcher.model.errors import UsageError

GROUP = "torchrun.logs_specs"


def find_entry_point(name: str, origin: str) -> EntryPoint:
    """Return the entry point of that name, not loaded yet. Raises UsageError, which lists the available names."""
    found = entry_points(group=GROUP)
    if name not in found.names:
        there = ", ".join(sorted({"default", *found.names}))
        raise UsageError(f"{origin}={name}: no installed package offers it in {GROUP}", f"there is {there}")
    return found[name]
