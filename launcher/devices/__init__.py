"""What accelerators this node has: the contract of a detector.

A detector returns values and a reason, also when it finds nothing; it never prints, exits, imports a
framework, or changes the environment. Heavy imports stay inside `detect`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from launcher.node import Device


class Inventory(NamedTuple):
    """The devices this process may use, in the order a worker would count them, and how we know."""

    devices: tuple[Device, ...]
    reason: str


class Detector(Protocol):
    kind: str

    def detect(self, environ: Mapping[str, str]) -> Inventory: ...
