"""A cloud's notices in the agent's loop: this node leaves for one, and its workers save before the machine goes."""

from __future__ import annotations

import math

import pytest

from launcher.extensions.notices import part as notice_part
from launcher.extensions.notices.notice import LEAD_S, NodeOutlook, Notice, NoticeChange
from launcher.extensions.notices.part import NoticePart, make_notice_part
from launcher.model.concurrency import NO_THREAD
from launcher.parts.part import Effect, Fact, LimitGrace, Publish, RoundStarting
from launcher.views.run_events import NoticeRead
from rendezvous.events import LeaveRequest
from rendezvous.reasons import Reason
from tests.support.options import resolve
from tests.support.reasons import because
from tests.support.threads import no_threads

NO_LIMIT = LimitGrace(math.inf, math.inf)


class Announced:
    """In the place of what watches for notices."""

    label = "AWS"

    def __init__(self) -> None:
        self.changes: list[NoticeChange] = []

    @property
    def has_news(self) -> bool:
        return bool(self.changes)

    def start(self) -> None:
        pass

    def take_changes(self) -> list[NoticeChange]:
        taken, self.changes = self.changes, []
        return taken

    def take_complaints(self) -> list[str]:
        return []

    def announce(self, left_s: float | None, at: float, *, is_withdrawn: bool = False) -> None:
        notice = Notice(key="spot", what=because("announces an interruption"), ends_node=True, left_s=left_s)
        self.changes.append(NoticeChange(notice=notice, read_at=at, is_withdrawn=is_withdrawn))


def watch(*, acts: bool = True) -> tuple[NoticePart, Announced]:
    announced = Announced()
    outlook = NodeOutlook(source="AWS", acts=acts, shutdown_timeout_s=30.0)
    return NoticePart(announced, outlook), announced  # type: ignore[arg-type]


def turn(part: NoticePart, now: float) -> list[Effect]:
    """What the part asks for when it is called at this time; nothing if it is not due."""
    return [*part.advance(now)] if part.wake_at <= now else []


def read_update(effect: Effect) -> NoticeRead:
    assert isinstance(effect, Publish)
    assert isinstance(effect.what, NoticeRead)
    return effect.what


def test_a_notice_makes_the_node_leave_once_as_sigterm_does() -> None:
    part, announced = watch()
    assert part.wake_at == math.inf
    announced.announce(120.0, 12.0)
    told, grace, leave = turn(part, 12.0)
    assert read_update(told).sentence == "AWS announces an interruption in 2 min: this node leaves"
    assert grace == LimitGrace(130.0, 132.0)
    assert leave == LeaveRequest(
        Reason.of("hardware/notice", source="AWS", notice=because("announces an interruption")), 143
    )
    assert turn(part, 13.0) == []
    assert turn(part, 131.0) == [LimitGrace(math.inf, 132.0)]  # the machine is still there
    part, announced = watch()
    announced.announce(900.0, 12.0)
    turn(part, 12.0)
    part.take(Fact(LeaveRequest(because("SIGINT"), 130), 1, 13.0, 0.0))
    announced.announce(20.0, 13.0)
    told, grace = turn(part, 13.0)
    assert read_update(told).sentence.endswith("this node is leaving already")
    assert grace == LimitGrace(31.0, 33.0)


def test_a_notice_of_later_is_acted_on_later_and_what_was_said_early_again() -> None:
    part, announced = watch()
    announced.announce(900.0, 12.0)
    told, _ = turn(part, 12.0)
    assert read_update(told).leaves
    assert part.wake_at == 12.0 + 900.0 - LEAD_S
    announced.announce(900.0, 12.0, is_withdrawn=True)
    assert turn(part, 100.0)[1:] == [NO_LIMIT]
    assert part.wake_at == math.inf
    part, announced = watch()
    part.take(Fact(RoundStarting(None, None), 1, 11.0, 0.0))  # type: ignore[arg-type]
    assert turn(part, 11.0) == []
    announced.announce(900.0, 12.0)
    turn(part, 12.0)
    part.take(Fact(RoundStarting(None, None), 2, 13.0, 0.0))  # type: ignore[arg-type]
    assert turn(part, 13.0) == [LimitGrace(910.0, 912.0)]
    assert turn(part, 14.0) == []


def make(*words: str) -> NoticePart | None:
    return make_notice_part(resolve(*words).extensions.get("notices"), 30.0, {}, lambda: None, lambda: 0.0)


def test_a_machine_without_room_for_a_thread_reads_its_notices_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.extensions.notices.watcher.find_cloud", lambda root: "gce")
    with no_threads(), pytest.raises(OSError, match=NO_THREAD[:20]):
        make()
    assert make() is not None


@pytest.mark.parametrize(
    ("words", "said"), [((), ""), (("--notices=leave",), "meshrun: preemption notices cannot be read: no cloud\n")]
)
def test_that_there_is_no_cloud_is_said_to_who_has_asked(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notice_part, "make_watcher", lambda *_: "no cloud")
    assert make(*words) is None
    assert capfd.readouterr().err == said
