"""Joining: find or open the job, check that it is the job of this agent, register as a member.

A run id names a job key by the key `current`, and everything of that job lies under it. When hundreds of agents start
at once, each sequential request adds to the time that they wait. So each step is one transaction that does what is most
likely right, guarded by all that it assumes, and also reads everything that is needed if an assumption is wrong. An
agent that opens a job becomes its first member and its leader by the same write. An agent that finds a job registers
before it has read the job, if the job's spec equals its own byte for byte and nothing else prevents it.

Whether an agent may join a job that it has read, and what becomes of one that is over, is in `admission`.
"""

from __future__ import annotations

import math

from rendezvous import records
from rendezvous.errors import EXIT_TEMPORARY, EXIT_USAGE
from rendezvous.events import SetIdentity, Txn
from rendezvous.member import lease
from rendezvous.reasons import Reason
from rendezvous.records import Keys
from rendezvous.state.intents import Finish
from rendezvous.state.state import MemberState
from rendezvous.stores.contract import Compare, Compares, Get, KeyValue, Operations, Put, TxnResult

JOB_KEY_MAX = 64


def restart(state: MemberState) -> None:
    """Read everything again: a node that rejoins is a new member."""
    membership = state.membership
    membership.current, membership.is_current_read, membership.is_inspected = None, False, False


def has_run_out(state: MemberState, now: float) -> bool:
    """Return whether this agent has tried to join for too long; if so, it finishes."""
    membership, settings = state.membership, state.settings
    membership.join_since = min(membership.join_since, now)
    limit_s = settings.rejoin_timeout_s if membership.joined_root else settings.start_timeout_s
    if now >= membership.join_since + limit_s:
        problem = membership.join_problem
        state.ask(
            Finish(EXIT_TEMPORARY, Reason.of("join-timeout", run=state.setup.run_id, within_s=limit_s, why=problem))
        )
        return True
    state.requests.wake_by(membership.join_since + limit_s)
    return False


def advance(state: MemberState, now: float) -> None:
    """Request the next thing that is needed to become a member, once there is a lease."""
    membership, key = state.membership, state.setup.current_key
    if state.requests.is_busy("join") or now >= state.lease.ends_at:
        return  # the renewal in progress shows whether the lease has ended
    if not membership.is_current_read:

        def on_reply(answer: TxnResult, now: float) -> None:
            _take_current(state, answer.found[0].first)

        state.requests.request("join", "find job", Txn((), (Get(key),)), on_reply, now)
    elif membership.current is None:
        _open_job(state, now)
    elif not membership.is_inspected:
        _register_unseen(state, now)
    else:
        from rendezvous.member import admission  # not before the first worker

        if admission.may_join(state, now, _open_job):
            _register_seen(state, now)


def _take_current(state: MemberState, current: KeyValue | None) -> bool:
    """Store the value of `current`; return whether this agent may continue with it: a job, or none yet."""
    restart(state)
    membership, setup = state.membership, state.setup
    membership.is_current_read = True
    membership.current = current
    if current is not None:
        name = current.value.decode(errors="replace")
        if not (name.isascii() and name.replace("-", "").isalnum() and len(name) <= JOB_KEY_MAX):
            state.ask(Finish(EXIT_USAGE, Reason.of("not-a-job-key", key=setup.current_key)))
            return False
        membership.job = records.make_job_keys(setup.prefix, setup.run_id, name)
    if membership.joined_root and (membership.job is None or membership.job.root != membership.joined_root):
        state.ask(state.make_removal(current))
        return False
    return True


# --- registering ---


def _open_job(state: MemberState, now: float) -> None:
    """Write a new job key, if there is none or the last job is over; join the job and lead it."""
    setup, token = state.setup, state.requests.make_token()
    name = f"{setup.attempt}-{token}" if setup.attempt else token
    job = records.make_job_keys(setup.prefix, setup.run_id, name)
    absent = (job.spec, job.leader, job.round, job.spares)
    writes = (
        Put(setup.current_key, name.encode()),
        Put(job.spec, state.cache.encode(setup.spec, job.spec)),
        state.make_leader_put(job),
    )
    register(state, job, "open job", tuple(Compare(key, "mod", "=", 0) for key in absent), writes, now)


# docs/internals/decisions/agreement.md#0020-joining-with-one-guarded-transaction
def _register_unseen(state: MemberState, now: float) -> None:
    """Join a job that was not read yet, if it is the expected one; else this request reads it."""
    job = state.job
    setup = state.setup
    if setup.attempt is not None and job.attempt != setup.attempt:
        _request_about(state, job, "read job", (), (), now)
        return
    guards = (
        Compare(job.spec, "value", "=", state.cache.encode(setup.spec, job.spec)),
        Compare(job.make_drain_key(setup.node.node_name), "create", "=", 0),
        Compare(job.make_drain_key(state.member_id), "create", "=", 0),
    )
    register(state, job, "register", guards, (), now)


def _register_seen(state: MemberState, now: float) -> None:
    """Join a job that was read and is the expected one, if it has not changed since."""
    job = state.job
    keys = state.cache.keys
    guards = (Compare(job.spec, "mod", "=", keys.get_revision(job.spec)),)
    is_missing = keys.get(job.spec) is None
    writes = (Put(job.spec, state.cache.encode(state.setup.spec, job.spec)),) if is_missing else ()
    register(state, job, "register", guards, writes, now)


def register(state: MemberState, job: Keys, kind: str, guards: Compares, writes: Operations, now: float) -> None:
    """Write the own member key, together with `writes`, if the job has not ended and `guards` hold."""
    assert state.lease.id is not None
    own_key, current = job.make_member_key(state.member_id), state.membership.current
    compares = (
        Compare(state.setup.current_key, "mod", "=", current.mod_revision if current else 0),
        Compare(job.verdict, "create", "=", 0),
        Compare(own_key, "create", "=", 0),
        *guards,
    )
    own = Put(own_key, state.cache.encode(state.make_member_record(), own_key), state.lease.id)
    _request_about(state, job, kind, compares, (own, *writes), now)


def _request_about(
    state: MemberState, job: Keys, kind: str, compares: tuple[Compare, ...], writes: Operations, now: float
) -> None:
    """Apply `writes` if all compares hold; read the job in any case. Its own key in it makes this agent a member."""
    cache_keys, own_key = state.cache.keys, job.make_member_key(state.member_id)
    keys_to_read = (job.spec, job.control, own_key)
    reads = (Get(state.setup.current_key), *(Get(key, prefix=key == job.control) for key in keys_to_read))

    def on_reply(answer: TxnResult, now: float) -> None:
        membership = state.membership
        current, *found = answer.found
        if not _take_current(state, current.first) or membership.current is None or state.job.root != job.root:
            return
        for result, key in zip(found, keys_to_read, strict=True):
            cache_keys.load(result, key, now)
        membership.is_inspected = True
        own = cache_keys.get(own_key)
        if own is not None:  # by this request, or by one whose answer was lost
            membership.joined_root, membership.join_since = job.root, math.inf
            membership.move("registered")
            membership.revision = own.create_revision
            lease.note_resync(state, state.requests.sent_at)
            state.cache.watch(own_key, answer.revision + 1)
            state.cache.watch(job.control, answer.revision + 1)
            state.requests.emit(SetIdentity(job.root, state.member_id))

    request = Txn(compares, (*writes, *reads), reads)
    state.requests.request("join", kind, request, on_reply, now, lambda: restart(state))
