"""What the watch of progress and what examines the workers tell each other."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class SilenceChanged(Struct, frozen=True):
    """No worker of this node makes progress any more, or one does again."""

    is_silent: bool
    sentence: str


class CountersWanted(Struct, frozen=True):
    """The recorders of this node's workers are to be read: `CountersRead` is the answer."""


class CountersRead(Struct, frozen=True):
    """How far the workers' groups have come. By rank, of those that have answered, a value that changes when the rank
    enters a collective.
    """

    counters: Mapping[int, object]
