"""A report of a node in the middle of its run, and a source that says it."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from launcher.model.errors import TemporaryError
from launcher.views.questions.messages import Question
from launcher.views.requests import NodeReply, NodeRequest, ReadState
from launcher.views.run_view import Goodput, NodeView, RankView, RoundView, RunView


def make_report(rank_count: int = 2, **changes: Any) -> NodeView:
    """Make a report in which every value is known; `changes`: its fields that are different."""
    ranks = tuple(make_rank(rank) for rank in range(rank_count))
    last = RoundView(
        round=2, began_at=1010.0, world_size=4, node_count=2, ranks=tuple(range(rank_count)), restart_count=1,
        waited_s=5.0,
    )  # fmt: skip
    fields: dict[str, Any] = {
        "name": "n0", "member_id": "m0", "run_id": "exp-41", "version": "0.1.0", "at": 1100.0, "started_at": 1000.0,
        "agent_pid": 99, "state": "running", "is_leader": True, "round": 2, "step": 7, "store_latency_s": 0.002,
        "agent_rss_bytes": 40_000_000, "agent_cpu_s": 1.5, "ranks": ranks, "last": last, "round_count": 2,
        "end_counts": {"failure": 1}, "failure_counts": {"user code": 1}, "checkpoint_count": 4, "hang_count": 0,
        "run": RunView(
            run_id="exp-41", phase="running", round=2, restart_count=1, max_restarts=3, member_count=3,
            nodes=(NodeView(name="n2", state="spare"),), rounds=(last,),
            goodput=Goodput(total_s=100.0, trained_s=80.0, lost_s={"start": 5.0, "failure": 15.0}),
        ),
    }  # fmt: skip
    return NodeView(**{**fields, **changes})


def make_rank(rank: int, **changes: Any) -> RankView:
    fields: dict[str, Any] = {
        "rank": rank, "local_rank": rank, "pid": 100 + rank, "state": "running", "started_at": 1010.5, "cores": 0.9,
        "cpu_s": 80.0, "rss_bytes": 500_000_000, "read_bytes": 10, "written_bytes": 20, "progress_age_s": 0.5,
        "step": 7, "device": f"nvidia{rank}", "device_memory_bytes": 30, "device_memory_total_bytes": 80,
    }  # fmt: skip
    return RankView(**{**fields, **changes})


class FixedSource:
    """A source that answers with what it holds: a report, or a sentence for why there is none.

    `asked`: how often. While `gate` is not set, nothing is answered.
    """

    switch_count = 0

    def __init__(self, answer: NodeView | str) -> None:
        self.answer = answer
        self.asked = 0
        self.gate = threading.Event()
        self.gate.set()

    def read_node(self, node: str, request: NodeRequest) -> NodeReply:
        self.asked += 1
        assert self.gate.wait(20.0)
        if isinstance(self.answer, str):
            raise TemporaryError(self.answer)
        return self.answer

    def exchange(self, question: Question, limit_s: float) -> bytes:
        """Answer as an agent's bridge does."""
        assert isinstance(question.request, ReadState)
        try:
            return msgspec.json.encode(self.read_node(question.node, question.request)) + b"\n"
        except TemporaryError as error:
            return msgspec.json.encode({"error": str(error)}) + b"\n"

    def read_run(self) -> RunView:
        raise NotImplementedError

    def ask_why(self) -> bytes:
        raise NotImplementedError
