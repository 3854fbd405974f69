"""The result of a scheduler's detection: the scheduler, and its environment's values for this node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from launcher.config.options.command_line import DetectedValue


class Detection(NamedTuple):
    """A scheduler that was recognised, "Slurm step 7.0". `known_by`: the variables by which it was recognised.

    `values`: name of an option -> its value; empty if none can be used. `reason` says what this node is, or why nothing
    is used. `missing`: what a job on several nodes still needs from the user, "" if nothing. `must_report`: whether to
    show the reason although nothing is used, because the user may have expected otherwise.
    """

    controller: str
    known_by: tuple[str, ...]
    reason: str
    values: Mapping[str, DetectedValue] = {}
    missing: str = ""
    must_report: bool = False


def describe_node(index: int, count: int, first: str) -> str:
    """Describe this node, for `reason`."""
    return f"this is node {index} of {count}" + (f", and node 0 is {first}" if index else "")
