"""Hands a request to a job's leader, by a key in the store: of `meshctl` anywhere, or of an agent for a person there.

The leader alone acts on it. It deletes the key in the transaction that carries the request out or writes the answer to
a question, or writes into it why it refuses. Without a leader a request waits for one, and so does who asks, up to a
limit; then it stays, or is withdrawn.
"""

from __future__ import annotations

import secrets
import time
from typing import NamedTuple

from launcher.model.errors import TemporaryError, UsageError, describe
from rendezvous.errors import RecordError
from rendezvous.records import Command, Keys, LeaderRecord, Verdict, decode, encode, name_run
from rendezvous.stores.contract import Compare, Delete, Get, Put, Store

POLL_INTERVAL_S = 0.1  # between two polls; one small read each


class JobAddress(NamedTuple):
    """A job in a store, and the secret that signs its records."""

    store: Store
    keys: Keys
    secret: bytes
    run_id: str


def hand_in(
    job: JobAddress, command: Command, limit_s: float, *, is_left: bool = False, lease: int = 0
) -> Command | None:
    """Hand a request to the leader and wait for it; return the answered request, None if it was simply done.

    `is_left`: one that no leader answers in time stays for the next; `lease`: with it the request goes, and its answer.
    Raises UsageError for a run that has ended, TemporaryError without an answer within the limit, StoreError.
    """
    deadline = time.monotonic() + limit_s
    key = job.keys.make_command_key(secrets.token_hex(8))
    _write(job, Put(key, encode(command, key, job.secret), lease))
    while (item := job.store.get(key).first) is not None:
        try:
            answered = decode(Command, item.value, item.key, job.secret)
        except RecordError as error:
            raise UsageError(f"{name_run(job.run_id)}: {error}") from None
        is_late = time.monotonic() >= deadline
        if answered.is_answered or (is_late and not is_left):
            job.store.txn((Compare(key, "mod", "=", item.mod_revision),), (Delete(key),))
        if answered.is_answered:
            return answered
        if is_late:
            hint = "wait: the request remains, and the next leader carries it out" if is_left else "try again"
            raise TemporaryError(_explain_timeout(job, limit_s), hint)
        time.sleep(POLL_INTERVAL_S)
    return _take_answer(job, job.keys.make_answer_key(key.rpartition("/")[2])) if command.kind == "ask" else None


def _take_answer(job: JobAddress, key: str) -> Command | None:
    """Return the answer to a question, which then is no longer needed."""
    item = job.store.get(key).first
    if item is None:
        return None
    job.store.delete(key)
    try:
        return decode(Command, item.value, key, job.secret)
    except RecordError as error:
        raise TemporaryError(f"{name_run(job.run_id)}: {error}") from None


def _write(job: JobAddress, request: Put) -> None:
    """Write the request, unless the job has ended or another has taken its place."""
    run, keys = name_run(job.run_id), job.keys
    current = job.store.get(f"{keys.root.rpartition('/')[0]}/current").first
    if current is not None and current.value == keys.name.encode():
        guards = (Compare(current.key, "mod", "=", current.mod_revision), Compare(keys.verdict, "create", "=", 0))
        answer = job.store.txn(guards, (request,), (Get(keys.verdict),))
        if answer.succeeded:
            return
        if (item := answer.found[0].first) is not None:
            try:
                reason = describe(decode(Verdict, item.value, item.key, job.secret).reason)
            except RecordError as error:
                reason = str(error)
            raise UsageError(f"{run} has already ended: {reason}")
    raise TemporaryError(f"{run} has just been replaced by another job", "try again")


def _explain_timeout(job: JobAddress, limit_s: float) -> str:
    """Return why nothing has happened."""
    run, item = name_run(job.run_id), job.store.get(job.keys.leader).first
    if item is None:
        return f"{run} has had no leader for {limit_s:g} s, so the request is still pending"
    try:
        name = decode(LeaderRecord, item.value, item.key, job.secret).node_name
    except RecordError as error:
        return f"{run}: {error}"
    return f"{name}, the leader of {run}, has not responded for {limit_s:g} s"
