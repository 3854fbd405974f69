"""The round on this node: from the seal to the node's ranks, to a status that reports their state, to the stop.

At most one round lives on a node, over all memberships of its agent: nothing of the next one starts before all
processes of the last are gone. What happens is kept as a status, which is written whenever the store has an older one.
"""

from __future__ import annotations

from msgspec.structs import asdict, replace

from rendezvous import events
from rendezvous.events import CheckpointSaved, RoundFailed, RoundStopped, RoundSucceeded, StartRound, StopRound, Txn
from rendezvous.reasons import Reason
from rendezvous.records import Assignment, Cause, Seal, Status, Stop
from rendezvous.state.intents import LeaveStore, SuspectRemoval
from rendezvous.state.state import MemberState, RoundState, StatusReport
from rendezvous.stores.contract import Compare, Get, Put, TxnResult

# --- events of the workers ---


Told = RoundSucceeded | RoundFailed | RoundStopped | CheckpointSaved | events.RoundExamined


def handle(state: MemberState, event: Told) -> None:
    """Note the state of the workers; an event of another round is late, and ignored."""
    round_state = state.round
    if event.round != round_state.alive_round:
        return
    match event:
        case RoundSucceeded():
            if not round_state.status.outcome and round_state.move("succeeded"):
                round_state.status = replace(round_state.status, outcome="succeeded")
        case RoundFailed():
            is_told = event.is_final or event.is_node_fault
            if not round_state.status.outcome and round_state.move("failed for good" if is_told else "failed"):
                # The status of a new membership knows no round yet, though one of the last may be alive.
                facts = {**asdict(event), "round": round_state.status.round}
                round_state.status = replace(round_state.status, outcome="failed", **facts)
        case CheckpointSaved():
            round_state.status = replace(round_state.status, saved_count=round_state.status.saved_count + 1)
        case events.RoundExamined(_, finding):
            round_state.status = replace(round_state.status, finding=finding)
        case RoundStopped(_, worker_port, step):
            round_state.move("workers gone")
            round_state.alive_round = None
            round_state.worker_port = worker_port
            round_state.status = replace(round_state.status, is_stopped=True, worker_port=worker_port, step=step)


# --- start and stop ---


def advance(state: MemberState, now: float) -> None:
    """Start a sealed round, stop a stopped one."""
    round_state, cache = state.round, state.cache
    if not round_state.is_status_written:
        _note_stored(state)  # the answer to its write may have been lost, or it was written with the leader's stop
    seal, stop = cache.read(Seal, state.job.round), cache.read(Stop, state.job.stop)
    is_stopped = seal is not None and stop is not None and stop.round >= seal.round
    is_stop_readable = cache.is_readable(Stop, state.job.stop)
    if seal is not None and is_stop_readable and (seal.round, is_stopped) < round_state.seen:
        # Members only replace a seal, or a stop, by a later one.
        had, was_stopped = round_state.seen
        regress = Reason.of(
            "round-went-back", round=seal.round, is_stopped=is_stopped, had_round=had, was_stopped=was_stopped
        )
        state.ask(LeaveStore(regress))
        return
    if round_state.seen[0] and cache.is_readable(Seal, state.job.round) and _has_lost_seal(round_state, seal):
        round_state.loss_reason = Reason.of("round-lost", round=round_state.seen[0])
    if round_state.loss_reason:
        state.ask(SuspectRemoval(round_state.loss_reason))
        return
    if seal is None:
        return
    round_state.seen = (seal.round, is_stopped)
    if round_state.alive_round is not None:
        if seal.round > round_state.alive_round:
            state.ask(SuspectRemoval())  # the others went on without this node
        elif is_stopped and stop is not None:
            stop_workers(state, stop.mode, stop.reason, stop.cause, now, stop.nodes)
    elif is_stopped:
        if round_state.status.plan_token != seal.plan_token:
            begin_status(round_state, seal, is_stopped=True)
    elif seal.plan_token != round_state.answered_token and state.leaving.request is None:
        key = state.job.make_assignment_key(seal.round, seal.plan_token, state.member_id)

        def on_reply(answer: TxnResult, now: float) -> None:
            take_up(state, seal, answer, now)

        state.requests.request("assignment", "read assignment", Txn((), (Get(key),)), on_reply, now)


def _has_lost_seal(round_state: RoundState, seal: Seal | None) -> bool:
    """Return whether the seal is gone, or another than the running round's: its keys were deleted, or written anew."""
    if seal is None:
        return True
    return seal.round == round_state.alive_round and seal.plan_token != round_state.status.plan_token


def take_up(state: MemberState, sealed: Seal, answer: TxnResult, now: float) -> None:
    """Start the round if there is an assignment under the sealed token, unless the watchdog is about to end."""
    round_state, cache, requests = state.round, state.cache, state.requests
    seal, stop = cache.read(Seal, state.job.round), cache.read(Stop, state.job.stop)
    is_stopped = stop is not None and stop.round >= sealed.round
    if seal is None or seal.plan_token != sealed.plan_token or is_stopped or round_state.alive_round is not None:
        return
    if now >= state.lease.membership_until - state.settings.kill_margin_s:
        requests.pause("assignment", now)  # read it again when the lease has been renewed, or all keys were read
        return
    round_state.answered_token = seal.plan_token
    found = answer.found[0].first
    if found is None:
        requests.log_status(Reason.of("spare", round=seal.round), setting="spare")
        return
    round_state.move("ranks assigned")
    round_state.alive_round, round_state.ranked_token = seal.round, seal.plan_token
    begin_status(round_state, seal, is_stopped=False)
    # The others wait for this node's ranks even if the record is unreadable, so the agent must fail without one.
    assignment = cache.decode(Assignment, found)
    content = assignment.content if assignment is not None else ""
    requests.emit(StartRound(seal.round, seal.restart_count, seal.world_size, seal.coordinator, content))


def begin_status(round_state: RoundState, seal: Seal, is_stopped: bool) -> None:
    """Begin the status of the sealed round."""
    round_state.failed_revision = 0
    round_state.status = Status(
        round=seal.round, plan_token=seal.plan_token, is_stopped=is_stopped, worker_port=round_state.worker_port
    )


def stop_workers(
    state: MemberState, mode: str, reason: Reason, cause: Cause, now: float, nodes: tuple[str, ...] = ()
) -> None:
    """Send the agent one stop; only "fence" overrides a stop in progress."""
    round_state = state.round
    if round_state.alive_round is not None and round_state.move("fence" if mode == "fence" else "stop"):
        round_state.gone_by = now + state.settings.compute_gone_within_s(mode)
        state.requests.emit(StopRound(round_state.alive_round, mode, reason, cause, nodes))


# --- reports to the others ---


def announce_departure(state: MemberState, reason: Reason, exit_code: int) -> None:
    """Put into the status that this node is about to leave."""
    state.round.status = replace(state.round.status, leaving=reason, leaving_exit_code=exit_code)


def make_report(state: MemberState) -> StatusReport | None:
    """Return the status of this member with its write; None if the store has it, or a request in progress writes it."""
    round_state, cache, status = state.round, state.cache, state.round.status
    written = round_state.status_written
    is_withdrawal = written is not None and written.finding and written.plan_token == status.plan_token
    if status == written or (_is_empty(status) and not is_withdrawal) or _is_on_its_way(state):
        return None
    key = state.job.make_status_key(state.member_id)
    put = Put(key, cache.encode(replace(status, failed_revision=round_state.failed_revision), key))
    return StatusReport(status, put, Compare(key, "mod", "=", cache.keys.get_revision(key)))


def _is_on_its_way(state: MemberState) -> bool:
    leadership, requests = state.leadership, state.requests
    is_carried = leadership is not None and leadership.carried_status == state.round.status
    return requests.is_busy("status") or (is_carried and requests.is_busy("lead"))


def write_status(state: MemberState, report: StatusReport | None, now: float) -> None:
    """Write the status of this member, if there is one that the store does not have."""
    if report is None:
        return
    cache, key, own_key = state.cache, report.put.key, state.own_key
    guards = (Compare(own_key, "create", "=", state.membership.revision), report.guard)

    def on_reply(answer: TxnResult, now: float) -> None:
        if answer.succeeded:
            cache.note_own_write(report.put, answer.revision, now)
        else:  # perhaps it had been written and the answer was lost
            own_status, own_member = answer.found
            cache.keys.load(own_status, key, now)
            cache.keys.load(own_member, own_key, now)
        _note_stored(state)

    request = Txn(guards, (report.put,), (Get(key), Get(own_key)))
    state.requests.request("status", "report", request, on_reply, now)


def _note_stored(state: MemberState) -> None:
    """Note which status the store has, and at which revision this round's failure was first reported in it."""
    key = state.job.make_status_key(state.member_id)
    stored = state.cache.read(Status, key)
    if stored is None:
        return
    state.round.status_written = replace(stored, failed_revision=0)
    if stored.outcome == "failed" and stored.plan_token == state.round.status.plan_token:
        state.round.failed_revision = stored.failed_revision or state.cache.keys.get_revision(key)


# docs/internals/decisions/agreement.md#0037-no-status-for-a-running-round
def _is_empty(status: Status) -> bool:
    """Return whether the status says only that the sealed round runs, which all members assume."""
    return status == Status(round=status.round, plan_token=status.plan_token, worker_port=status.worker_port)
