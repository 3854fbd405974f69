"""Pictures for tests of what the leader decides, drawn in a few letters, and the row of a table of such rules.

Members are letters, the leader is `a`, and times are the leader's. A round of `a` and `b` was sealed at 100 s and,
where it was stopped, stopped at 120 s. Two to three nodes make a world.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.decide import decide
from rendezvous.policy.decisions import Decision, EndJob
from rendezvous.policy.quarantine import Strike
from rendezvous.policy.view import MemberView, Size, Sizer, StatusView, View
from rendezvous.reasons import Reason
from rendezvous.records import Command, Member, Seal, Status, Stop, Verdict
from rendezvous.settings import Settings

SEAL = Seal(round=4, plan_token="t", world_size=2, coordinator="a:1", reason=Reason.of("enough"))
SIGTERM = Reason.of("sigterm")
ONE_USED = RestartBudget(restart_count=1, charged_at=(50.0,))


def sizer(members: Sequence[MemberView]) -> Size:
    """Two to three nodes make a world."""
    count = len(members)
    return Size(min(count, 3) if count >= 2 else 0, count >= 3, Reason.of("here", nodes=count))


def members(letters: str, **seen_at: float) -> dict[str, MemberView]:
    return {
        m: MemberView(
            Member(member_id=m, node_name=f"n{m}", boot_id="", description=""), order, order, seen_at.get(m, 0)
        )
        for order, m in enumerate(letters, start=1)
    }


def status(
    outcome: str = "", *, stopped: bool = False, leaving_at: float = math.inf, at: float = math.inf, **more: Any
) -> StatusView:
    """A status of the sealed round; `at`: when the leader saw the failure; `revision` orders failures."""
    revision = more.pop("revision", 7)
    more.setdefault("plan_token", "t")
    leaving: dict[str, Any] = {"leaving": SIGTERM, "leaving_exit_code": 143} if leaving_at < math.inf else {}
    record = Status(round=4, outcome=outcome, is_stopped=stopped, **leaving, **more)
    return StatusView(record, revision, at, leaving_at)


STOPPED = status(stopped=True)


def failed(at: float = 110.0, **more: Any) -> StatusView:
    return status("failed", stopped=True, at=at, exit_code=more.pop("exit_code", 3), failure="text", **more)


def first_round(letters: str, statuses: Mapping[str, StatusView] | None = None, **seen_at: float) -> View:
    return View(
        own_id="a",
        members=members(letters, **seen_at),
        statuses=statuses or {},
        opened_at=0.0,
        lost_at={},
        names={},
        budget=RestartBudget(),
    )


def running(letters: str = "ab", *, seen: Mapping[str, float] | None = None, **statuses: StatusView) -> View:
    return View(
        own_id="a",
        members=members(letters, **(seen or {})),
        statuses=statuses,
        opened_at=0.0,
        seal=SEAL,
        sealed_at=100.0,
        active=("a", "b"),
        lost_at={m: 120.0 for m in "ab" if m not in letters},
        names={m: f"n{m}" for m in "abcd"},
        budget=ONE_USED,
    )


def stopping(
    letters: str = "ab",
    *,
    mode: str = "kill",
    ran_s: float = 20.0,
    active: str = "ab",
    lost_at: float = 120.0,
    budget: RestartBudget = ONE_USED,
    **statuses: StatusView,
) -> View:
    """The round was stopped at 120 s; who is not in `statuses` has stopped."""
    return View(
        own_id="a",
        members=members(letters),
        statuses={**dict.fromkeys(active, STOPPED), **statuses},
        opened_at=0.0,
        seal=SEAL,
        sealed_at=100.0,
        active=tuple(active),
        stop=Stop(round=4, reason=Reason.of("why"), mode=mode, ran_s=ran_s),
        stopped_at=120.0,
        lost_at={m: lost_at for m in active if m not in letters},
        names={m: f"n{m}" for m in "abcd"},
        budget=budget,
    )


def verdict(kind: str, exit_code: int, reason: str, round: int = 4, *, token: str = "", **more: Any) -> EndJob:
    """The end of the job, as `show` has it."""
    return EndJob(Verdict(kind=kind, exit_code=exit_code, round=round, reason=reason, **more), token)


def charged(at: float, failed_at: float, *, is_settled: bool = False, short_rounds: int = 0) -> RestartBudget:
    ledger = RestartBudget(restart_count=1, charged_at=(50.0,), short_rounds=short_rounds).charge(4, failed_at, at)
    return ledger.settle(math.inf, 0.0) if is_settled else ledger


PROVISIONAL = ONE_USED.charge(3, failed_at=119.5, now=119.6)


def show(decision: Any) -> Any:
    """The decision with a text in place of each reason: its kind and values."""
    found = {name: getattr(decision, name) for name in decision.__struct_fields__}
    texts = {name: str(value) for name, value in found.items() if isinstance(value, Reason)}
    verdicts = {name: show(value) for name, value in found.items() if isinstance(value, Verdict)}
    return replace(decision, **texts, **verdicts)


class Row(NamedTuple):
    """`expected`: as `show` has it."""

    rule: str
    view: View
    now: float
    expected: Decision
    settings: Mapping[str, Any] = {}
    sizer: Sizer = sizer

    def check(self) -> None:
        settings = Settings(**{"max_restarts": 3, **self.settings})
        assert show(decide(self.view, self.now, settings, self.sizer)) == self.expected


RUNS = "running round=4 ranks=2 is_spare=False"
NODES = {m: f"n{m} boot" for m in "abcd"}


def see(view: View, **more: Any) -> View:
    """The same picture with more in it; every node is known by its boot."""
    members = {m: replace(v, member=replace(v.member, boot_id="boot")) for m, v in view.members.items()}
    return replace(view, members=members, **{"nodes": NODES, "names": {m: f"n{m}" for m in "abcd"}, **more})


def reach(view: View, reached: int, others: int, **since: float) -> View:
    return see(view, reached_count=reached, others_count=others, unreachable_since=since)


def ask(view: View, kind: str, target: str = "", **more: Any) -> View:
    return see(view, commands={"t1": Command(kind=kind, target=target), "t2": Command(kind="stop")}, **more)


def marks(*at: float, node: str = "nb boot", rank: int = -1) -> tuple[Strike, ...]:
    return tuple(Strike(node, time, rank) for time in at)


def losses(*at: float, node: str = "nb boot") -> RestartBudget:
    return replace(ONE_USED, losses=marks(*at, node=node))


def faults(*found: Strike) -> RestartBudget:
    return replace(ONE_USED, first_failures=found)


LOST_B = Strike("nb boot", 120.0)
THREE_LOSSES = (50.0, 60.0, 110.0)  # quarantined for 60 s, until 170 s
FIRST_ON_B = Strike("nb boot", 119.0, 0)
TWINS = {
    **first_round("ab").members,
    "c": MemberView(Member(member_id="c", node_name="nb", boot_id="", description=""), 3, 3, 0.0),
}
