"""Phases of a script that may be silent for longer than its steps: an evaluation, a save, a compilation.

While any worker of a node is in a phase, the phase's limit takes the place of `--hang-timeout` there. To enter and to
leave one is a sign of progress. A phase is told through the shared page (`launcher.hardware.linux.shared_page`), so it
costs a few writes of memory, and nothing happens under a launcher without one.
"""

from __future__ import annotations

import sys

from launcher.hardware.linux import shared_page
from launcher.worker.client import WorkerPage, find_page

_LIMIT_MAX_S = 1e12  # more is no limit
_entered: list[Phase] = []  # of all threads, the innermost last


class Phase:
    """What `phase` returns: a context manager, which may be entered several times."""

    __slots__ = ("limit_ms", "name_numbers")

    def __init__(self, name: str, limit_s: float) -> None:
        if not limit_s > 0:
            raise ValueError(f"phase {name!r}: limit_s is {limit_s!r} and must be greater than 0")
        self.limit_ms = shared_page.NO_LIMIT if limit_s > _LIMIT_MAX_S else max(1, round(limit_s * 1000))
        self.name_numbers = _encode_name(name)

    def __enter__(self) -> None:
        _entered.append(self)
        if (page := find_page()) is not None:
            _show(page)

    def __exit__(self, *_: object) -> None:
        del _entered[len(_entered) - 1 - _entered[::-1].index(self)]  # its last entry: it may be within itself
        if (page := find_page()) is not None:
            _show(page)


def phase(name: str, *, limit_s: float) -> Phase:
    """Return a context in which this worker may make no progress for `limit_s` seconds; infinity means no limit.

    Reports show the first 16 bytes of `name`. If phases are nested, the innermost limit applies. Entering and leaving
    take less than 2 microseconds together. Raises ValueError for a limit that is not greater than 0.
    """
    return Phase(name, limit_s)


def _show(page: WorkerPage) -> None:
    """Write the innermost phase, or that there is none, to this worker's line."""
    if _entered:
        innermost = _entered[-1]
        page.own[shared_page.PHASE_NAME], page.own[shared_page.PHASE_NAME + 1] = innermost.name_numbers
        page.own[shared_page.PHASE_LIMIT_MS] = innermost.limit_ms
    else:
        page.own[shared_page.PHASE_LIMIT_MS] = 0
    page.own[shared_page.PHASE_COUNT] += 1


def _encode_name(name: str) -> tuple[int, int]:
    size = shared_page.NUMBER_SIZE
    data = name.encode(errors="replace")[: shared_page.PHASE_NAME_SIZE].ljust(shared_page.PHASE_NAME_SIZE, b"\0")
    return int.from_bytes(data[:size], sys.byteorder), int.from_bytes(data[size:], sys.byteorder)
