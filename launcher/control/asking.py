"""A person's request to a running job: written for the leader, who alone acts on it, and followed until it has.

The leader deletes a request in the transaction that does what was asked, or puts a sentence into it that says why
not. Without a leader a request waits for one, and so does whoever asked, up to a limit; then it stays and is told.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from launcher.errors import TemporaryError, UsageError
from launcher.overview.reading import find, read
from launcher.overview.state import Overview, overview
from launcher.overview.words import headline
from launcher.preview.words import listed
from rendezvous import records
from rendezvous.errors import RecordError
from rendezvous.records import Command, LeaderRecord, Verdict, decode, encode
from rendezvous.stores.contract import Compare, Delete, Get, KeyValue, Put, Store

PAUSE_S = 0.1  # between two looks; one small read each


class Job(NamedTuple):
    """Where the run is, and with what its records are signed."""

    store: Store
    prefix: str
    run_id: str
    secret: bytes


class Waiting(NamedTuple):
    """The clock that a wait goes by: `pause` returns after so many seconds, `limit_s` is when the wait ends."""

    clock: Callable[[], float]
    pause: Callable[[float], object]
    limit_s: float


def ask(job: Job, command: Command, token: str, waiting: Waiting, *, may_be_absent: bool = False) -> str:
    """Have the leader do it; what the job does then, as a sentence.

    `token` names the request; `may_be_absent`: the node to drain need not be there. Raises UsageError for what cannot
    be, with the leader's reason if it is its word, and TemporaryError when there is no answer within the limit.
    """
    deadline = waiting.clock() + waiting.limit_s
    before = overview(read(job.store, job.prefix, job.run_id, job.secret), job.secret)
    if before.verdict is None and not may_be_absent:
        _require_node(command, before)
    current = find(job.store, job.prefix, job.run_id)
    place = records.job_keys(job.prefix, job.run_id, current.value.decode(errors="replace"))
    key = place.command(token)
    _put(job, command, current, place, key)
    while (item := job.store.get(key).first) is not None:
        answer = _answer(item, job.secret)
        if answer:
            # Whoever takes over finds the request, and says that there is a leader now.
            is_done = command.kind == "takeover" and not before.leader
            job.store.txn((Compare(key, "mod", "=", item.mod_revision),), (Delete(key),))
            if not is_done:
                raise UsageError(f"run {job.run_id}: {answer}")
            break
        if waiting.clock() >= deadline:
            raise TemporaryError(*_silence(job, command, place, waiting.limit_s))
        waiting.pause(PAUSE_S)
    while True:
        seen = overview(read(job.store, job.prefix, job.run_id, job.secret), job.secret)
        if _has_happened(command, seen) or waiting.clock() >= deadline:
            return _told(command, seen)
        waiting.pause(PAUSE_S)


def _put(job: Job, command: Command, current: KeyValue, place: records.Keys, key: str) -> None:
    """Write the request, unless the job has ended or another has taken its place."""
    guards = (
        Compare(current.key, "mod", "=", current.mod_revision),
        Compare(place.verdict, "create", "=", 0),
    )
    answer = job.store.txn(guards, (Put(key, encode(command, key, job.secret)),), (Get(place.verdict),))
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


def _answer(item: KeyValue, secret: bytes) -> str:
    try:
        return decode(Command, item.value, item.key, secret).answer
    except RecordError as error:
        return str(error)


def _silence(job: Job, command: Command, place: records.Keys, limit_s: float) -> tuple[str, str]:
    """Why nothing has happened, and what comes next."""
    item = job.store.get(place.leader).first
    stays = "the request stays, and the next leader does it"
    if item is None:
        return f"run {job.run_id} has had no leader for {limit_s:g} s, so nobody could {command.kind}", stays
    try:
        name = decode(LeaderRecord, item.value, item.key, job.secret).node_name
    except RecordError as error:
        return f"run {job.run_id}: {error}", stays
    return f"{name} leads run {job.run_id} and has not answered for {limit_s:g} s", stays


def _require_node(command: Command, seen: Overview) -> None:
    """Refuse the name of a node that is not there: most such names are misspelt."""
    if command.kind not in ("drain", "undrain"):
        return
    if command.kind == "undrain":
        there, amiss = sorted(seen.drained), f"{command.target} is not drained in run {seen.run_id}"
    else:
        there = sorted({name for node in seen.nodes for name in (node.name, node.member_id)})
        amiss = f"run {seen.run_id} has no node {command.target}"
    if command.target in there:
        return
    close = get_close_matches(command.target, there, n=4, cutoff=0.5)
    if close:
        raise UsageError(amiss, f"did you mean {listed(close)}?")
    names = sorted({node.name for node in seen.nodes}) if command.kind == "drain" else there
    raise UsageError(amiss, f"there: {listed(names, 4)}" if names else None)


def _has_happened(command: Command, seen: Overview) -> bool:
    nodes = [node for node in seen.nodes if command.target in (node.name, node.member_id)]
    return {
        "stop": seen.verdict is not None,
        "drain": not any(node.ranks or node.state == "leaving" for node in nodes),
        "undrain": command.target not in seen.drained,
        "takeover": bool(seen.leader),
    }.get(command.kind, True)


def _told(command: Command, seen: Overview) -> str:
    """What was done, and what the job does now."""
    done = {
        "stop": f"run {seen.run_id} is told to stop",
        "drain": f"{command.target} is drained, and cannot come back before meshctl undrain",
        "undrain": f"{command.target} may join again",
        "takeover": f"{seen.leader or 'nobody yet'} leads run {seen.run_id}",
    }.get(command.kind, command.kind)
    return f"{done}; {headline(seen)}"
