"""The round on this node: from the seal to this node's ranks, to a status that says how they fare, to the stop.

At most one round lives here at a time, over all memberships of this agent: nothing of the next starts before
nothing of the last is left. What happened is kept as a status and written whenever the store has an older one.
"""

from __future__ import annotations

from rendezvous import records
from rendezvous.events import (
    Answer,
    CheckpointSaved,
    RoundFailed,
    RoundStopped,
    RoundSucceeded,
    StartRound,
    StopRound,
    Txn,
)
from rendezvous.records import Assignment, Seal, Status, Stop
from rendezvous.state.intents import ConfirmFenced
from rendezvous.state.state import MemberState, RoundState
from rendezvous.stores.contract import Compare, Get, Put, TxnResult
from rendezvous.values import replace

# --- what the processes do ---


def handle(state: MemberState, event: RoundSucceeded | RoundFailed | RoundStopped | CheckpointSaved) -> None:
    """Note what became of the round; what is told of another one is late, and ignored."""
    here = state.round
    if event.round != here.alive_round:
        return
    match event:
        case RoundSucceeded():
            if not here.status.outcome and here.move("succeeded"):
                here.status = replace(here.status, outcome="succeeded")
        case RoundFailed(_, exit_code, is_peer_loss, failure, rank, is_port_taken, is_final):
            if not here.status.outcome and here.move("failed for good" if is_final else "failed"):
                here.status = replace(
                    here.status,
                    outcome="failed",
                    exit_code=exit_code,
                    is_peer_loss=is_peer_loss,
                    failure=failure,
                    rank=rank,
                    is_port_taken=is_port_taken,
                    is_final=is_final,
                )
        case CheckpointSaved():
            here.status = replace(here.status, saved_count=here.status.saved_count + 1)
        case RoundStopped(_, worker_port):
            here.move("workers gone")
            here.alive_round = None
            here.worker_port = worker_port
            here.status = replace(here.status, is_stopped=True, worker_port=worker_port)


# --- what the job wants ---


def advance(state: MemberState, job: records.Keys, now: float) -> None:
    """Start what is sealed, stop what is stopped."""
    here, cache = state.round, state.cache
    seal, stop = cache.read(Seal, job.round), cache.read(Stop, job.stop)
    if here.alive_round is not None and _has_lost_seal(here, seal):
        here.loss_reason = f"round {here.alive_round} is not in the store any more: somebody has deleted its keys"
    if here.loss_reason:
        state.ask(ConfirmFenced(here.loss_reason))
        return
    if seal is None:
        return
    is_stopped = stop is not None and stop.round >= seal.round
    if here.alive_round is not None:
        if seal.round > here.alive_round:
            state.ask(ConfirmFenced())  # the others went on without this node
        elif is_stopped and stop is not None:
            stop_workers(state, stop.mode, stop.reason, now)
    elif is_stopped:
        if here.status.plan_token != seal.plan_token:
            begin_status(here, seal, is_stopped=True)
    elif seal.plan_token != here.answered_token and state.leaving.request is None:
        key = job.make_assignment_key(seal.round, seal.plan_token, state.member_id)

        def on_reply(answer: Answer, now: float) -> None:
            take_up(state, job, seal, answer, now)

        why = f"read the assignment of round {seal.round}"
        state.requests.request("assignment", why, Txn((), (Get(key),)), on_reply, now)


def _has_lost_seal(here: RoundState, seal: Seal | None) -> bool:
    """Whether the round that lives here was sealed in vain. Seals are only replaced, so others have done that."""
    if seal is None or seal.round < (here.alive_round or 0):
        return True
    return seal.round == here.alive_round and seal.plan_token != here.status.plan_token


def take_up(state: MemberState, job: records.Keys, sealed: Seal, answer: Answer, now: float) -> None:
    """Act on the record under the sealed token; no record means no ranks. Start nothing beyond the watchdog."""
    assert isinstance(answer, TxnResult)
    here, cache, requests = state.round, state.cache, state.requests
    seal, stop = cache.read(Seal, job.round), cache.read(Stop, job.stop)
    is_stopped = stop is not None and stop.round >= sealed.round
    if seal is None or seal.plan_token != sealed.plan_token or is_stopped or here.alive_round is not None:
        return
    if now >= state.lease.membership_until - state.settings.kill_margin_s:
        requests.pause("assignment", now)  # read it again when the lease has been renewed, or all has been read
        return
    here.answered_token = seal.plan_token
    found = answer.found[0].first
    if found is None:
        requests.log_status(f"round {seal.round} runs without this node, which stands by as a spare")
        return
    here.move("ranks assigned")
    here.alive_round, here.ranked_token = seal.round, seal.plan_token
    begin_status(here, seal, is_stopped=False)
    # The others wait for this node's ranks whatever has become of the record, so the agent is to fail without one.
    assignment = cache.decode(Assignment, found)
    content = assignment.content if assignment is not None else ""
    requests.emit(StartRound(seal.round, seal.restart_count, seal.world_size, seal.coordinator, content))


def begin_status(here: RoundState, seal: Seal, is_stopped: bool) -> None:
    here.failed_revision = 0
    here.status = Status(
        round=seal.round, plan_token=seal.plan_token, is_stopped=is_stopped, worker_port=here.worker_port
    )


def stop_workers(state: MemberState, mode: str, reason: str, now: float) -> None:
    """Tell the agent once; only "fence" overrules a stop that is under way."""
    here = state.round
    if here.alive_round is not None and here.move("fence" if mode == "fence" else "stop"):
        here.gone_by = now + state.settings.compute_gone_within_s(mode)
        state.requests.emit(StopRound(here.alive_round, mode, reason))


# --- what the others are told ---


def announce_departure(state: MemberState, reason: str, exit_code: int) -> None:
    """This node is about to go."""
    state.round.status = replace(state.round.status, leaving=reason, leaving_exit_code=exit_code)


def write_status(state: MemberState, job: records.Keys, now: float) -> None:
    """Bring the store up to date with what this member has to say of the round."""
    here, cache, status = state.round, state.cache, state.round.status
    if status == here.status_written or _is_empty(status):
        return
    key, own_key = job.make_status_key(state.member_id), state.own_key
    _recall_failure(state, key)  # the answer to the write that told of it may have been lost
    guards = (
        Compare(own_key, "create", "=", state.membership.revision),
        Compare(key, "mod", "=", cache.keys.get_revision(key)),
    )
    put = Put(key, cache.encode(replace(status, failed_revision=here.failed_revision), key))
    request = Txn(guards, (put,), (Get(key), Get(own_key)))

    def on_reply(answer: Answer, now: float) -> None:
        assert isinstance(answer, TxnResult)
        if answer.succeeded:
            cache.note_own_write(put, answer.revision, now)
        else:  # perhaps it had been written and the answer was lost
            own_status, own_member = answer.found
            cache.keys.load(own_status, key, now)
            cache.keys.load(own_member, own_key, now)
        stored = cache.read(Status, key)
        if stored is not None:
            here.status_written = replace(stored, failed_revision=0)
            _recall_failure(state, key)

    state.requests.request("status", f"report on round {status.round}", request, on_reply, now)


def _recall_failure(state: MemberState, key: str) -> None:
    """Note when this round's failure was first told, if what is in the store tells of it."""
    stored = state.cache.read(Status, key)
    if stored is not None and stored.outcome == "failed" and stored.plan_token == state.round.status.plan_token:
        state.round.failed_revision = stored.failed_revision or state.cache.keys.get_revision(key)


# docs/internals/decisions/agreement.md#0037-no-status-for-a-running-round
def _is_empty(status: Status) -> bool:
    """Whether it is what all take for granted: the sealed round runs. A write of every member would say so."""
    return status == Status(round=status.round, plan_token=status.plan_token, worker_port=status.worker_port)
