"""What a checker records of each job from the writes to the store: rounds, members, requested seals, the verdict.

`Checks` is what all groups of checks have in common: they compare such a record with the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from rendezvous.records import Seal, Status, Stop, Verdict
from tests.simulation.cluster import Cluster
from tests.simulation.host import Host


class RoundRecord:
    """One sealed round. `assignments`: by member id; `present`: members at the seal; `departed`: of these, gone."""

    def __init__(
        self, seal: Seal, assignments: dict[str, str], present: set[str], departed: set[str], sealed_at: float
    ) -> None:
        self.seal = seal
        self.assignments = assignments
        self.active = set(assignments)
        self.sealed_at = sealed_at
        self.stop: Stop | None = None
        self.stopped_at = math.inf
        self.statuses: dict[str, Status] = {}
        self.failed_at: dict[str, float] = {}
        self.failed_revisions: dict[str, int] = {}
        self.departed_at = dict.fromkeys(departed, sealed_at)  # members that had not succeeded -> when
        self.lost: set[str] = set()  # members whose keys were deleted
        self.known: frozenset[str] = frozenset()  # all members until the seal, including those that are gone
        self.present = present  # spares included
        self.departed = departed  # lost, or leaving, before they had succeeded
        self.succeeded: set[str] = set()
        self.stop_revision = 0
        self.is_port_taken = False
        self.failed_before_stop = False
        self.first_failure: tuple[bool, bool, int, int] | None = None
        """Was not told by the worker itself, is a peer loss, revision, exit code; the least of all."""

    def observe(self, member_id: str, status: Status, revision: int, now: float) -> None:
        """Record the status of a member. Raises ValueError if it contradicts the status before."""
        before = self.statuses.get(member_id)
        if before is not None and before.outcome and status.outcome != before.outcome:
            raise ValueError(f"{member_id} has {before.outcome}, and then {status.outcome or 'nothing'}")
        first_revision = self.failed_revisions.get(member_id)
        if first_revision is not None and status.failed_revision != first_revision:
            raise ValueError(f"{member_id} failed at {first_revision} and says {status.failed_revision}")
        self.statuses[member_id] = status
        if status.outcome == "failed":
            self.failed_at.setdefault(member_id, now)
            self.failed_revisions[member_id] = status.failed_revision or revision
        if status.outcome == "succeeded":
            self.succeeded.add(member_id)
        if status.outcome == "failed":
            is_told = bool(status.final_reason) or status.is_node_fault
            failure = (not is_told, status.is_peer_loss, status.failed_revision or revision, status.exit_code)
            self.first_failure = min(self.first_failure or failure, failure)
            self.is_port_taken |= status.is_port_taken
            self.failed_before_stop |= not self.stop_revision or failure[2] < self.stop_revision


class SealRequest(NamedTuple):
    """A seal as its writer requested it at the time `at`, and what the writer knew.

    `seal_seen_at`, `stop_seen_at`: when it first learned of the seal and the stop of the last round; `gone`: members
    that it knew to be gone, since when; `statuses`: when it learned of each member's status; `acknowledged_at`: when it
    last acknowledged that it cannot reach the store either.
    """

    node: str
    at: float
    seal_seen_at: float
    stop_seen_at: float
    gone: Mapping[str, float]
    statuses: Mapping[str, float]
    acknowledged_at: float


class JobRecord:
    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        self.rounds: list[RoundRecord] = []
        self.members: set[str] = set()  # all that have ever registered
        self.present: set[str] = set()
        self.departed: set[str] = set()  # gone, or leaving
        self.worlds: dict[int, tuple[str, int, int]] = {}
        self.used_coordinators: set[str] = set()  # of rounds in which a rank 0 really ran
        self.listed_spares: tuple[str, ...] = ()
        self.leases: dict[str, int] = {}  # member id -> lease of its key
        self.seen_until: dict[str, float] = {}  # members that are gone -> when their keys were deleted
        self.leaving: set[str] = set()
        self.ended: set[str] = set()  # members whose keys expired with their leases

    @property
    def last(self) -> RoundRecord | None:
        return self.rounds[-1] if self.rounds else None

    def depart(self, member_id: str, now: float) -> None:
        self.departed.add(member_id)
        if self.last is not None and member_id in self.last.active - self.last.succeeded:
            self.last.departed.add(member_id)
            self.last.departed_at.setdefault(member_id, now)


class Violation(AssertionError):
    """An invariant was broken; the text names it, the seed and the time."""


class Checks:
    """A group of checks of one cluster."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster, self._seed = cluster, seed
        self._timeline, self._storage, self._hosts = cluster.timeline, cluster.storage, cluster.nodes
        self._settings, self._shape = cluster.config.settings, cluster.config.shape

    def fail(self, invariant: str, what: object) -> NoReturn:
        raise Violation(f"{invariant}: {what} (seed {self._seed}, at {self._timeline.now:.3f} s)")

    def find_host(self, member_id: str) -> Host | None:
        """The machine whose agents have registered as this member."""
        return next((host for host in self._hosts.values() if member_id in host.member_ids), None)

    def find_node_name(self, member_id: str) -> str:
        """The node as strikes name it: by name and boot id, which are the same in a simulation."""
        host = self.find_host(member_id)
        return f"{host.name} {host.name}" if host is not None else member_id
