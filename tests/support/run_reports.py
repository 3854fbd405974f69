"""Made reports of a run, and a source of them: for tests of views, without agents."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from launcher.meshctl.live.ended_run import EndedSource
from launcher.model.errors import TemporaryError
from launcher.views.node.log_pages import LogSource, read_page
from launcher.views.requests import EventPage, NodeReply, NodeRequest, ReadEvents, ReadLogs
from launcher.views.run_events import RunEvent
from launcher.views.run_view import NodeView, RankView, RoundView, RunView
from launcher.views.sinks.event_file import KEPT_FILE
from tests.support.reasons import because

NOW = 1_800_000_000.0


def make_rank(rank: int, **fields: object) -> RankView:
    return RankView(**{"rank": rank, "local_rank": rank % 2, "pid": 100 + rank, "state": "running", **fields})  # type: ignore[arg-type]


def make_node(index: int, **fields: object) -> NodeView:
    usual = {
        "name": f"h{index}", "member_id": f"m{index}", "run_id": "exp", "version": "1", "at": NOW,
        "started_at": NOW - 99, "agent_pid": 10 + index, "state": "running", "is_leader": index == 0, "round": 2,
        "group_rank": index, "mesh_shape": (2, 2), "ranks": (make_rank(2 * index), make_rank(2 * index + 1)),
    }  # fmt: skip
    return NodeView(**{**usual, **fields})  # type: ignore[arg-type]


def make_round(round: int, **fields: object) -> RoundView:
    usual = {
        "round": round, "began_at": NOW - 60, "world_size": 4, "node_count": 2, "ranks": (0, 1), "restart_count": 1,
        "waited_s": 1.0,
    }  # fmt: skip
    return RoundView(**{**usual, **fields})  # type: ignore[arg-type]


FIRST = make_round(
    1,
    began_at=NOW - 120,
    ended_at=NOW - 90,
    ran_s=30.0,
    cause="loss",
    ended=because("node h9 is lost"),
    nodes=("h9",),
    world_size=6,
)
REPORT = RunView(
    run_id="exp", at=NOW, phase="running", leader="h0", round=2, world_size=4, mesh="dp=*,tp=2", shape=(2, 2),
    restart_count=1, max_restarts=3, nodes=(make_node(0), make_node(1), NodeView(name="h7", member_id="m7")),
    lost=(("h9", 1),), rounds=(FIRST, make_round(2)),
)  # fmt: skip
CALM = replace(REPORT, nodes=REPORT.nodes[:2])
"""The same run, with an answer of every node."""


def make_silent(name: str) -> NodeView:
    return NodeView(name=name, member_id=f"m{name[1:]}")


class FakeSource:
    """A QuestionSource over made reports, lines of events, and real files.

    `before_answer`: called with a node's member id before it answers, and may raise. `run_id`: as of `LocalSource`.
    """

    run_id = "exp"
    is_through_store = False

    def __init__(self, report: RunView = REPORT) -> None:
        self.report = report
        self.ended: EndedSource | None = None
        """What is left, once all agents have ended."""
        self.events: dict[str, list[str]] = {node.member_id: [] for node in report.nodes}
        self.files: dict[str, list[LogSource]] = {node.member_id: [] for node in report.nodes}
        self.live_round = 1
        self.before_answer: Callable[[str], None] = lambda member_id: None
        self.error: TemporaryError | None = None
        self.requests: list[tuple[str, NodeRequest]] = []
        self._lock = threading.Lock()

    @property
    def is_live(self) -> bool:
        return self.ended is None

    @property
    def switch_count(self) -> int:
        return int(self.ended is not None)

    def read_run(self) -> RunView:
        if self.ended is not None:
            return self.ended.read_run()
        if self.error is not None:
            raise self.error
        return self.report

    def read_node(self, node: str, request: NodeRequest) -> NodeReply:
        if self.error is not None:
            raise self.error
        with self._lock:
            self.requests.append((node, request))
        self.before_answer(node)
        if self.ended is not None:
            return self.ended.read_node(node, request)
        if isinstance(request, ReadLogs):
            return read_page(self.files[node], request, self.live_round)
        assert isinstance(request, ReadEvents)
        lines = self.events.get(node, [])[request.after + 1 :]
        last = request.after + len(lines)
        return EventPage(lines=tuple(lines), first=request.after + 1, next_after=last)

    def ask_why(self) -> bytes:
        raise TemporaryError("nobody was asked")

    def add_file(self, member_id: str, path: Path, rank: int, stream: str = "stdout", round: int = 1) -> Path:
        """Let a node have a file; `path`: within its log directory, which is `path`'s third parent."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        name = str(path.relative_to(path.parents[2]))
        source = LogSource(name=name, path=str(path), rank=rank, stream=stream, round=round)
        self.files[member_id].append(source)
        return path


def make_event(kind: str, node: str, at: str, **fields: object) -> str:
    """Make a line of --events; `at`: such as "08:05:00.250"."""
    head = {"schema": 1, "event": kind, "time": f"2026-01-31T{at}Z", "run_id": "exp", "node": node, "round": 1}
    return msgspec.json.encode({**head, **fields}).decode()


def keep_events(folder: Path, *lines: str) -> None:
    """Let an agent have written these lines beside its logs."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / KEPT_FILE).open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def make_start(number: int, node: str = "h0", ranks: tuple[int, ...] = (0, 1), **fields: object) -> str:
    """Make the line of a round's start."""
    usual = {
        "round": number, "world_size": 4, "node_count": 2, "ranks": ranks, "mesh": "", "restart_count": 0,
        "max_restarts": 3, "waited_s": 0.5,
    }  # fmt: skip
    return make_event("round_started", node, f"08:0{number}:00.000", **usual | fields)


EVENTS = tuple(RunEvent.__subclasses__())
EVENT_NAMES = tuple(str(kind.__struct_config__.tag) for kind in EVENTS)
