"""What the store has held of each job, as the checker remembers it: its rounds, its members, its verdict."""

from __future__ import annotations

from rendezvous.records import Seal, Status, Verdict


class RoundHistory:
    """One sealed round. Members are named by their ids."""

    def __init__(self, seal: Seal, active: set[str], present: set[str], departed: set[str]) -> None:
        self.seal = seal
        self.active = active
        self.present = present  # spares included
        self.departed = departed  # lost, or leaving, before they had succeeded
        self.succeeded: set[str] = set()
        self.stop_revision = 0
        self.is_port_taken = False
        self.failed_before_stop = False
        self.first_failure: tuple[bool, int, int] | None = None  # echo, revision, exit code: the least of all

    def see(self, member_id: str, status: Status, revision: int) -> None:
        if status.outcome == "succeeded":
            self.succeeded.add(member_id)
        if status.outcome == "failed":
            failure = (status.is_peer_loss, status.failed_revision or revision, status.exit_code)
            self.first_failure = min(self.first_failure or failure, failure)
            self.is_port_taken |= status.is_port_taken
            self.failed_before_stop |= not self.stop_revision or failure[1] < self.stop_revision


class JobHistory:
    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        self.rounds: list[RoundHistory] = []
        self.members: set[str] = set()  # all that ever were
        self.present: set[str] = set()
        self.departed: set[str] = set()  # gone, or leaving
        self.worlds: dict[int, tuple[str, int, int]] = {}
        self.used_coordinators: set[str] = set()  # where a rank 0 really ran

    @property
    def last(self) -> RoundHistory | None:
        return self.rounds[-1] if self.rounds else None

    def depart(self, member_id: str) -> None:
        self.departed.add(member_id)
        if self.last is not None and member_id in self.last.active - self.last.succeeded:
            self.last.departed.add(member_id)
