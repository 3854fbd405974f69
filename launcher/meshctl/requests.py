"""Requests to a running job (stop, drain, undrain, takeover), and the removal of keys that jobs have left.

A request is for the leader, which alone acts on it, and is followed until it has. An agent of this machine hands it
in, or this process does, through the store (launcher/views/questions/stored_request.py).

A job's keys stay when it is over: only its verdict, and `current` with it, expire by themselves. What can go follows
from three facts about each job key under a run id: whether `current` names it, whether a verdict says that it has
ended, and whether a member lives. A job without a verdict and without members may have ended long ago, or be cut off
from the store as a whole and about to come back; that cannot be told from here, so it goes only when a person insists.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from launcher.meshctl.job_store import JobStore
from launcher.meshctl.live.source import LocalSource, StoreControl
from launcher.model import odd_text
from launcher.model.errors import UsageError, describe
from launcher.model.text import format_count, format_list
from launcher.views.questions.local_socket import RunGoneError
from launcher.views.questions.stored_request import POLL_INTERVAL_S
from launcher.views.run_view import ENDED, RunView
from launcher.views.sentences import describe_gone, format_headline
from rendezvous import records
from rendezvous.records import Command, Keys, name_run
from rendezvous.stores.contract import Compare, Delete, KeyValue, Operation, Store


def submit_request(
    control: LocalSource | StoreControl, command: Command, limit_s: float, *, may_be_absent: bool = False
) -> str:
    """Have the leader do it; return what the job does then, as a sentence.

    `may_be_absent`: the node to drain need not be a member. Raises UsageError for an impossible request, with the
    leader's reason if it has one, and TemporaryError without an answer within the limit.
    """
    deadline = time.monotonic() + limit_s
    before = control.read_run()
    if before.verdict is None and not may_be_absent:
        _require_node(command, before)
    own = {name for node in before.nodes if node.name == control.node for name in (node.name, node.member_id)}
    gone: RunGoneError | None = None
    try:
        answered = control.hand_in(command, limit_s)
        if answered is not None and answered.refused is not None and (before.leader or command.kind != "takeover"):
            # A new leader refuses to be taken over.
            raise UsageError(f"{name_run(control.run_id)}: {describe(answered.refused)}")
    except RunGoneError as error:  # its agent may have ended because of it
        gone = error
    try:
        while not (is_done := _is_done(command, before, seen := control.read_run())) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
    except RunGoneError as error:
        if command.kind == "stop" or (command.kind == "drain" and command.target in own):
            return describe_gone(control.run_id, "leave" if command.target else "stop", command.target)
        raise gone or error from None
    if gone is not None and not is_done:
        raise gone
    return _describe_outcome(command, seen)


def _require_node(command: Command, run: RunView) -> None:
    """Refuse the name of a node that does not exist: most such names are misspelt."""
    if command.kind == "undrain":
        there = names = sorted(run.drained)
        amiss = f"{command.target} is not drained in {name_run(run.run_id)}"
    elif command.kind == "drain":
        names = sorted({node.name for node in run.nodes})
        there = sorted({*names, *(node.member_id for node in run.nodes)})
        amiss = f"{name_run(run.run_id)} has no node {command.target}"
    else:
        return
    if command.target not in there:
        close = get_close_matches(command.target, there, n=4, cutoff=0.5)
        hint = f"did you mean {format_list(close)}?" if close else f"use one of {format_list(names, 4)}"
        raise UsageError(amiss, odd_text.explain(command.target) or (hint if close or names else None))


def _is_done(command: Command, before: RunView, run: RunView) -> bool:
    if run.phase == ENDED and run.verdict is None:  # its agents of this machine have ended, and left no verdict
        raise RunGoneError(describe_gone(run.run_id))
    # One that has left is listed no more, though its round may not be over.
    listed = [*run.nodes, *(before.nodes if run.round == before.round and run.verdict is None else ())]
    nodes = [node for node in listed if command.target in (node.name, node.member_id)]
    return {
        "stop": run.verdict is not None,
        "drain": not any(node.ranks or node.state == "leaving" for node in nodes),
        "undrain": command.target not in run.drained,
        "takeover": bool(run.leader),
    }[command.kind]


def _describe_outcome(command: Command, run: RunView) -> str:
    """Describe what was done, and what the job does now."""
    if command.kind == "stop" and run.verdict is not None:
        return f"{name_run(run.run_id)} {format_headline(run)}"
    done = {
        "stop": f"{name_run(run.run_id)} is stopping",
        "drain": f"{command.target} is drained, and cannot rejoin before meshctl undrain",
        "undrain": f"{command.target} may join again",
        "takeover": f"{run.leader or 'no node yet'} leads {name_run(run.run_id)}",
    }[command.kind]
    return f"{done}; {format_headline(run)}"


# --- leftovers ---


class Leftover(NamedTuple):
    """One job under a run id."""

    run_id: str
    job: Keys
    key_count: int
    keep_reason: str
    """Why it stays, "" if it can go."""
    guards: tuple[Compare, ...]
    """What must still hold when it goes."""
    deletes: tuple[Operation, ...]


def clean(jobs: JobStore, run_id: str | None, *, dry_run: bool, insist: bool) -> str:
    """Remove the leftovers of a run, or of all; return a line for each. Raises UsageError for an unknown run."""
    found = find_leftovers(jobs.store, jobs.prefix, run_id, insist=insist)
    if run_id is not None and not found:
        jobs.find_run(run_id)
    lines = []
    for leftover in found:
        what, keep_reason = f"{name_run(leftover.run_id)}, job {leftover.job.name}", leftover.keep_reason
        if not keep_reason and not dry_run and not remove(jobs.store, leftover):
            keep_reason = "it has changed in the meantime"
        count = format_count(leftover.key_count, "key")
        done = f"{'would remove' if dry_run else 'removed'}: {what}, {count}"
        lines.append(f"kept: {what}: {keep_reason}" if keep_reason else done)
    return "\n".join(lines) or f"there are no keys under /{jobs.prefix}/"


def remove(store: Store, leftover: Leftover) -> bool:
    """Delete it in one transaction; False if it has changed since it was read, and is left alone."""
    return store.txn(leftover.guards, leftover.deletes).succeeded


def find_leftovers(store: Store, prefix: str, run_id: str | None, *, insist: bool = False) -> list[Leftover]:
    """Return every job of a run, or of all runs, and whether it is removed. `insist`: see above."""
    root = f"/{prefix}/"
    items = store.get(root if run_id is None else f"{root}{run_id}/", prefix=True).items
    runs = _group_by_name(items, root)
    return [leftover for name in sorted(runs) for leftover in _find_in_run(prefix, name, runs[name], insist)]


def _find_in_run(prefix: str, run_id: str, items: list[KeyValue], insist: bool) -> Iterator[Leftover]:
    key = records.make_current_key(prefix, run_id)
    current = next((item for item in items if item.key == key), None)
    by_job = _group_by_name(items, f"/{prefix}/{run_id}/")
    now = current.value.decode(errors="replace") if current else ""
    if now:
        by_job.setdefault(now, [])
    for job_key in sorted(by_job, key=lambda job_key: (job_key == now, job_key)):
        job = records.make_job_keys(prefix, run_id, job_key)
        guards: tuple[Compare, ...] = ()
        deletes: tuple[Operation, ...] = (Delete(f"{job.root}/", prefix=True),)
        verdict = next((item for item in by_job[job_key] if item.key == job.verdict), None)
        member_count = sum(1 for item in by_job[job_key] if item.key.startswith(job.members))
        keep_reason = ""
        if member_count:
            keep_reason = f"it has {format_count(member_count, 'live member')}"
        elif job_key == now and verdict is None and not insist:
            keep_reason = "it has no verdict and no members: it may have ended long ago, or be cut off from the store"
        if current is not None and job_key == now:
            # A member registers only if `current` is unchanged and there is no verdict: these guard all.
            guards = (
                Compare(key, "mod", "=", current.mod_revision),
                Compare(job.verdict, "mod", "=", verdict.mod_revision if verdict else 0),
                Compare(job.leader, "create", "=", 0),
            )
            deletes = (*deletes, Delete(key))
        yield Leftover(run_id, job, len(by_job[job_key]), keep_reason, guards, deletes)


def _group_by_name(items: Sequence[KeyValue], root: str) -> dict[str, list[KeyValue]]:
    """Return the items by the first part of their keys below `root`; keys of one part are left out."""
    found: dict[str, list[KeyValue]] = {}
    for item in items:
        name, slash, _ = item.key.removeprefix(root).partition("/")
        if slash:
            found.setdefault(name, []).append(item)
    return found
