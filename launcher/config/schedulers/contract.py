"""What a file of a scheduler gives: who the scheduler is, and what its environment says about this node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from launcher.config.options.command_line import DetectedValue


class Detection(NamedTuple):
    """A controller that was recognised, "Slurm step 7.0". `known_by`: the variables that it was recognised by.

    `values`: name of an option -> what the environment says; empty if it cannot be used. `reason` says what this node
    is, or why nothing is taken from it. `missing`: what a job on several nodes still has to be told, "" if nothing.
    `is_told`: whether people should hear the reason although nothing is used, because they may have meant otherwise.
    """

    controller: str
    known_by: tuple[str, ...]
    reason: str
    values: Mapping[str, DetectedValue] = {}
    missing: str = ""
    must_report: bool = False


def describe_node(index: int, count: int, first: str) -> str:
    """What this node is, for `reason`."""
    return f"this is node {index} of {count}" + (f", and node 0 is {first}" if index else "")
