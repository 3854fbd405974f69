"""The leader's writes: each is one transaction, guarded by what it was decided on.

The guards name the leader key by its mod revision, the leader's own member key, the absence of a verdict, and all else
that the decision depends on. So a leader that has been replaced, or that decided on old data, writes nothing. When a
write is refused by its guards, or its outcome is unknown, everything is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rendezvous import records
from rendezvous.events import Txn
from rendezvous.state.state import Leadership, MemberState
from rendezvous.stores.contract import Compare, Delete, Get, Operation, Put, TxnResult

BYTES_PER_TXN = 1 << 20  # of values; etcd takes requests of 1.5 MiB


def count_fitting(operations: Sequence[Operation], limit: int) -> int:
    """Return how many of these operations one transaction holds, in their order: `limit` at most, and one at least."""
    size = 0
    for count, operation in enumerate(operations[:limit]):
        size += len(operation.value) if isinstance(operation, Put) else 0
        if size > BYTES_PER_TXN and count:
            return count
    return min(len(operations), limit)


def write(
    state: MemberState,
    leadership: Leadership,
    kind: str,
    guards: Sequence[Compare],
    writes: Sequence[Operation],
    now: float,
    on_done: Callable[[float], None] = lambda now: None,
) -> None:
    """Request one guarded transaction; `on_done` is called once it is known to be written."""
    job = leadership.job

    def on_reply(answer: TxnResult, now: float) -> None:
        if not answer.succeeded:
            state.cache.keys.load(answer.found[0], job.control, now)
            leadership.is_loaded = False
            return
        for operation in writes:
            _note(state, job, operation, answer.revision, now)
        on_done(now)

    def on_unknown() -> None:
        leadership.is_loaded = False

    own_guard = Compare(state.own_key, "create", "=", state.membership.revision)
    compares = (make_leader_guard(leadership), own_guard, Compare(job.verdict, "create", "=", 0), *guards)
    request = Txn(compares, tuple(writes), (Get(job.control, prefix=True),))
    state.requests.request("lead", kind, request, on_reply, now, on_unknown)


def make_leader_guard(leadership: Leadership) -> Compare:
    """Guard that this leadership continues."""
    return Compare(leadership.job.leader, "mod", "=", leadership.revision)


def guard_unchanged(state: MemberState, *names: str) -> tuple[Compare, ...]:
    """Guard that these keys are as this leader knows them."""
    return tuple(Compare(key, "mod", "=", state.cache.keys.get_revision(key)) for key in names)


def make_put(state: MemberState, key: str, record: records.Record, lease: int = 0) -> Put:
    """Make the write of this record, signed if the job has a secret."""
    return Put(key, state.cache.encode(record, key), lease)


def _note(state: MemberState, job: records.Keys, write: Operation, revision: int, now: float) -> None:
    """Apply an own write to the cache without waiting for the watch. Assignments are known from the plan."""
    if isinstance(write, Put) and not write.key.startswith(job.all_assignments):
        state.cache.note_own_write(write, revision, now)
    elif isinstance(write, Delete) and not write.prefix:
        state.cache.keys.note_absence(write.key, revision)
