"""A run that is made up, of any size, with nodes in every state: the source of pages in tests.

    .venv/bin/python -m tests.support.page.fake_run 64 8080

serves its page until it is interrupted.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

import msgspec
from msgspec.structs import replace

from launcher.diagnosis.answer import Conclusion, CulpritStack, Gap, HangAnswer
from launcher.diagnosis.evidence import Frame
from launcher.model.errors import TemporaryError
from launcher.views.goodput import TimeSpent, compute_goodput
from launcher.views.requests import (
    EventPage,
    LogChunk,
    LogCursor,
    LogPage,
    NodeReply,
    NodeRequest,
    ReadEvents,
    ReadLogs,
)
from launcher.views.run_events import (
    FailureFound,
    RemarkMade,
    RoundStarted,
    RoundStopping,
    RunEvent,
    WorkerStarted,
    encode_event,
)
from launcher.views.run_view import NodeView, RankView, RoundView, RunView
from tests.support.page.serving import serve_page
from tests.support.reasons import because

BEGAN = 1_796_100_000.0
SCRIPT = "\u202e<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
AXES = ("pp", "dp", "tp")


class FakeRun:
    """A QuestionSource. `calm`: all nodes run; else one leaves, one is spare, one lost, and `h1` may be made `silent`.

    `text`: of the job, put wherever texts of a job are. `problem`: why it does not answer. `counts`: questions by kind.
    `gate`: while it is cleared, nothing is answered. `shortened`: how often its answer had to be.
    """

    def __init__(self, node_count: int = 4, slots: int = 8, *, calm: bool = False, text: str = "") -> None:
        self.node_count = node_count
        self.slots = slots
        self.calm = calm
        self.text = text
        self.is_live, self.is_through_store = True, False
        self.problem = ""
        self.silent = False
        self.shortened = 0
        self.counts: dict[str, int] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.began = time.monotonic()

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.gate.wait(10)
        if self.problem:
            raise TemporaryError(self.problem)

    def read_run(self) -> RunView:
        self._count("run")
        since_s = time.monotonic() - self.began
        report = make_report(self.node_count, self.slots, since_s, calm=self.calm, text=self.text)
        for _ in range(self.shortened):
            report = replace(report, member_count=self.node_count).shorten()
        return silence(report) if self.silent else report

    def read_node(self, node: str, request: NodeRequest) -> NodeReply:
        self._count(type(request).__name__)
        match request:
            case ReadEvents(after=after):
                lines = tuple(encode_event(one).decode() for one in make_events(self.text) if node == "m0")
                left = lines[after + 1 :]
                return EventPage(lines=left, first=after + 1, next_after=after + len(left))
            case ReadLogs():
                return self._make_log(node, request)
        raise AssertionError(request)

    def _make_log(self, node: str, request: ReadLogs) -> LogPage:
        if node.startswith("spare"):
            return LogPage(chunks=(), cursors=(), remark="there is no output here")
        first = int(node.removeprefix("h") or 0) * self.slots
        ranks = range(first, first + self.slots) if request.rank < 0 else [request.rank]
        known = {cursor.file for cursor in request.cursors}
        chunks = [self._make_chunk(rank) for rank in ranks]
        return LogPage(
            chunks=tuple(chunk for chunk in chunks if chunk.file not in known),
            cursors=tuple(LogCursor(chunk.file, len(chunk.data)) for chunk in chunks),
        )

    def _make_chunk(self, rank: int) -> LogChunk:
        lines = [f"step {1200 + index} loss {2.5 / (1 + index / 40):.4f} rank {rank}" for index in range(60)]
        data = "\n".join([*lines[:30], self.text or "a line", *lines[30:], ""])
        file = f"round_3/{rank}/stdout.log"
        return LogChunk(file=file, rank=rank, stream="stdout", round=3, offset=0, data=data)

    def ask_why(self) -> bytes:
        self._count("why")
        frames = (
            Frame(function="read", file="/home/me/loader.py", line=31),
            Frame(function="main", file="/home/me/train.py", line=12),
        )
        answer = HangAnswer(
            kind="late",
            culprits=(5,),
            sentences=("rank 5 (pp=0 dp=0 tp=5) has not entered all_reduce 1042; 7 others have waited for 312 s",
                       f"rank 5 is in read (loader.py:31), asleep {self.text}".strip()),
            places=(),
            stacks=(CulpritStack(rank=5, name="rank 5 (pp=0 dp=0 tp=5)", frames=frames),),
            gaps=(Gap(ranks=(0, 1), reason="no flight recorder"),),
            stragglers=(),
            folders=(),
            hint="see what rank 5 does in read at loader.py:31",
        )  # fmt: skip
        stacks = (
            f"rank 5 (pp=0 dp=0 tp=5): asleep\n  read                         /home/me/loader.py:31 {self.text}\n"
            "  main                         /home/me/train.py:12\n\n"
            "ranks 0, 1, 2, 3, 4, 6, 7, 8 and 1,016 more: asleep\n"
            "  all_reduce                   torch/distributed/distributed_c10d.py:2810\n"
            "  main                         /home/me/train.py:19\n"
        )
        conclusion = Conclusion(round=3, purpose="question", answer=answer, stacks=stacks)
        return msgspec.json.encode(conclusion) + b"\n"


def make_report(node_count: int, slots: int, since_s: float, *, calm: bool = False, text: str = "") -> RunView:
    """Make a report of a mesh pp=2,dp=*,tp=`slots`, `since_s` after it was first looked at."""
    now = BEGAN + 7200 + since_s
    step = 1200 + int(since_s)
    shape = (2, node_count // 2, slots) if node_count > 1 else (1, 1, slots)
    rounds = make_rounds(node_count * slots, node_count, text)
    nodes = []
    for index in range(node_count):
        ranks = tuple(
            _make_rank(index * slots + slot, slot, shape, now, step, calm=calm, text=text) for slot in range(slots)
        )
        nodes.append(
            NodeView(
                name=f"h{index}", member_id=f"m{index}", run_id="llama-70b", version="0.1.0", at=now, started_at=BEGAN,
                agent_pid=900 + index, state="running", is_leader=index == 0, round=3, group_rank=index,
                last=rounds[-1], mesh_shape=shape, step=step,
                locality=(("pod", f"p{index // 64}"), ("leaf", f"l{index // 8}")),
                store_latency_s=0.0021, agent_rss_bytes=58 << 20, log_dir="/var/log/meshrun/llama-70b", ranks=ranks,
                slot_count=slots, checkpoint_count=14,
            )
        )  # fmt: skip
    lost: tuple[tuple[str, int], ...] = ()
    if not calm and node_count >= 4:
        spare = replace(nodes[0], name=f"spare{node_count}", member_id="m-spare", is_leader=False, state="spare",
                        round=0, ranks=(), group_rank=-1, why=because("a place: 2 nodes make a replica"))  # fmt: skip
        nodes[2] = replace(nodes[2], state="leaving")
        nodes.append(spare)
        lost = ((f"h{node_count}", 2),)
    return RunView(
        run_id="llama-70b", at=now, phase="running", leader="h0", round=3, world_size=node_count * slots,
        mesh="pp=2,dp=*,tp=8", shape=shape, restart_count=1, max_restarts=3, nodes=tuple(nodes), lost=lost,
        rounds=rounds, goodput=compute_goodput(rounds, TimeSpent(until=BEGAN), now),
    )  # fmt: skip


def silence(report: RunView) -> RunView:
    """Return the report as it is when h1 does not answer."""
    nodes = (NodeView(name="h1", member_id="m1") if one.name == "h1" else one for one in report.nodes)
    return replace(report, nodes=tuple(nodes))


def _make_rank(
    rank: int, slot: int, shape: tuple[int, ...], now: float, step: int, *, calm: bool, text: str
) -> RankView:
    at = (rank // (shape[1] * shape[2]), rank // shape[2] % shape[1], rank % shape[2])
    place = ",".join(f"{axis}={one}" for axis, one in zip(AXES, at, strict=True))
    age, state, phase = 0.4 + (rank * 7 % 13) / 10, "running", ""
    if not calm and rank in (5, 21):
        age, step, phase = 312.0, step - 9, text or "load data"
    if not calm and rank == 27:
        state = "stopped"
    return RankView(
        rank=rank, local_rank=slot, pid=4000 + rank, state=state, place=place, started_at=BEGAN + 4000, cores=1.02,
        cpu_s=3100.0, rss_bytes=(3 << 30) + rank * 1_000_003, read_bytes=9 << 30, written_bytes=2 << 20,
        progress_age_s=age, step=step, phase=phase, device=f"cuda{slot}", device_memory_bytes=61 << 30,
        device_memory_total_bytes=80 << 30,
    )  # fmt: skip


def make_rounds(world_size: int, node_count: int, text: str = "") -> tuple[RoundView, ...]:
    common = {"world_size": world_size, "node_count": node_count, "ranks": tuple(range(8)), "mesh": "pp=2,dp=*,tp=8"}
    return (
        RoundView(round=1, began_at=BEGAN + 95, restart_count=0, waited_s=95.0, ended_at=BEGAN + 2400,
                     cause="failure", ended=because("rank 7 failed"), failed_rank=7,
                     failure_class=because("user code: KeyError"), error=f"KeyError: 'shard_0412' {text}".strip(),
                     saved_at=BEGAN + 2100, step=480, **common),
        RoundView(round=2, began_at=BEGAN + 2460, restart_count=1, waited_s=60.0, ended_at=BEGAN + 3900,
                     cause="loss", ended=because(f"h{node_count} is lost: two dials were refused"),
                     nodes=(f"h{node_count}",), saved_at=BEGAN + 3600, step=760, **common),
        RoundView(round=3, began_at=BEGAN + 3990, restart_count=1, waited_s=90.0, saved_at=BEGAN + 7000, **common),
    )  # fmt: skip


def make_events(text: str = "") -> list[RunEvent]:
    common = {"run_id": "llama-70b", "node": "h0"}
    return [
        RoundStarted(at=BEGAN + 95, round=1, world_size=64, node_count=8, ranks=(0, 1), mesh="", restart_count=0,
                     max_restarts=3, waited_s=95.0, **common),
        FailureFound(at=BEGAN + 2400, round=1, rank=7, exit_code=1, failure_class="user code: KeyError",
                     error=f"KeyError: 'shard_0412' {text}".strip(), **common),
        RoundStopping(at=BEGAN + 2400.2, round=1, cause="failure", reason="rank 7 failed", mode="kill", **common),
        *(
            WorkerStarted(at=BEGAN + 2460, round=2, rank=rank, local_rank=rank, pid=4000 + rank, **common)
            for rank in range(8)
        ),
        RemarkMade(at=BEGAN + 2461, sentence=f"no node joined for 30 s {text}".strip(), **common),
    ]  # fmt: skip


def main() -> None:
    node_count, port = int(sys.argv[1]), int(sys.argv[2])
    page = serve_page(FakeRun(node_count, calm=len(sys.argv) > 3), port=port)
    print(page.url, flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    page.close()


if __name__ == "__main__":
    main()
