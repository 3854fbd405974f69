"""What a cloud has announced about this machine, and what follows from it. Nothing here asks or waits.

A notice says that the machine will go (a spot interruption, a termination, a reboot), or only that something is about
to happen to it (a recommendation, a live migration). Of a machine that goes its node leaves, so that its workers can
save. It leaves at once if that is near, as it always is with spot machines; of what is announced for a later time, it
leaves `LEAD_S` before, because until then the machine is as good as any other, and the notice may be withdrawn.

How long the workers may take is --shutdown-timeout, or less if the machine goes before. A time that a cloud gives is
compared with the time of the same server's answer, so the clock of this machine does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from launcher.model.errors import describe
from launcher.model.text import format_duration
from launcher.views.run_events import NoticeRead
from rendezvous.reasons import Reason

LEAD_S = 180.0
"""More than any spot notice leaves (two minutes), so those are acted on at once."""
SAVE_EXTRA_S = 60.0
"""The lead is never less than --shutdown-timeout and this: for the others' departures, and for a store that is slow."""
KILL_MARGIN_S = 2.0
"""Workers are killed so long before the machine goes, so that the agent can report the end of their processes."""


class Notice(Struct, frozen=True, kw_only=True):
    """One thing that a cloud announces."""

    key: str
    """The same as long as it is the same thing."""
    what: Reason
    """Its sentence is a clause that follows the cloud's name, such as "announces a spot interruption"."""
    ends_node: bool
    """Whether the machine goes away, with what is in its memory."""
    when: str = ""
    """Its time or state as the cloud writes it, which may change meanwhile."""
    left_s: float | None = None
    """Seconds until then when it was read, None if the cloud gives no time."""
    least_s: float = 0.0
    """Without a time, the least that the cloud documents."""


class NoticeChange(Struct, frozen=True, kw_only=True):
    """A notice that is new, has changed, or is gone."""

    notice: Notice
    read_at: float
    """When it was read, on the agent's clock."""
    is_withdrawn: bool = False


def compare_notices(known: Mapping[str, Notice], found: Sequence[Notice], now: float) -> list[NoticeChange]:
    """Return what is new or has another time now, and what is not announced any more. `now`: on the agent's clock."""
    current = {notice.key: notice for notice in found}
    gone = [NoticeChange(notice=known[key], read_at=now, is_withdrawn=True) for key in known if key not in current]
    new = [notice for key, notice in current.items() if key not in known or known[key].when != notice.when]
    return [*gone, *(NoticeChange(notice=notice, read_at=now) for notice in new)]


class NodeOutlook(Struct, kw_only=True):
    """What is announced now."""

    source: str
    """The cloud's name."""
    acts: bool
    """Whether the node leaves; otherwise it only reports."""
    shutdown_timeout_s: float
    notices: dict[str, NoticeChange] = {}
    renew_at: float = math.inf
    """When to call `limit_grace` again: the machine is still there though its end has come."""

    @property
    def leave_at(self) -> float:
        """When this node has to leave; infinite if it has not."""
        return min((self._find_leave_at(change) for change in self.notices.values()), default=math.inf)

    @property
    def reason(self) -> Reason:
        """Why: of several notices, because of the first to make it leave."""
        change = min(self.notices.values(), key=self._find_leave_at)
        return Reason.of("hardware/notice", source=self.source, notice=change.notice.what)

    def take(self, change: NoticeChange, now: float, *, is_leaving: bool) -> NoticeRead:
        """Note a change; return what to say. `is_leaving`: whether this node leaves already, for whatever reason."""
        notice = change.notice
        if change.is_withdrawn:
            self.notices.pop(notice.key, None)
        else:
            self.notices[notice.key] = change
        is_cause = not change.is_withdrawn and self._find_leave_at(change) < math.inf
        said = f"{self.source} {'no longer ' * change.is_withdrawn}{describe(notice.what)}"
        has_time = notice.left_s is not None and notice.ends_node and not change.is_withdrawn
        left = _describe_left(notice.left_s or 0.0) if has_time else ""
        if is_leaving:
            follows = "this node is leaving already"
        elif self.leave_at == math.inf:
            only = " (--notices report)" if notice.ends_node and not self.acts and not change.is_withdrawn else ""
            follows = f"this node stays{only}"
        elif self.leave_at > now:
            follows = f"this node leaves in {format_duration(self.leave_at - now)}"
        else:
            follows = "this node leaves"
        return NoticeRead(
            source=self.source,
            what=describe(notice.what),
            state="withdrawn" if change.is_withdrawn else "announced",
            leaves=is_cause,
            left_s=-1.0 if notice.left_s is None or not notice.ends_node else round(max(0.0, notice.left_s), 1),
            sentence=f"{said}{left}: {follows}",
        )

    def limit_grace(self, now: float) -> tuple[float, float]:
        """Return until when workers may live, and until when they have to have saved; infinite if nothing limits that.

        A machine that is still there when its end has come may stay for a while, or its clock is wrong: that shortens
        nothing. Workers are told of the least time that is documented, and not killed then, since they may have more.
        """
        ends = [change for change in self.notices.values() if change.notice.ends_node and self.acts]
        kill_at = (_find_end(change) - KILL_MARGIN_S for change in ends)
        self.renew_at = min((at for at in kill_at if at > now), default=math.inf)
        return self.renew_at, min((_find_end(change, takes_least=True) for change in ends), default=math.inf)

    def _find_leave_at(self, change: NoticeChange) -> float:
        if not change.notice.ends_node or not self.acts:
            return math.inf
        if change.notice.left_s is None:
            return change.read_at
        return _find_end(change) - max(LEAD_S, self.shutdown_timeout_s + SAVE_EXTRA_S)


def _find_end(change: NoticeChange, *, takes_least: bool = False) -> float:
    """Return when the machine goes; if the cloud gives no time never, or with `takes_least` as soon as it may."""
    left_s = change.notice.left_s
    if left_s is None:
        return change.read_at + change.notice.least_s if takes_least and change.notice.least_s else math.inf
    return change.read_at + left_s


def _describe_left(left_s: float) -> str:
    return f" in {format_duration(left_s)}" if left_s > 0 else ", and its time has come"
