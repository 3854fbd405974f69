"""An environment from another package: `--framework NAME`, entry-point group meshrun.environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.config import plugins
from launcher.model.errors import UsageError
from launcher.model.node import Slot
from launcher.ranks.environments.contract import WorkerAssignment

GROUP = "meshrun.environments"


class PluginEnvironment:
    """Raises UsageError if there is no such plug-in; `requested_by`: the option that named it."""

    def __init__(self, name: str, requested_by: str) -> None:
        self._plugin = plugins.load(GROUP, name, requested_by, built_in=("auto", "torch", "jax", "paddle", "xla"))

    def variables(self, assignment: WorkerAssignment, parent: Mapping[str, str]) -> dict[str, str]:
        """Return the plug-in's variables. Raises UsageError if it fails, or returns what an environment cannot hold."""
        found = plugins.ask(self._plugin, "variables", dict, assignment, dict(parent))
        for name, value in found.items():
            if not (isinstance(name, str) and isinstance(value, str)) or not name or {"=", "\0"} & {*name}:
                raise UsageError(f"{self._plugin}: {name!r}: {value!r} is not a variable name and its text")
        return found

    def remarks(self, slots: Sequence[Slot], parent: Mapping[str, str], has_other_nodes: bool) -> list[str]:
        """Name the package that it comes from."""
        return [f"variables of workers come from {self._plugin}"]
