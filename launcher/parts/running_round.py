"""What parts may look at of the workers here."""

from __future__ import annotations

from msgspec import Struct, field

from launcher.placement.adapter.description import NodeAssignment

FILES_MAX = 8
"""Rounds of which the log files are remembered."""


class RunningRound(Struct, kw_only=True, eq=False):
    """The round that runs here, is being stopped, or was the last one."""

    number: int = 0
    """0 before the first."""
    share: NodeAssignment | None = None
    """Of this round or the last one."""
    pids: dict[int, int] = field(default_factory=dict)
    """By local rank, of the workers whose start was confirmed, ended ones too."""
    exit_codes: dict[int, int] = field(default_factory=dict)
    """By local rank."""
    has_workers: bool = False
    """From the order to start them, which may have to wait for descriptors, until nothing of the round is left."""
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

    @property
    def has_ended(self) -> bool:
        """Whether all workers have."""
        return self.share is not None and len(self.exit_codes) == len(self.share.ranks)

    def list_live(self) -> dict[int, int]:
        """Return the pids of the workers that live."""
        return {rank: pid for rank, pid in self.pids.items() if rank not in self.exit_codes}
