"""From nothing to a member: find or open the job, see that it is the same as here, register.

A run id names a job key by `current`, and everything of that job lies under it. When hundreds of agents begin at
once, what they ask one after the other is what they wait for. So each step is one transaction that does what is
most likely right, guarded by all that it takes for granted, and reads everything it would take to know better:
whoever opens a job is its first member and leads it with the same write, and whoever finds one registers if its spec
is byte for byte the own one and nothing stands against it, before having read either.

A job that has failed or was stopped is over; once nobody of it is left, the next one is opened in its place by a
compare on `current`, so that of many agents one does it and the others meet there. Where something outside counts
attempts (a job set, a batch system), the job key begins with that number: an agent of a later attempt opens a new
job, one of an earlier attempt is refused.
"""

from __future__ import annotations

import math

from rendezvous import records
from rendezvous.errors import EXIT_REFUSED, EXIT_TEMPORARY, RecordError
from rendezvous.events import Answer, Txn
from rendezvous.records import Command, Drain, Spec, Verdict
from rendezvous.state.intents import BecomeMember, Finish
from rendezvous.state.own_records import make_leader_put, make_member_record
from rendezvous.state.state import MemberState
from rendezvous.stores.contract import Compare, Get, KeyValue, Put, TxnResult

JOB_KEY_MAX = 64


def restart(state: MemberState) -> None:
    """Read everything anew: a node that comes back is a new member."""
    joining = state.membership
    joining.current, joining.is_current_read, joining.is_inspected = None, False, False


def note_problem(state: MemberState, sentence: str) -> None:
    """What stood in the way the last time, for the message at the limit."""
    state.membership.join_problem = sentence


def has_run_out(state: MemberState, now: float) -> bool:
    """Whether this agent has tried to join for too long; then it finishes."""
    joining, settings = state.membership, state.settings
    joining.join_since = min(joining.join_since, now)
    limit_s = settings.rejoin_timeout_s if joining.joined_root else settings.start_timeout_s
    if now >= joining.join_since + limit_s:
        reason = f"could not join run {state.setup.run_id} within {limit_s:g} s: {joining.join_problem}"
        state.ask(Finish(EXIT_TEMPORARY, reason))
        return True
    state.requests.wake_by(joining.join_since + limit_s)
    return False


def advance(state: MemberState, now: float) -> None:
    """Ask for the next thing that is missing to be a member, once there is a lease."""
    joining, key = state.membership, state.setup.current_key
    if state.requests.is_busy("join") or now >= state.lease.ends_at:
        return  # the renewal that is under way tells whether the lease has ended
    if not joining.is_current_read:

        def on_reply(answer: Answer, now: float) -> None:
            assert isinstance(answer, TxnResult)
            _take_current(state, answer.found[0].first)

        state.requests.request("join", "find the job", Txn((), (Get(key),)), on_reply, now)
    elif joining.current is None:
        _open_job(state, now)
    elif not joining.is_inspected:
        _register_unseen(state, state.job, now)
    elif _may_join(state, state.job, now):
        _register_seen(state, state.job, now)


def _take_current(state: MemberState, current: KeyValue | None) -> bool:
    """Whether this agent may go on with what `current` names: a job, or none yet."""
    restart(state)
    joining, setup = state.membership, state.setup
    joining.is_current_read = True
    joining.current = current
    if current is not None:
        name = current.value.decode(errors="replace")
        if not (name.isascii() and name.replace("-", "").isalnum() and len(name) <= JOB_KEY_MAX):
            sentence = f"the value of {setup.current_key} is no job key, so it was not written by meshrun"
            state.ask(Finish(EXIT_REFUSED, sentence))
            return False
        joining.job = records.make_job_keys(setup.prefix, setup.run_id, name)
    if joining.joined_root and (joining.job is None or joining.job.root != joining.joined_root):
        state.ask(Finish(EXIT_TEMPORARY, state.removal_reason))
        return False
    return True


# --- may this agent join? ---


def _may_join(state: MemberState, job: records.Keys, now: float) -> bool:
    """Whether nothing stands against it: the job has not ended, and is the one that this agent was started for."""
    setup, cache = state.setup, state.cache
    verdict = cache.read(Verdict, job.verdict)
    is_former = job.root == state.membership.joined_root
    theirs = _parse_attempt(job)
    if setup.attempt and theirs > setup.attempt:
        reason = f"this is attempt {setup.attempt}, run {setup.run_id} is at attempt {theirs}"
        state.ask(Finish(EXIT_REFUSED, reason))
        return False
    is_earlier = theirs < setup.attempt and not is_former
    has_failed = verdict is not None and verdict.kind != "success"
    if is_earlier or (has_failed and state.settings.opens_next_job and not is_former):
        reason = f"attempt {theirs}" if is_earlier or verdict is None else verdict.reason
        _follow_finished_job(state, job, reason, now)
        return False
    try:
        item = cache.keys.get(job.spec)
        spec = records.decode(Spec, item.value, item.key, cache.secret) if item is not None else None
    except RecordError as error:  # a job of another version, or with a secret that this agent does not know
        state.ask(Finish(EXIT_REFUSED, str(error)))
        return False
    difference = describe_difference(setup.run_id, spec, setup.spec) if spec is not None else ""
    if difference:
        state.ask(Finish(EXIT_REFUSED, difference))
    elif verdict is not None:
        late = "" if is_former else f"run {setup.run_id} has already ended: "
        if late and verdict.kind == "success":  # of which an agent says nothing else
            state.requests.log(late + verdict.reason)
        state.ask(Finish(verdict.exit_code, late + verdict.reason, verdict))
    elif is_drained(state, job):
        reason = f"node {setup.node.node_name} is drained from run {setup.run_id}"
        state.ask(Finish(EXIT_TEMPORARY, reason))
    else:
        return True
    return False


def is_drained(state: MemberState, job: records.Keys) -> bool:
    """Whether this node shall stay away. Not if somebody asks to take that back: a leader has to, perhaps this."""
    cache, name = state.cache, state.setup.node.node_name
    # By its member id, if another node has the same name.
    if all(cache.read(Drain, job.make_drain_key(one)) is None for one in (name, state.member_id)):
        return False
    requests = (cache.read(Command, item.key) for item in cache.keys.list_under(job.commands))
    return not any(r is not None and (r.kind, r.target, r.answer) == ("undrain", name, "") for r in requests)


def _follow_finished_job(state: MemberState, job: records.Keys, reason: str, now: float) -> None:
    """Open the next job as soon as nobody of the last is left."""

    def on_reply(answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        if not answer.found[0].items:
            _open_job(state, now)
            return
        state.membership.is_inspected = False
        state.requests.pause("join", now)
        note_problem(state, f"agents of the finished job are still there ({reason})")
        state.requests.log_status(f"waiting for the agents of the finished job to go: {reason}")

    request = Txn((), (Get(job.members, prefix=True),))
    state.requests.request("join", "see whether anybody of the finished job is left", request, on_reply, now)


# --- registering ---


def _open_job(state: MemberState, now: float) -> None:
    """Name a fresh job key, where there is none or where the job before it has ended for good; join and lead it."""
    setup, token = state.setup, state.requests.make_token()
    name = f"{setup.attempt}-{token}" if setup.attempt else token
    job = records.make_job_keys(setup.prefix, setup.run_id, name)
    absent = (job.spec, job.leader, job.round, job.spares)
    writes = (
        Put(setup.current_key, name.encode()),
        Put(job.spec, state.cache.encode(setup.spec, job.spec)),
        make_leader_put(state, job),
    )
    register(state, job, "open the job", tuple(Compare(key, "mod", "=", 0) for key in absent), writes, now)


# docs/internals/decisions/agreement.md#0020-joining-with-one-guarded-transaction
def _register_unseen(state: MemberState, job: records.Keys, now: float) -> None:
    """Join a job that was not read yet, if it is what is hoped for; else it is read by this."""
    setup = state.setup
    if setup.attempt and _parse_attempt(job) != setup.attempt:
        _request_about(state, job, "read the job", (), (), now)
        return
    guards = (
        Compare(job.spec, "value", "=", state.cache.encode(setup.spec, job.spec)),
        Compare(job.make_drain_key(setup.node.node_name), "create", "=", 0),
        Compare(job.make_drain_key(state.member_id), "create", "=", 0),
    )
    register(state, job, "register", guards, (), now)


def _register_seen(state: MemberState, job: records.Keys, now: float) -> None:
    """Join a job that was read and found to be the right one, if it has not changed since."""
    keys = state.cache.keys
    guards = (Compare(job.spec, "mod", "=", keys.get_revision(job.spec)),)
    is_missing = keys.get(job.spec) is None
    writes = (Put(job.spec, state.cache.encode(state.setup.spec, job.spec)),) if is_missing else ()
    register(state, job, "register", guards, writes, now)


def register(
    state: MemberState,
    job: records.Keys,
    why: str,
    guards: tuple[Compare, ...],
    writes: tuple[Put, ...],
    now: float,
) -> None:
    """Put the own key into a job that has not ended, if these guards hold too."""
    assert state.lease.id is not None
    own_key, current = job.make_member_key(state.member_id), state.membership.current
    compares = (
        Compare(state.setup.current_key, "mod", "=", current.mod_revision if current else 0),
        Compare(job.verdict, "create", "=", 0),
        Compare(own_key, "create", "=", 0),
        *guards,
    )
    own = Put(own_key, state.cache.encode(make_member_record(state), own_key), state.lease.id)
    _request_about(state, job, why, compares, (own, *writes), now)


def _request_about(
    state: MemberState,
    job: records.Keys,
    why: str,
    compares: tuple[Compare, ...],
    writes: tuple[Put, ...],
    now: float,
) -> None:
    """Write if all these hold, and read the job in any case: the own key in it makes a member of this agent."""
    keys, own_key = state.cache.keys, job.make_member_key(state.member_id)
    read = (job.spec, job.control, own_key)
    reads = (Get(state.setup.current_key), *(Get(key, prefix=key == job.control) for key in read))

    def on_reply(answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        joining = state.membership
        current, *found = answer.found
        if not _take_current(state, current.first) or joining.current is None or joining.job != job:
            return
        for each, key in zip(found, read, strict=True):
            keys.load(each, key, now)
        joining.is_inspected = True
        own = keys.get(own_key)
        if own is not None:  # by this request, or by one whose answer was lost
            joining.joined_root, joining.join_since = job.root, math.inf
            state.ask(BecomeMember(own, answer.revision))

    request = Txn(compares, (*writes, *reads), reads)
    state.requests.request("join", why, request, on_reply, now, lambda now: restart(state))


def _parse_attempt(job: records.Keys) -> int:
    """The number that the job key begins with, 0 if nobody counts."""
    number, dash, _ = job.root.rpartition("/")[2].partition("-")
    return int(number) if dash and number.isdigit() else 0


def describe_difference(run_id: str, theirs: Spec, ours: Spec) -> str:
    """In what this agent's job is another one than the run's; empty if they are the same."""
    if theirs.has_secret != ours.has_secret:
        return f"run {run_id} was started {'with' if theirs.has_secret else 'without'} a job secret, this agent is not"
    for name in ("mesh", "limits", "digest"):
        first, own = getattr(theirs, name), getattr(ours, name)
        if first != own:
            what = "command" if name == "digest" else name
            return f"run {run_id} was started with {what} {first!r}, this agent has {own!r}"
    return ""
