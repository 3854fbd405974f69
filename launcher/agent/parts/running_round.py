"""The round that runs on this node, for who looks at its workers: the loop alone changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from launcher.placement.adapter.description import NodeAssignment


FILES_MAX = 8
"""Rounds of which the log files are remembered."""


class RunningRound(Struct, kw_only=True, eq=False):
    """The workers of the round that runs here, or is being stopped. All dicts are by local rank."""

    number: int = 0
    """0 while none runs here."""
    share: NodeAssignment | None = None
    """Of this round or the last one."""
    pids: dict[int, int] = field(default_factory=dict)
    """Of the workers whose start was confirmed, ended ones too; empty before the workers are ordered."""
    exit_codes: dict[int, int] = field(default_factory=dict)
    has_workers: bool = False
    """Whether the workers have been ordered: it may take a while to open their streams."""
    is_stopping: bool = False
    files: dict[int, dict[tuple[int, str], str]] = field(default_factory=dict)
    """The log files of the last rounds, by round: (rank, stream) -> path."""

    def begin(self, number: int, share: NodeAssignment) -> None:
        self.number, self.share = number, share
        self.pids, self.exit_codes, self.has_workers, self.is_stopping = {}, {}, False, False

    def note_start(self, files: dict[tuple[int, str], str]) -> None:
        """Note that the workers are ordered, and which files keep their output."""
        self.has_workers = True
        self.files[self.number] = files
        for old in sorted(self.files)[:-FILES_MAX]:
            del self.files[old]

    def end(self) -> None:
        self.number, self.has_workers = 0, False

    def list_live(self) -> dict[int, int]:
        """Return the pids of the workers that live."""
        return {rank: pid for rank, pid in self.pids.items() if rank not in self.exit_codes}
