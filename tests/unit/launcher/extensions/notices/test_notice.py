"""What follows from what a cloud announces: when a node leaves, what is said, and how long its workers have."""

from __future__ import annotations

import math

import pytest

from launcher.agent.loop import GRACE_LEAST_S
from launcher.extensions.notices.notice import LEAD_S, NodeOutlook, Notice, NoticeChange, compare_notices
from rendezvous.reasons import Reason
from tests.support.reasons import because


def make(key: str = "spot", left_s: float | None = 118.0, **words: object) -> Notice:
    fields = {"what": because("announces a spot interruption"), "ends_node": True, **words}
    return Notice(key=key, left_s=left_s, **fields)  # type: ignore[arg-type]


def read(notice: Notice, at: float = 1000.0, *, is_withdrawn: bool = False) -> NoticeChange:
    return NoticeChange(notice=notice, read_at=at, is_withdrawn=is_withdrawn)


def look(*notices: Notice, acts: bool = True, timeout_s: float = 30.0) -> tuple[NodeOutlook, list[str]]:
    """What is announced at 1000, and what is said then."""
    outlook = NodeOutlook(source="AWS", acts=acts, shutdown_timeout_s=timeout_s)
    return outlook, [outlook.take(read(notice), 1000.0, is_leaving=False).sentence for notice in notices]


def limit_save(outlook: NodeOutlook, grace_s: float, now: float) -> tuple[float, float]:
    """How long workers may take to save, as the loop has it, and until when."""
    kill_at, save_by = outlook.limit_grace(now)
    grace_s = min(grace_s, max(GRACE_LEAST_S, kill_at - now))
    return grace_s, min(now + grace_s, save_by)


def test_what_is_near_makes_the_node_leave_at_once_and_what_is_far_just_in_time() -> None:
    outlook, said = look(make())
    assert outlook.leave_at <= 1000.0
    assert said == ["AWS announces a spot interruption in 1 min 58 s: this node leaves"]
    assert outlook.reason == Reason.of("hardware/notice", source="AWS", notice=because("announces a spot interruption"))
    outlook, said = look(make(left_s=3600.0))
    assert outlook.leave_at == 1000.0 + 3600.0 - LEAD_S
    assert said == ["AWS announces a spot interruption in 1 h: this node leaves in 57 min"]
    slow, _ = look(make(left_s=3600.0), timeout_s=900.0)
    assert slow.leave_at == 1000.0 + 3600.0 - 960.0


@pytest.mark.parametrize(
    ("left_s", "end"), [(None, "interruption: this node leaves"), (-7200.0, "and its time has come: this node leaves")]
)
def test_a_time_that_is_unknown_or_past_shortens_no_save(left_s: float | None, end: str) -> None:
    outlook, (said,) = look(make(left_s=left_s))
    assert said.endswith(end)
    assert outlook.leave_at <= 1000.0
    assert limit_save(outlook, 30.0, 1001.0)[0] == 30.0


def test_workers_are_told_the_least_time_and_the_leaving_change_only_it() -> None:
    outlook, _ = look(make(left_s=None, least_s=30.0))
    assert limit_save(outlook, 300.0, 1000.0)[0] == 300.0
    assert limit_save(outlook, 300.0, 1000.0)[1] == 1030.0
    outlook, _ = look(make(left_s=118.0))
    update = outlook.take(read(make("other", 20.0)), 1000.0, is_leaving=True)
    assert update.sentence == "AWS announces a spot interruption in 20 s: this node is leaving already"
    assert limit_save(outlook, 30.0, 1000.0)[0] == 18.0
    late = outlook.take(read(make("other", 20.0), is_withdrawn=True), 1001.0, is_leaving=True)
    assert late.sentence == "AWS no longer announces a spot interruption: this node is leaving already"
    assert limit_save(outlook, 30.0, 1001.0)[0] == 30.0


@pytest.mark.parametrize(
    ("left_s", "grace_s"), [(120.0, 30.0), (25.0, 23.0), (6.0, 5.0), (2.5, 5.0), (1.0, 30.0), (0.0, 30.0)]
)
def test_a_save_ends_before_the_machine_does(left_s: float, grace_s: float) -> None:
    outlook, _ = look(make(left_s=left_s))
    assert limit_save(outlook, 30.0, 1000.0)[0] == grace_s
    assert limit_save(outlook, 30.0, 1000.0)[1] == 1000.0 + min(grace_s, left_s)


def test_recommendations_and_reports_make_nobody_leave_and_only_changes_are_told() -> None:
    outlook, said = look(make(what=because("recommends replacing this machine"), ends_node=False, left_s=None))
    assert said == ["AWS recommends replacing this machine: this node stays"]
    assert outlook.leave_at == math.inf
    assert limit_save(outlook, 30.0, 1000.0)[0] == 30.0
    outlook, said = look(make(left_s=10.0), acts=False)
    assert said == ["AWS announces a spot interruption in 10 s: this node stays (--notices report)"]
    assert outlook.leave_at == math.inf
    assert limit_save(outlook, 30.0, 1000.0)[0] == 30.0
    assert limit_save(outlook, 30.0, 1000.0)[1] == 1030.0
    kept, moved, gone = make("kept"), make("moved", when="18:00"), make("gone")
    later = make("moved", 200.0, when="18:05")
    known = {notice.key: notice for notice in (kept, moved, gone)}
    changes = compare_notices(known, [make("kept", 100.0), later, make("new")], 5.0)
    assert [(change.notice.key, change.is_withdrawn, change.read_at) for change in changes] == [
        ("gone", True, 5.0), ("moved", False, 5.0), ("new", False, 5.0),
    ]  # fmt: skip


def test_of_several_notices_the_first_makes_the_node_leave_though_another_is_withdrawn() -> None:
    outlook, _ = look(
        make("late", 7200.0, what=because("announces a reboot")), make("soon", 600.0, what=because("announces its end"))
    )
    assert outlook.leave_at == 1000.0 + 600.0 - LEAD_S
    assert outlook.reason == Reason.of("hardware/notice", source="AWS", notice=because("announces its end"))
    outlook, said = look(make("reboot", 600.0, what=because("announces a reboot")), make(left_s=None, ends_node=False))
    assert said[1] == "AWS announces a spot interruption: this node leaves in 7 min"
    outlook.take(read(make("other", 3600.0)), 1000.0, is_leaving=False)
    update = outlook.take(read(make("other", 3600.0), is_withdrawn=True), 1060.0, is_leaving=False)
    assert update.sentence == "AWS no longer announces a spot interruption: this node leaves in 6 min"
    assert not update.leaves
    outlook, _ = look(make(left_s=3600.0))
    update = outlook.take(read(make(left_s=3600.0), is_withdrawn=True), 1100.0, is_leaving=False)
    assert update.sentence == "AWS no longer announces a spot interruption: this node stays"
    assert (update.state, update.leaves) == ("withdrawn", False)
    assert outlook.leave_at == math.inf
