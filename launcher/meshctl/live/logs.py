"""`meshctl logs`: the output of the workers of all nodes, merged, once or as it is written.

Each node says where its files continue (cursors), so a page that was lost is asked for again and no line is lost or
shown twice, also where the source goes on with the files of this machine: the last lines of a job are written just
before its agents go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from launcher.meshctl.live.log_lines import LINES_MAX, LineMerger, OutputFile, format_line
from launcher.meshctl.live.poller import NodePoller, PolledNode
from launcher.model.console import escape
from launcher.model.errors import TemporaryError, UsageError, sanitize
from launcher.model.ranges import merge_names
from launcher.model.text import format_list
from launcher.views.requests import LogCursor, LogPage, ReadLogs
from launcher.views.run_view import RunView
from rendezvous.records import name_run

ALL_LINES = -1
_WAIT_S = 0.1


class LogView(Struct, eq=False):
    """Reads the logs of a run and prints them."""

    poller: NodePoller
    query: ReadLogs
    """Which output to show; its `tail_lines` are of the nodes that are there from the beginning."""
    write: Callable[[Iterable[str]], object]
    """Gets lines for stdout."""
    node: str = ""
    """A name or a member id, "" for all."""
    follow: bool = False
    """Continue until the run ends."""
    _merger: LineMerger = field(default_factory=LineMerger)
    _report: RunView | None = None
    _remarks: dict[str, set[str]] = field(default_factory=dict)  # why there is nothing to read: names of nodes
    _told_remarks: set[str] = field(default_factory=set)
    _cursors: dict[str, tuple[LogCursor, ...]] = field(default_factory=dict)  # by member id
    _has_files: bool = False
    _shown_round: int = 0

    def run(self) -> None:
        """Print until there is nothing more to come.

        Raises UsageError for a node or rank that is not there, and TemporaryError.
        """
        while True:
            for node, page in self.poller.poll(self._make_request, _WAIT_S):
                if isinstance(page, LogPage):
                    self._take_page(node, page)
            self._note_report()
            if self.poller.has_begun or self._merger.line_count > LINES_MAX:
                self._print(time.monotonic())
            if self.follow and self.poller.has_begun:
                self._tell_absence()
            if self.poller.is_over or (not self.follow and self.poller.has_all):
                break
        self._print(time.monotonic(), is_final=True)
        self._tell_end()

    def _make_request(self, node: PolledNode) -> ReadLogs | None:
        if not self._is_wanted(node):
            return None
        cursors = self._cursors.get(node.member_id)
        # What comes after the beginning is new as a whole.
        tail_lines = self.query.tail_lines if node.is_first and cursors is None else ALL_LINES
        return replace(self.query, cursors=cursors or (), tail_lines=tail_lines)

    def _is_wanted(self, node: PolledNode) -> bool:
        return self.node in ("", node.name, node.member_id)

    def _take_page(self, node: PolledNode, page: LogPage) -> None:
        self._cursors[node.member_id] = page.cursors
        for chunk in page.chunks:
            file = OutputFile(
                rank=chunk.rank, node=node.member_id, round=chunk.round, stream=chunk.stream, file=chunk.file
            )
            self._merger.add(file, chunk.data, time.monotonic())
        self._has_files = self._has_files or bool(page.cursors)
        if page.remark and page.cursors:
            self.poller.warn(f"{sanitize(node.name)}: {escape(page.remark)}")
        elif page.remark:
            self._remarks.setdefault(page.remark, set()).add(node.name)

    def _note_report(self) -> None:
        """Refuse what the run does not have, once there is a report."""
        report = self.poller.report
        if report is None or self._report is not None:
            return
        self._report = report
        self._require_rank(report)
        if self.node:
            names = {name for node in report.nodes for name in (node.name, node.member_id)} | set(report.silent)
            if self.node not in names:
                there = format_list(merge_names({node.name for node in report.nodes}))
                sentence = f"{name_run(report.run_id)} has no node {sanitize(self.node)}"
                raise UsageError(sentence, f"use one of {sanitize(there)}")

    def _require_rank(self, report: RunView) -> None:
        """Raise UsageError for a rank that no round of the run has had."""
        sizes = [one.world_size for one in report.rounds]
        sizes += [rank.rank + 1 for node in report.nodes for rank in node.ranks]
        count = max(sizes, default=0)
        if count and self.query.rank >= count:
            raise UsageError(
                f"{name_run(report.run_id)} has no rank {self.query.rank}", f"use a rank from 0 to {count - 1}"
            )

    def _print(self, now: float, *, is_final: bool = False) -> None:
        lines: list[str] = []
        for line in self._merger.take(now, is_final=is_final):
            if line.round > self._shown_round:
                if self._shown_round:
                    self.write(lines)
                    lines = []
                    self.poller.warn(f"round {line.round}")
                self._shown_round = line.round
            lines.append(format_line(line))
        if lines:
            self.write(lines)

    def _tell_end(self) -> None:
        if self.poller.ending:
            unread = [node.name for node in self.poller.nodes.values() if node.is_unread and self._is_wanted(node)]
            rest = f"; the last lines of {sanitize(format_list(merge_names(unread)))} may be missing" if unread else ""
            self.poller.warn(f"{self.poller.ending}{rest}")
        elif self._remarks and not self._has_files:
            raise TemporaryError(_format_remark(*max(self._remarks.items(), key=lambda one: len(one[1]))))

    def _tell_absence(self) -> None:
        """Say once why there is nothing to show."""
        for remark, names in self._remarks.items():
            if not self._has_files and remark not in self._told_remarks:
                self._told_remarks.add(remark)
                self.poller.warn(_format_remark(remark, names))


def _format_remark(remark: str, names: Collection[str]) -> str:
    return f"{sanitize(format_list(merge_names(names)))}: {escape(remark)}"
