"""A run, as it is known at a moment: the one model that every view renders, and the only schema of their JSON.

`RunView` has what the nodes have agreed (the leader makes it of the records that it follows, and so does whoever reads
the store); `NodeView` what an agent says of its node when it is asked. `join_nodes` puts both together. Times are
seconds since 1970, each by the clock of the node that says it; 0 is unknown or not yet.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from launcher.logs.reports.report import WorkerFailure
from rendezvous.reasons import Reason
from rendezvous.records import Cause, Verdict

SCHEMA = 1
Phase = Literal["forming", "running", "stopping", "waiting", "ended"]
FORMING: Phase = "forming"
RUNNING: Phase = "running"
STOPPING: Phase = "stopping"
WAITING: Phase = "waiting"
ENDED: Phase = "ended"
SILENT = "silent"
LOST_CAUSES = ("loss", "isolation")
_LEAST_OF_NODE = ("name", "member_id", "state", "why", "is_leader", "locality", "step", "log_dir", "off", "agent_pid")
_LEAST_OF_RANK = (
    "rank", "local_rank", "pid", "state", "exit_code", "place", "step", "phase", "progress_age_s", "cores", "rss_bytes"
)  # fmt: skip
"""What is said of a node and of a rank where there is no room for more."""
_OF_NODE = ("error", "hang", "mesh", "restart_count", "step", "waited_s")
"""What no record has of a round, but a node that was in it."""


class Goodput(Struct, frozen=True, kw_only=True):
    """Seconds since the run began here: all, those of training, and those lost, by cause."""

    total_s: float
    trained_s: float
    lost_s: dict[str, float]

    @property
    def ratio(self) -> float:
        """The part of the time that was training, 0 to 1; 0 before there is any."""
        return self.trained_s / self.total_s if self.total_s > 0 else 0.0


class RankView(Struct, kw_only=True, array_like=True):
    """A worker of the current or last round. Numbers of use are of the worker and of all that it has started; -1 is
    unknown. In a note and on the page it is a row, in this order: a thousand nodes have eight of them each.
    """

    rank: int
    local_rank: int = -1
    pid: int = 0
    """0 if it could not be started, or is not known."""
    state: str = "running"
    """"running", "stopped" (SIGSTOP), "blocked" (in the kernel), "succeeded", "failed", "terminated" (ended because its
    round was), or "unknown".
    """
    started_at: float = 0.0
    """When it was started, or when it was known that it could not be."""
    ended_at: float = 0.0
    exit_code: int | None = None
    sentence: str = ""
    place: str = ""
    """Its coordinates, "pp=1,tp=0"."""
    step: int = -1
    phase: str = ""
    progress_age_s: float = -1.0
    """Since its last sign of progress, or the first look at it if none was seen since; -1 if none is watched."""
    cores: float = -1.0
    """CPUs that it used since the last look."""
    cpu_s: float = 0.0
    """CPU time since its start."""
    rss_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    device: str = ""
    device_memory_bytes: int = -1
    """In use on its devices, by any process."""
    device_memory_total_bytes: int = -1


class RoundView(Struct, kw_only=True):
    """A round."""

    round: int
    world_size: int
    node_count: int
    reason: Reason | None = None
    """Why it was sealed."""
    began_at: float = 0.0
    ended_at: float = 0.0
    ran_s: float = 0.0
    ended: Reason | None = None
    """Why it is being ended, or was."""
    cause: Cause = ""
    """What ended it."""
    nodes: tuple[str, ...] = ()
    """Those that were lost, failed or left, if that ended it."""
    failed_rank: int = -1
    """Of the first failure, if one ended it."""
    failure_class: Reason | None = None
    error: str = ""
    ranks: tuple[int, ...] = ()
    """On one node."""
    restart_count: int = 0
    waited_s: float = 0.0
    mesh: str = ""
    saved_at: float = 0.0
    """The last checkpoint that was reported."""
    step: int = -1
    """The highest."""
    hang: tuple[str, ...] = ()
    """What was found of it, a sentence each, if it makes no progress."""


class NodeView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node now, or one whose place in a round has not been given to another yet."""

    name: str
    member_id: str = ""
    state: str = SILENT
    """"waiting" (for a round), "running", "succeeded", "failed", "stopping", "stopped", "leaving", "spare",
    "quarantined", "drained", "lost", or "silent" if it has not answered in time; "gone" when the job has ended.
    """
    why: Reason | None = None
    """What it waits for, or why it is in this state; None if the state explains itself."""
    is_leader: bool = False
    ranks: tuple[RankView, ...] = ()
    """Of the round `last`."""
    slot_count: int = 0
    """Workers that fit here."""
    locality: tuple[tuple[str, str], ...] = ()
    """Pairs of level and domain, outermost first."""
    silent_s: float | None = None
    """Since its last keep-alive or answer, None if that is unknown."""
    run_id: str = ""
    version: str = ""
    at: float = 0.0
    """When it said this."""
    started_at: float = 0.0
    agent_pid: int = 0
    round: int = 0
    """The round that runs here, 0 for none."""
    last: RoundView | None = None
    """The round that runs here, or the last one, as this node saw it."""
    group_rank: int = -1
    mesh_shape: tuple[int, ...] = ()
    step: int = -1
    store_latency_s: float = -1.0
    """Of the last request to the store, -1 if the store is in this process."""
    agent_rss_bytes: int = 0
    agent_cpu_s: float = 0.0
    log_dir: str = ""
    """"" if no files are kept."""
    round_count: int = 0
    """Rounds that have started here, as the counts that follow since the agent's start."""
    end_counts: dict[str, int] = field(default_factory=dict)
    """Rounds that have ended here, by cause."""
    failure_counts: dict[str, int] = field(default_factory=dict)
    """Failures of workers here that ended a round, by class."""
    checkpoint_count: int = 0
    hang_count: int = 0
    off: tuple[str, ...] = ()
    """Features of the agent that have failed, as its log names them."""
    run: RunView | None = None
    """From the leader alone: the run, of whose nodes it has those without ranks."""


class RunView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run as a whole."""

    run_id: str
    job: str = ""
    """The random word by which the store tells this job from others of the same run id."""
    script: str = ""
    """The file name of what its workers run."""
    phase: Phase = FORMING
    """"forming" before the first round, then "running", "stopping", "waiting" (for the next round) or "ended"."""
    at: float = 0.0
    """When this was found."""
    leader: str = ""
    """The node's name."""
    round: int = 0
    """The newest, 0 for none yet."""
    world_size: int = 0
    mesh: str = ""
    """As it was asked for, "pp=4,dp=*,tp=8"."""
    shape: tuple[int, ...] = ()
    """Sizes of its axes in this round."""
    coordinator: str = ""
    reason: Reason | None = None
    """Why the round was sealed."""
    stop_reason: Reason | None = None
    """Why it is being stopped, or was."""
    restart_count: int = 0
    max_restarts: int = 0
    """As agreed."""
    short_rounds: int = 0
    """Rounds in a row that ended soon after their start."""
    options: Mapping[str, str] = {}
    """Those that all agents have agreed on, without defaults."""
    member_count: int = 0
    nodes: tuple[NodeView, ...] = ()
    """Sorted by first rank; nodes without ranks last, by name."""
    lost: tuple[tuple[str, int], ...] = ()
    """Nodes that have not come back, each with the round in which it was lost."""
    drained: tuple[str, ...] = ()
    """Nodes that may not come back."""
    requests: tuple[str, ...] = ()
    """Requests of people that are not carried out yet."""
    rounds: tuple[RoundView, ...] = ()
    """The newest last."""
    goodput: Goodput | None = None
    """Since the run began, or the first of `rounds`; None if it goes on and only its records are known."""
    verdict: Verdict | None = None
    """How it has ended, without the text of a failure."""
    failure: WorkerFailure | None = None
    """The first of the job, once it has failed; before, of the last round in which one was reported, as long as the
    store has it.
    """
    faults: tuple[str, ...] = ()
    """Keys of the store that cannot be read, each with the reason."""
    is_short: bool = False
    """Ranks are left out, and perhaps nodes: the way of the answer has no room for so many."""
    schema: int = SCHEMA

    def shorten(self) -> RunView:
        """Return the view with less: of nodes and ranks the least, then without ranks, and at last without nodes."""
        if any(node.last is not None for node in self.nodes):
            return replace(self, nodes=tuple(map(_shorten_node, self.nodes)), rounds=self.rounds[-20:])
        nodes = tuple(replace(node, ranks=()) for node in self.nodes)
        return replace(self, nodes=() if self.is_short else nodes, is_short=True)

    @property
    def silent(self) -> tuple[str, ...]:
        """Names of the nodes that have not answered."""
        return tuple(node.name for node in self.nodes if node.state == SILENT)

    @property
    def hang(self) -> tuple[str, ...]:
        """What was found of the round that runs, if it makes no progress."""
        return self.rounds[-1].hang if self.rounds and self.phase == RUNNING else ()


def _shorten_node(node: NodeView) -> NodeView:
    kept = {name: getattr(node, name) for name in _LEAST_OF_NODE}
    ranks = (RankView(**{name: getattr(rank, name) for name in _LEAST_OF_RANK}) for rank in node.ranks)
    return NodeView(ranks=tuple(ranks), **kept)


def join_nodes(run: RunView, answers: Mapping[str, object], members: Mapping[str, str]) -> RunView:
    """Return the run with all its nodes, by what they have answered: by member id, as the names of `members`.

    Of a node without ranks the leader knows better why, and workers of an earlier round do not count as ranks.
    """
    idle = {node.member_id: node for node in run.nodes}
    nodes = []
    for member_id, name in members.items():
        node = answers.get(member_id)
        if not isinstance(node, NodeView):
            problem = Reason.of("views/sentence", sentence=node) if isinstance(node, str) else None
            nodes.append(NodeView(name=name, member_id=member_id, why=problem))
            continue
        if node.state in ("spare", "waiting") and (known := idle.get(member_id)) is not None:
            node = replace(node, state=known.state, why=known.why or node.why)
        is_of_round = node.last is not None and node.last.round == run.round
        nodes.append(replace(node, ranks=node.ranks if is_of_round else (), run=None))
    rounds = run.rounds
    if rounds:  # a leader that has just taken over has heard of no save of the others' workers
        own = [node.last for node in nodes if node.last is not None and node.last.round == rounds[-1].round]
        saved_at = max((rounds[-1].saved_at, *(one.saved_at for one in own)))
        rounds = (*rounds[:-1], replace(rounds[-1], saved_at=saved_at))
    phase = run.phase
    if phase in (STOPPING, WAITING):
        phase = STOPPING if any(node.state in ("stopping", "leaving") for node in nodes) else WAITING
    return replace(
        run,
        phase=phase,
        shape=next((node.mesh_shape for node in nodes if node.round == run.round and node.mesh_shape), run.shape),
        nodes=sort_nodes(nodes),
        rounds=rounds,
        lost=find_lost_nodes(rounds, {node.name for node in nodes}) if run.verdict is None else (),
    )


def make_run_view(
    answers: Mapping[str, object], members: Mapping[str, str], leader_id: str, run_id: str, at: float
) -> RunView:
    """Put the answers of all members, by member id, together. `at`: seconds since 1970."""
    leader = answers.get(leader_id)
    run = leader.run if isinstance(leader, NodeView) else None
    if run is None:
        run = guess_run(answers.values(), run_id, members.get(leader_id, ""), at)
    return join_nodes(run, answers, members)


def guess_run(answers: Iterable[object], run_id: str, leader: str, at: float) -> RunView:
    """Return what nodes know of their run while no leader has answered: the newest of their rounds."""
    nodes = [node for node in answers if isinstance(node, NodeView)]
    rounds = {node.last.round: node.last for node in nodes if node.last is not None}
    numbers = sorted(rounds)
    last = rounds[numbers[-1]] if numbers else None
    return RunView(
        run_id=run_id,
        phase=FORMING if last is None else WAITING if last.ended_at else RUNNING,
        at=at,
        leader=leader,
        round=last.round if last is not None else 0,
        world_size=last.world_size if last is not None else 0,
        restart_count=last.restart_count if last is not None else 0,
        stop_reason=last.ended if last is not None else None,
        rounds=tuple(rounds[number] for number in numbers),
        member_count=len(nodes),
    )


def sort_nodes(nodes: Iterable[NodeView]) -> tuple[NodeView, ...]:
    def place(node: NodeView) -> tuple[object, ...]:
        return not node.ranks, [rank.rank for rank in node.ranks], node.name, node.member_id

    return tuple(sorted(nodes, key=place))


def merge_rounds(stored: Sequence[RoundView], own: Sequence[RoundView]) -> tuple[RoundView, ...]:
    """Return the rounds of a run by its records, with what a node has seen of those in which it was."""
    rounds = {one.round: one for one in own}
    for one in stored:
        seen = rounds.get(one.round)
        details = {} if seen is None else {name: getattr(seen, name) for name in _OF_NODE}
        saved_at = max(one.saved_at, seen.saved_at if seen is not None else 0.0)
        rounds[one.round] = replace(one, saved_at=saved_at, **details)
    return tuple(rounds[number] for number in sorted(rounds))


def find_lost_nodes(rounds: Iterable[RoundView], present: Container[str]) -> tuple[tuple[str, int], ...]:
    """Return the nodes that were lost in these rounds and are not among those present: (name, round), by name."""
    lost = {name: one.round for one in rounds if one.cause in LOST_CAUSES for name in one.nodes}
    return tuple((name, lost[name]) for name in sorted(lost) if name not in present)
