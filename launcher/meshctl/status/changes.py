"""The changes between two readings of a job, as sentences: the lines of `meshctl status --watch` in a log."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.meshctl.status.render import format_headline, format_mesh
from launcher.meshctl.status.state import NodeState, Overview
from launcher.model import ranges
from launcher.model.text import format_count, format_list


def describe_changes(before: Overview | None, after: Overview) -> list[str]:
    """Return sentences, in the order of importance; empty if nothing relevant has changed."""
    if before is None or before.job_key != after.job_key:
        return [f"run {after.run_id}, job {after.job_key}: {format_headline(after)}"]
    return list(_describe_changes(before, after))


def _describe_changes(before: Overview, after: Overview) -> Iterator[str]:
    if after.round != before.round:
        world = (
            f"{format_count(after.world_size, 'rank')} on {format_count(len(after.active), 'node')}, "
            f"{format_mesh(after)}"
        )
        yield f"round {after.round} is sealed: {world}" + (f": {after.reason}" if after.reason else "")
    if after.stop_reason and (after.stop_reason, after.round) != (before.stop_reason, before.round):
        yield f"round {after.round} is stopped: {after.stop_reason}"
    if after.verdict is None:  # after it all leave
        yield from _describe_members(before, after)
    if after.leader != before.leader and after.verdict is None:
        yield f"{after.leader} leads" if after.leader else f"{before.leader} does not lead any more"
    yield from _describe_states(before, after)
    for name in sorted({*after.drained} - {*before.drained}):
        yield f"{name} is drained"
    for name in sorted({*before.drained} - {*after.drained}):
        yield f"{name} may come back"
    for request in after.requests:
        if request not in before.requests:
            yield f"asked for: {request}"
    for fault in after.faults:
        if fault not in before.faults:
            yield fault
    if after.verdict is not None and before.verdict is None:
        yield format_headline(after)


def _describe_members(before: Overview, after: Overview) -> Iterator[str]:
    old = {node.member_id: node for node in before.nodes if node.state != "lost"}
    new = {node.member_id: node for node in after.nodes if node.state != "lost"}
    come = [new[member_id].name for member_id in new.keys() - old.keys()]
    gone = [old[member_id].name for member_id in old.keys() - new.keys()]
    for names, verb in ((come, "joined"), (gone, "left or lost")):
        if names:
            yield f"{verb}: {format_list(ranges.merge_names(names))}"


def _describe_states(before: Overview, after: Overview) -> Iterator[str]:
    """Describe nodes whose state has changed to a relevant one."""
    old = {node.member_id: node.state for node in before.nodes}
    changed: dict[tuple[str, str], list[NodeState]] = {}
    for node in after.nodes:
        if node.state in ("failed", "leaving", "quarantined", "succeeded") and old.get(node.member_id) != node.state:
            changed.setdefault((node.state, node.why), []).append(node)
    for (state, why), nodes in sorted(changed.items()):
        names = format_list(ranges.merge_names(node.name for node in nodes))
        yield f"{state}: {names}" + (f" ({why})" if why else "")
