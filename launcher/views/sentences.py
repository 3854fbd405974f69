"""What is said of a run: the sentences that all views share. Text of others is escaped where it is shown."""

from __future__ import annotations

from launcher.logs.reports.report import WorkerFailure
from launcher.model.errors import describe
from launcher.model.text import format_count, format_duration
from launcher.views.run_view import ENDED, FORMING, RUNNING, STOPPING, Goodput, NodeView, RunView
from rendezvous.reasons import Reason
from rendezvous.records import Verdict, name_run


def format_headline(run: RunView) -> str:
    """Format what the run does now, in one sentence."""
    if run.verdict is not None:
        return ("was " if run.verdict.kind == "stopped" else "") + format_verdict(run.verdict)
    if run.phase == FORMING:
        return f"no round yet, {format_count(run.member_count, 'node')} present"
    if run.phase == RUNNING:
        counts = [one.node_count for one in run.rounds[-1:] if one.round == run.round]  # with nodes that are silent
        node_count = counts[0] if counts else sum(bool(node.ranks) for node in run.nodes)
        return f"round {run.round} runs {format_world(run.world_size, node_count)}"
    if run.phase == ENDED:  # as agents know it, who write no verdict
        return f"has ended with round {run.round}{_explain(run.stop_reason)}"
    doing = "is being stopped" if run.phase == STOPPING else "is over; the next one has not started yet"
    return f"round {run.round} {doing}{_explain(run.stop_reason)}"


def format_verdict(verdict: Verdict) -> str:
    """Format succeeded in round 3, exit code 0; stopped in round 3, exit code 143: at the request of ann."""
    how = {"success": "succeeded", "failure": "failed", "stopped": "stopped"}.get(verdict.kind, "has ended")
    why = f": {describe(verdict.reason)}" if verdict.kind != "success" else ""
    return f"{how} in round {verdict.round}, exit code {verdict.exit_code}{why}"


def _explain(reason: Reason | None) -> str:
    return f": {describe(reason)}" if reason is not None else ""


def format_world(rank_count: int, node_count: int) -> str:
    return f"{format_count(rank_count, 'rank')} on {format_count(node_count, 'node')}"


def format_failure(failure: WorkerFailure | None) -> str:
    """Format rank 5 (pp=1,tp=1) on h2 failed with exit code 1: ValueError: bad; log h2:/logs/stderr.log."""
    if failure is None:
        return ""
    coordinates = f" ({failure.coordinates})" if failure.coordinates else ""
    exception = f": {failure.exception}" if failure.exception else ""
    log = f"; log {failure.host}:{failure.log_file}" if failure.log_file else ""
    if failure.hang or failure.is_victim:
        who = f"rank {failure.rank}{coordinates} on {failure.host}"
        return f"{'; '.join(failure.finding) or 'no progress'}; {who} {failure.describe_ending()}{log}"
    return f"rank {failure.rank}{coordinates} on {failure.host} {failure.describe_ending()}{exception}{log}"


def format_goodput(goodput: Goodput | None) -> str:
    """Format 93 %: trained 2 h of 2 h 10 min; lost 8 min to failure, 2 min to start."""
    if goodput is None or not goodput.total_s:
        return ""
    lost = sorted(goodput.lost_s.items(), key=lambda one: -one[1])
    parts = ", ".join(f"{format_duration(seconds)} to {cause}" for cause, seconds in lost if seconds >= 0.05)
    trained = f"trained {format_duration(goodput.trained_s)} of {format_duration(goodput.total_s)}"
    return f"{100 * goodput.ratio:.0f} %: {trained}" + (f"; lost {parts}" if parts else "")


def explain_node(node: NodeView) -> str:
    """Explain the state of a node: why it waits or has failed, and what of its agent is off; "" for nothing."""
    return ", ".join(filter(None, (describe(node.why), *(f"{one} is off" for one in node.off))))


def explain_shortness(run: RunView) -> str:
    """Explain that the answer lacks something; "" if it does not."""
    if not run.is_short:
        return ""
    what = "the ranks of " if any(node.state != "lost" for node in run.nodes) else ""
    nodes = format_count(run.member_count, "node")
    return f"an answer through the store is too short for {what}{nodes}: run the command on a node of the run"


def describe_gone(run_id: str, asked: str = "", node: str = "") -> str:
    """Describe a run, or a node of it, without an agent here. `asked`: for what before, as far as is known."""
    return f"{node or name_run(run_id)}{asked and f' was asked to {asked}, and'} no longer has an agent on this machine"


def describe_wait(leader: str, why: Reason | None) -> str:
    """Describe what a node that does not lead waits for. `leader`: the node's name, "" if none leads; `why`: what that
    one waits for, None if it has not said.
    """
    if not leader:
        return "waiting for a round: this node does not know which node leads"
    reason = describe(why) if why is not None else "the reason is in its log"
    return f"{leader} leads, but has not started a round yet: {reason}"
