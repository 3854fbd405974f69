"""What the leader sees when it decides: members, what they said, the sealed round, and who can be reached.

A view is a picture taken at one moment, on the leader's own clock. Decisions are made from it and from nothing
else, so each can be repeated in a test by drawing the picture again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rendezvous.policy.budget import RestartBudget
from rendezvous.records import Command, Member, Seal, Status, Stop
from rendezvous.values import NamedTuple, dataclass, field


class Size(NamedTuple):
    """The largest world some members could form; 0 if none. `is_full`: more members could not enlarge it."""

    world_size: int
    is_full: bool
    reason: str
    is_complete: bool = False  # everybody is here who can come: what is no world now will not become one


class MemberView(NamedTuple):
    """A live member as the leader sees it. `seen_at`: first sight, on the leader's clock."""

    member: Member
    create_revision: int
    mod_revision: int
    seen_at: float

    @property
    def node(self) -> str:
        """What benches know this member's node by."""
        return f"{self.member.node_name} {self.member.boot_id}"


class StatusView(NamedTuple):
    """A member's last status. `failed_revision` orders first failures; `leaving_at`, when the leader saw it, or inf."""

    status: Status
    failed_revision: int
    failed_at: float
    leaving_at: float


Sizer = Callable[[Sequence[MemberView]], Size]


@dataclass(frozen=True, kw_only=True)
class View:
    """All that the leader knows. Times are on its own clock; `opened_at` is when it began to lead or the job began.

    `active`: the members with ranks in the sealed round, lost ones included. `lost_at`: when each of those that
    are gone was missed. `names`: of the nodes of all members ever seen; `nodes`: what benches know them by.
    `statuses` may be of earlier rounds. `saved_at`: when workers of the round last told of a checkpoint.

    `gone`: members whose key is still there, though presence has proven that nothing of them is left; `proven`:
    those of the round whose keys were deleted for that. `unreachable_since`: members that could be reached once and
    cannot now. `reached_count` of `others_count` other members can be reached. Before `no_omission_before` a member
    of the round that has not said that it stopped may still run, though its key is gone: the store had an outage.
    `unaware_until`: members that were connected when their keys went, so they did not know that their leases had ended,
    and until when their workers may live for that reason.

    `drained`: names of nodes (or member ids, where two nodes have one name) that shall leave, and since when.
    `commands`: people's requests by token, oldest first, those already refused left out.
    """

    own_id: str
    members: Mapping[str, MemberView]
    statuses: Mapping[str, StatusView]
    opened_at: float
    seal: Seal | None = None
    sealed_at: float = 0.0
    active: Collection[str] = ()
    stop: Stop | None = None
    stopped_at: float = 0.0
    lost_at: Mapping[str, float]
    names: Mapping[str, str]
    nodes: Mapping[str, str] = field(default_factory=dict)
    budget: RestartBudget
    saved_at: float = -math.inf
    gone: frozenset[str] = frozenset()
    confirmed_gone: frozenset[str] = frozenset()
    unreachable_since: Mapping[str, float] = field(default_factory=dict)
    reached_count: int = 0
    others_count: int = 0
    no_omission_before: float = -math.inf
    unaware_until: Mapping[str, float] = field(default_factory=dict)
    spares: tuple[str, ...] = ()
    drained: Mapping[str, float] = field(default_factory=dict)
    commands: Mapping[str, Command] = field(default_factory=dict)

    def get_leaving_at(self, member_id: str) -> float:
        """When the leader learned that this member leaves, or shall; infinite if it stays."""
        view = self.statuses.get(member_id)
        told_at = view.leaving_at if view is not None else math.inf
        if not self.drained:
            return told_at
        drained_at = self.drained.get(self.names.get(member_id, ""), math.inf)
        return min(told_at, drained_at, self.drained.get(member_id, math.inf))

    def is_leaving(self, member_id: str) -> bool:
        return self.get_leaving_at(member_id) < math.inf

    def get_outcome(self, member_id: str) -> str:
        view = self.statuses.get(member_id)
        if view is None or self.seal is None or view.status.plan_token != self.seal.plan_token:
            return ""
        return view.status.outcome

    def has_stopped(self, member_id: str) -> bool:
        view = self.statuses.get(member_id)
        return (
            view is not None
            and self.seal is not None
            and view.status.plan_token == self.seal.plan_token
            and view.status.is_stopped
        )

    def is_idle(self, member_id: str) -> bool:
        """Whether the round does not need this member: it has no ranks, has succeeded, or has stopped."""
        return member_id not in self.active or self.has_stopped(member_id) or self.get_outcome(member_id) == "succeeded"

    def is_pending(self, member_id: str) -> bool:
        """Whether this member has ranks whose work is not done yet."""
        return member_id in self.active and self.get_outcome(member_id) != "succeeded"

    def list_lost(self) -> list[str]:
        """Members whose work was not done when they vanished without a word."""
        return [m for m in self.lost_at if m not in self.members and self.is_pending(m) and not self.is_leaving(m)]

    def list_failed(self) -> list[str]:
        return [m for m in self.active if self.get_outcome(m) == "failed"]

    def list_doubtful(self, now: float) -> list[str]:
        """Members whose keys are gone, but whose workers a store outage may have kept alive."""
        if now >= self.no_omission_before:
            return []
        return [
            m
            for m in self.lost_at
            if m not in self.members and m not in self.confirmed_gone and not self.has_stopped(m)
        ]

    def list_perhaps_held(self, now: float) -> list[str]:
        """Members whose workers an outage may have kept alive beyond their keys, whatever is known of the keys.

        A watch may be late: whoever seems to be a member may be none any more, and is held by the word of all.
        """
        others = [m for m in self.active if m != self.own_id] if now < self.no_omission_before else []
        return [m for m in others if m not in self.confirmed_gone and not self.has_stopped(m)]

    def list_unaware(self, now: float) -> list[str]:
        """Members that may run on though their keys are gone, since the store has ended their leases early.

        Not where a new member stands on the same node: an agent joins when nothing is left of what it ran before.
        """
        returned = {view.node for view in self.members.values()}
        late = [m for m, until in self.unaware_until.items() if now < until and m in self.active]
        return [
            m for m in late if m not in self.members and not self.has_stopped(m) and self.nodes.get(m) not in returned
        ]

    def list_departure_times(self) -> list[float]:
        """When each active member that had not succeeded was missed, or told that it leaves."""
        times = (min(self.lost_at.get(m, math.inf), self.get_leaving_at(m)) for m in self.active if self.is_pending(m))
        return [at for at in times if at < math.inf]

    def get_name(self, member_id: str) -> str:
        return self.names.get(member_id, member_id)

    def describe(self, member_ids: Iterable[str]) -> str:
        """These members' nodes in words: "node a", "nodes a, b", at most four of them by name."""
        names = sorted(self.get_name(member_id) for member_id in member_ids)
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        return f"node {shown}" if len(names) == 1 else f"nodes {shown}"
