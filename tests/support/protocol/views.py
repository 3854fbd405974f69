"""Pictures for tests of what the leader decides, drawn in a few letters, and tables of what it decides on them.

Members are letters, the leader is `a`, and times are the leader's. A round of `a` and `b` was sealed at 100 s and,
where it was stopped, stopped at 120 s. Two to three nodes make a world.

    # The rule, as a sentence.
    stopping("ab", b=status())             the picture, in the names below
    at 121 with max_restarts=1             when the leader looks at it, and under which settings;
                                           complete=True: no other node can come
    Wait until=155 setting=...: ...        what it decides: fields that differ from their defaults, then the reason
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs
from msgspec.structs import replace

from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.decide import decide
from rendezvous.policy.decisions import Decision
from rendezvous.policy.quarantine import Strike
from rendezvous.policy.view import MemberView, Size, StatusView, View
from rendezvous.reasons import Reason
from rendezvous.records import Command, Member, Seal, Status, Stop
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
    return status("failed", stopped=True, at=at, **{"exit_code": 3, "failure": "text", **more})


def first_round(letters: str, statuses: Mapping[str, StatusView] | None = None, **seen_at: float) -> View:
    return View(
        own_id="a", members=members(letters, **seen_at), statuses=statuses or {}, opened_at=0.0, lost_at={}, names={},
        budget=RestartBudget(),
    )  # fmt: skip


def running(letters: str = "ab", *, seen: Mapping[str, float] | None = None, **statuses: StatusView) -> View:
    return View(
        own_id="a", members=members(letters, **(seen or {})), statuses=statuses, opened_at=0.0, seal=SEAL,
        sealed_at=100.0, active=("a", "b"), lost_at={m: 120.0 for m in "ab" if m not in letters},
        names={m: f"n{m}" for m in "abcd"}, budget=ONE_USED,
    )  # fmt: skip


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
        own_id="a", members=members(letters), statuses={**dict.fromkeys(active, STOPPED), **statuses}, opened_at=0.0,
        seal=SEAL, sealed_at=100.0, active=tuple(active),
        stop=Stop(round=4, reason=Reason.of("why"), mode=mode, ran_s=ran_s), stopped_at=120.0,
        lost_at={m: lost_at for m in active if m not in letters}, names={m: f"n{m}" for m in "abcd"}, budget=budget,
    )  # fmt: skip


PROVISIONAL = ONE_USED.charge(3, failed_at=119.5, now=119.6)


def describe(decision: Decision) -> str:
    """The decision as text: a line, and one more for its budget and for its remark."""
    fields = list_changes(decision)
    if verdict := fields.pop("verdict", None):
        fields = {**list_changes(verdict), **fields}
    reason, budget, remark = fields.pop("reason", ""), fields.pop("budget", None), fields.pop("remark", None)
    words = " ".join([type(decision).__name__, *(f"{name}={show(value)}" for name, value in fields.items())])
    lines = [f"{words}: {reason}" if reason else words]
    if budget is not None and (changes := list_changes(budget)):
        lines.append("  budget " + " ".join(f"{name}={show(value)}" for name, value in changes.items()))
    return "\n".join(lines if remark is None else [*lines, f"  remark {remark}"])


def list_changes(record: Any) -> dict[str, Any]:
    """The fields that differ from their defaults, or have none."""
    return {
        field.name: value
        for field in structs.fields(record)
        if (value := getattr(record, field.name)) != field.default or field.required
    }


def show(value: Any) -> str:
    match value:
        case Strike():
            return f"{value.node}@{value.at:g}" + (f"/{value.rank}" if value.rank >= 0 else "")
        case tuple():
            return ",".join(map(show, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def play(text: str) -> str:
    """The table with what is decided in place of what is written there."""
    blocks = [block.split("\n") for block in text.strip().split("\n\n")]
    return "\n\n".join(block[0] if len(block) == 1 else _play_rule(*block[:3]) for block in blocks) + "\n"


def _play_rule(rule: str, picture: str, at: str) -> str:
    time, _, words = at.removeprefix("at ").partition(" with ")
    limits = {name: _read(value) for name, _, value in (word.partition("=") for word in words.split())}
    is_complete = limits.pop("complete", False)

    def size(members: Sequence[MemberView]) -> Size:
        return replace(sizer(members), is_complete=True) if is_complete else sizer(members)

    settings = Settings(**{"max_restarts": 3, **limits})
    return "\n".join([rule, picture, at, describe(decide(eval(picture), float(time), settings, size))])


def _read(value: str) -> Any:
    """A setting as JSON has it, or a word."""
    try:
        return json.loads(value)
    except ValueError:
        return math.inf if value == "inf" else value


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


def served_by_b(view: View) -> View:
    """`b` serves the store of the others."""
    members = {
        m: replace(one, member=replace(one.member, presence_address=f"{m}:7000")) for m, one in view.members.items()
    }
    return replace(view, members=members, names={m: f"n{m}" for m in members}, store_address="b:7000")


def losses(*at: float, node: str = "nb boot") -> RestartBudget:
    return replace(ONE_USED, losses=marks(*at, node=node))


def faults(*found: Strike) -> RestartBudget:
    return replace(ONE_USED, first_failures=found)


THREE_LOSSES = (50.0, 60.0, 110.0)  # quarantined for 60 s, until 170 s
TWINS = {
    **first_round("ab").members,
    "c": MemberView(Member(member_id="c", node_name="nb", boot_id="", description=""), 3, 3, 0.0),
}
KEY_ERROR, NO_MEMORY = Reason.of("class", why="key-error"), Reason.of("class", why="no-memory")
SAME_TWICE = replace(ONE_USED, same_failure=KEY_ERROR, same_rank=5, same_failures=2)
STUCK_TWICE = replace(ONE_USED, best_step=10, stuck_rounds=2)
