"""A user's request to a running job: written for the leader, which alone acts on it, and followed until it has.

The leader deletes a request in the transaction that carries it out, or writes a sentence into it with the reason why
not. Without a leader a request waits for one, and so does the command, up to a limit; then it stays and that is logged.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from launcher.meshctl.status.reader import find_run, read_job
from launcher.meshctl.status.render import format_headline
from launcher.meshctl.status.state import Overview, build_overview
from launcher.model.errors import TemporaryError, UsageError
from launcher.model.text import format_list
from rendezvous import records
from rendezvous.errors import RecordError
from rendezvous.records import Command, LeaderRecord, Verdict, decode, encode
from rendezvous.stores.contract import Compare, Delete, Get, KeyValue, Put, Store

POLL_INTERVAL_S = 0.1  # between two polls; one small read each


class JobHandle(NamedTuple):
    """The run's keys, and the secret that signs its records."""

    store: Store
    prefix: str
    run_id: str
    secret: bytes


class WaitPolicy(NamedTuple):
    """The clock of a wait: `pause` returns after its argument in seconds, `limit_s` is when the wait ends."""

    clock: Callable[[], float]
    sleep: Callable[[float], object]
    limit_s: float


def submit_request(
    job: JobHandle, command: Command, request_id: str, wait: WaitPolicy, *, may_be_absent: bool = False
) -> str:
    """Have the leader do it; return what the job does then, as a sentence.

    `request_id` names the request; `may_be_absent`: the node to drain need not be a member. Raises UsageError for an
    impossible request, with the leader's reason if it has one, and TemporaryError without an answer within the limit.
    """
    deadline = wait.clock() + wait.limit_s
    before = build_overview(read_job(job.store, job.prefix, job.run_id, job.secret), job.secret)
    if before.verdict is None and not may_be_absent:
        _require_node(command, before)
    current = find_run(job.store, job.prefix, job.run_id)
    place = records.make_job_keys(job.prefix, job.run_id, current.value.decode(errors="replace"))
    key = place.make_command_key(request_id)
    _write_request(job, command, current, place, key)
    while (item := job.store.get(key).first) is not None:
        answer = _decode_answer(item, job.secret)
        if answer:
            # The new leader finds the request, and reports that there is a leader now.
            is_done = command.kind == "takeover" and not before.leader
            job.store.txn((Compare(key, "mod", "=", item.mod_revision),), (Delete(key),))
            if not is_done:
                raise UsageError(f"run {job.run_id}: {answer}")
            break
        if wait.clock() >= deadline:
            raise TemporaryError(*_explain_timeout(job, command, place, wait.limit_s))
        wait.sleep(POLL_INTERVAL_S)
    while True:
        seen = build_overview(read_job(job.store, job.prefix, job.run_id, job.secret), job.secret)
        if _has_happened(command, seen) or wait.clock() >= deadline:
            return _describe_outcome(command, seen)
        wait.sleep(POLL_INTERVAL_S)


def _write_request(job: JobHandle, command: Command, current: KeyValue, keys: records.Keys, key: str) -> None:
    """Write the request, unless the job has ended or another has taken its place."""
    guards = (
        Compare(current.key, "mod", "=", current.mod_revision),
        Compare(keys.verdict, "create", "=", 0),
    )
    answer = job.store.txn(guards, (Put(key, encode(command, key, job.secret)),), (Get(keys.verdict),))
    if answer.succeeded:
        return
    item = answer.found[0].first
    if item is None:
        raise TemporaryError(f"run {job.run_id} has just been replaced by another job", "ask again")
    try:
        reason = decode(Verdict, item.value, item.key, job.secret).reason
    except RecordError as error:
        reason = str(error)
    raise UsageError(f"run {job.run_id} has already ended: {reason}")


def _decode_answer(item: KeyValue, secret: bytes) -> str:
    try:
        return decode(Command, item.value, item.key, secret).answer
    except RecordError as error:
        return str(error)


def _explain_timeout(job: JobHandle, command: Command, keys: records.Keys, limit_s: float) -> tuple[str, str]:
    """Return why nothing has happened, and what comes next."""
    item = job.store.get(keys.leader).first
    stays = "the request stays, and the next leader does it"
    if item is None:
        return f"run {job.run_id} has had no leader for {limit_s:g} s, so nobody could {command.kind}", stays
    try:
        name = decode(LeaderRecord, item.value, item.key, job.secret).node_name
    except RecordError as error:
        return f"run {job.run_id}: {error}", stays
    return f"{name} leads run {job.run_id} and has not answered for {limit_s:g} s", stays


def _require_node(command: Command, overview: Overview) -> None:
    """Refuse the name of a node that does not exist: most such names are misspelt."""
    if command.kind not in ("drain", "undrain"):
        return
    if command.kind == "undrain":
        there, amiss = sorted(overview.drained), f"{command.target} is not drained in run {overview.run_id}"
    else:
        there = sorted({name for node in overview.nodes for name in (node.name, node.member_id)})
        amiss = f"run {overview.run_id} has no node {command.target}"
    if command.target in there:
        return
    close = get_close_matches(command.target, there, n=4, cutoff=0.5)
    if close:
        raise UsageError(amiss, f"did you mean {format_list(close)}?")
    names = sorted({node.name for node in overview.nodes}) if command.kind == "drain" else there
    raise UsageError(amiss, f"there: {format_list(names, 4)}" if names else None)


def _has_happened(command: Command, overview: Overview) -> bool:
    nodes = [node for node in overview.nodes if command.target in (node.name, node.member_id)]
    return {
        "stop": overview.verdict is not None,
        "drain": not any(node.ranks or node.state == "leaving" for node in nodes),
        "undrain": command.target not in overview.drained,
        "takeover": bool(overview.leader),
    }.get(command.kind, True)


def _describe_outcome(command: Command, overview: Overview) -> str:
    """Describe what was done, and what the job does now."""
    done = {
        "stop": f"run {overview.run_id} is told to stop",
        "drain": f"{command.target} is drained, and cannot come back before meshctl undrain",
        "undrain": f"{command.target} may join again",
        "takeover": f"{overview.leader or 'nobody yet'} leads run {overview.run_id}",
    }.get(command.kind, command.kind)
    return f"{done}; {format_headline(overview)}"
