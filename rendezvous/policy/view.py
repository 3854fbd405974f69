"""What the leader decides on: members and their statuses, the sealed round, and which members are reached.

A view is a snapshot on the leader's own clock. Decisions depend on it alone, so a test can repeat each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field

from rendezvous.policy.budget import RestartBudget
from rendezvous.reasons import Reason
from rendezvous.records import CAUSE_NODES_MAX, Command, Member, Seal, Status, Stop


class Size(Struct, frozen=True):
    """The largest world that some members could form."""

    world_size: int
    """0 for none."""
    is_full: bool
    """More members could not enlarge it."""
    reason: Reason
    is_complete: bool = False  # all nodes that can join have joined: if no world is possible now, none ever will be


class MemberView(Struct, frozen=True):
    """A live member as the leader sees it."""

    member: Member
    create_revision: int
    mod_revision: int
    seen_at: float
    """When the leader first saw it, on its own clock."""

    @property
    def node(self) -> str:
        """The key of this member's node in quarantines: its name and boot id."""
        return f"{self.member.node_name} {self.member.boot_id}"


class StatusView(Struct, frozen=True):
    """A member's last status. `failed_revision` orders first failures; `leaving_at`, when the leader saw it, or inf."""

    status: Status
    failed_revision: int
    failed_at: float
    leaving_at: float


Sizer = Callable[[Sequence[MemberView]], Size]


class View(Struct, frozen=True, kw_only=True):
    """All that the leader knows. Times are on its own clock."""

    own_id: str
    members: Mapping[str, MemberView]
    statuses: Mapping[str, StatusView]
    """May be of earlier rounds."""
    opened_at: float
    """When it began to lead, or the job began."""
    seal: Seal | None = None
    sealed_at: float = 0.0
    active: Collection[str] = ()
    """The members with ranks in the sealed round, lost ones included."""
    stop: Stop | None = None
    stopped_at: float = 0.0
    lost_at: Mapping[str, float]
    """When the leader noticed the loss of each of those that are gone."""
    names: Mapping[str, str]
    """Of the nodes of all members ever seen."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Keys of these nodes in quarantines."""
    budget: RestartBudget
    saved_at: float = -math.inf
    """When workers of the round last reported a checkpoint."""
    gone: frozenset[str] = frozenset()
    """Members whose key still exists, though presence has proven that no process of them is left."""
    confirmed_gone: frozenset[str] = frozenset()
    """Members of the round whose keys were deleted for that reason."""
    unreachable_since: Mapping[str, float] = field(default_factory=dict)
    """Members that were reached once and are unreachable now."""
    reached_count: int = 0
    """How many of `others_count` other members are reached."""
    others_count: int = 0
    no_omission_before: float = -math.inf
    """Before this time a member of the round that has not reported its stop may still run, though its key is gone,
    because the store had an outage.
    """
    unaware_until: Mapping[str, float] = field(default_factory=dict)
    """Members that were connected when their keys expired, so they did not know that their leases had ended, and until
    when their workers may live for that reason.
    """
    drained: Mapping[str, float] = field(default_factory=dict)
    """Names of nodes (or member ids, where two nodes have one name) that shall leave, and since when."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """People's requests by token, oldest first, without those already answered."""
    answers: Mapping[str, str] = field(default_factory=dict)
    """To those that the program above answers."""
    store_address: str = ""
    """The presence address of the agent that serves the store; "" if the store outlives the agents."""

    @property
    def store_host(self) -> str:
        """Return the member that serves the store, "" if no member does."""
        if not self.store_address:
            return ""
        addresses = ((m, view.member.presence_address) for m, view in self.members.items())
        return next((m for m, address in addresses if address == self.store_address), "")

    def get_leaving_at(self, member_id: str) -> float:
        """Return when the leader learned that this member leaves or is drained; infinite if it stays."""
        view = self.statuses.get(member_id)
        announced_at = view.leaving_at if view is not None else math.inf
        if not self.drained:
            return announced_at
        drained_at = self.drained.get(self.names.get(member_id, ""), math.inf)
        return min(announced_at, drained_at, self.drained.get(member_id, math.inf))

    def is_leaving(self, member_id: str) -> bool:
        """Return whether this member announced that it leaves, or is drained."""
        return self.get_leaving_at(member_id) < math.inf

    def _find_status(self, member_id: str) -> Status | None:
        """Return the member's status of the sealed round; None if it has reported none."""
        view = self.statuses.get(member_id)
        is_current = view is not None and self.seal is not None and view.status.plan_token == self.seal.plan_token
        return view.status if view is not None and is_current else None

    def get_outcome(self, member_id: str) -> str:
        """Return the member's outcome of the sealed round: "", "succeeded" or "failed"."""
        status = self._find_status(member_id)
        return status.outcome if status is not None else ""

    def has_stopped(self, member_id: str) -> bool:
        """Return whether the member reported that no process of the sealed round is left on its node."""
        status = self._find_status(member_id)
        return status is not None and status.is_stopped

    def is_idle(self, member_id: str) -> bool:
        """Return whether the round does not need this member: it has no ranks, has succeeded, or has stopped."""
        return member_id not in self.active or self.has_stopped(member_id) or self.get_outcome(member_id) == "succeeded"

    def is_pending(self, member_id: str) -> bool:
        """Return whether this member has ranks whose work is not done yet."""
        return member_id in self.active and self.get_outcome(member_id) != "succeeded"

    def list_lost(self) -> list[str]:
        """List the members that were lost without an announced departure before their work was done."""
        return [m for m in self.lost_at if m not in self.members and self.is_pending(m) and not self.is_leaving(m)]

    def list_failed(self) -> list[str]:
        """List the active members that failed in the sealed round."""
        return [m for m in self.active if self.get_outcome(m) == "failed"]

    def list_doubtful(self, now: float) -> list[str]:
        """List the members whose keys are gone, but whose workers may have survived in a store outage."""
        if now >= self.no_omission_before:
            return []
        return [
            m
            for m in self.lost_at
            if m not in self.members and m not in self.confirmed_gone and not self.has_stopped(m)
        ]

    def list_perhaps_held(self, now: float) -> list[str]:
        """List the members whose workers a store outage may have kept alive beyond their keys.

        A watch may be late: an apparent member may have lost its key and be kept alive by the acknowledgement of all.
        """
        others = [m for m in self.active if m != self.own_id] if now < self.no_omission_before else []
        return [m for m in others if m not in self.confirmed_gone and not self.has_stopped(m)]

    def list_unaware(self, now: float) -> list[str]:
        """List the members that may run on though their keys are gone, because the store ended their leases early.

        Not if a new member has joined from the same node: an agent joins when no process of its last round is left.
        """
        returned = {view.node for view in self.members.values()}
        late = [m for m, until in self.unaware_until.items() if now < until and m in self.active]
        return [
            m for m in late if m not in self.members and not self.has_stopped(m) and self.nodes.get(m) not in returned
        ]

    def list_departure_times(self) -> list[float]:
        """List when each active member that had not succeeded was lost, or announced that it leaves."""
        times = (min(self.lost_at.get(m, math.inf), self.get_leaving_at(m)) for m in self.active if self.is_pending(m))
        return [at for at in times if at < math.inf]

    def get_name(self, member_id: str) -> str:
        """Return the name of the member's node, or its member id if the name is unknown."""
        return self.names.get(member_id, member_id)

    def list_names(self, member_ids: Iterable[str]) -> tuple[str, ...]:
        """List the names of some members' nodes, as a stop of a round keeps them."""
        return tuple(sorted(self.get_name(member_id) for member_id in member_ids)[:CAUSE_NODES_MAX])

    def refer_to(self, member_ids: Iterable[str]) -> Reason:
        """Return the nodes of these members as a part of a reason: at most four of them by name, and their number."""
        names = sorted(self.get_name(member_id) for member_id in member_ids)
        return Reason.of("nodes", names=tuple(names[:4]), count=len(names))
