"""How this agent leaves: on a request, by a drain, at the end of the job or of its store, or after it was removed.

A departure is announced and acknowledged by the store before the first worker is signalled, so that the failures it
causes are not charged to the job. All members obey a verdict. An agent that serves the store to the others exits last,
or they would never read the verdict.
"""

from __future__ import annotations

import math

from rendezvous.errors import EXIT_FENCED, EXIT_STOPPED, EXIT_SUCCESS, EXIT_TEMPORARY
from rendezvous.events import Exit, LeaveRequest, Txn
from rendezvous.member import local_round
from rendezvous.reasons import Reason
from rendezvous.records import Verdict
from rendezvous.state.intents import ExitNow, Finish
from rendezvous.state.state import MemberState
from rendezvous.stores.contract import Get, Put, TxnResult


def handle(state: MemberState, event: LeaveRequest, now: float) -> None:
    """Keep the request that this node leaves; only the first one counts."""
    if state.leaving.request is None:
        state.leaving.request, state.leaving.requested_at = event, now


def leave_before_joining(state: MemberState, now: float) -> bool:
    """Finish if this node was asked to leave, or has no store to join any more, since no member depends on it."""
    leaving, setup = state.leaving, state.setup
    done_until = leaving.done_at + state.settings.farewell_s
    if leaving.request is not None:
        state.ask(Finish(leaving.request.exit_code, leaving.request.reason))
    elif now >= done_until or (leaving.has_store_ended and leaving.done_at < math.inf):
        state.requests.log(Reason.of("ending-without-store"))
        state.ask(Finish(EXIT_SUCCESS, Reason.of("node-succeeded")))
    elif leaving.has_store_ended and state.membership.joined_root:  # as all members of that job
        state.ask(Finish(EXIT_STOPPED, _explain_store_end(state)))
    elif leaving.has_store_ended:
        state.ask(Finish(EXIT_TEMPORARY, Reason.of("not-joined", run=setup.run_id, why=_explain_store_end(state))))
    else:
        state.requests.wake_by(done_until)
        return False
    return True


# --- leaving ---


def find_request(state: MemberState, now: float) -> LeaveRequest | None:
    """Return the request to leave, if there is one: by a signal, or by a drain of this node."""
    if state.leaving.request is None and state.is_drained:
        handle(state, LeaveRequest(Reason.of("drained", node=state.setup.node.node_name), EXIT_STOPPED), now)
    return state.leaving.request


# docs/internals/decisions/agreement.md#0003-departures-acknowledged-by-the-store
def depart(state: MemberState, request: LeaveRequest, now: float) -> None:
    """Leave in order: stop the workers once the departure is acknowledged, then finish."""
    round_state, lease, settings = state.round, state.lease, state.settings
    announce_by = state.leaving.requested_at + settings.announce_limit_s
    gone_by = announce_by + settings.shutdown_timeout_s + settings.stop_limit_s
    # Once it is written, the leader knows of it before it charges the failures that the departure causes.
    is_announced = now >= announce_by or (
        round_state.status_written is not None and round_state.status_written.leaving is not None
    )
    # A leader has to end the round first; an agent that serves the store stays until a verdict shows that all know.
    is_needed = (state.leadership is not None or state.setup.hosts_store) and now < lease.ends_at
    if round_state.alive_round is not None:
        if is_announced:
            local_round.stop_workers(state, "grace", request.reason, "leaving", now)
        else:
            state.requests.wake_by(announce_by)
    elif now >= gone_by or (not is_needed and (round_state.is_status_written or now >= announce_by)):
        state.ask(Finish(request.exit_code, request.reason))
    else:
        state.requests.wake_by(gone_by if is_needed else announce_by)


# --- the end of a served store ---


def note_store_end(state: MemberState) -> None:
    """Note that the agent which served the store has said that it ends."""
    state.leaving.has_store_ended = True


def note_loss(state: MemberState, now: float) -> None:
    """Note that the membership is lost: if a served store is the reason, it may never be won back.

    A server that was frozen keeps all leases when it runs on, and the job with them, so it is waited for.
    """
    # Only for a moment where this node has nothing left to do.
    is_done = state.setup.store_owner is not None and state.round.has_succeeded
    state.leaving.done_at = now if is_done else math.inf
    if not is_done:
        return
    limit_s = state.settings.farewell_s
    state.requests.log(
        Reason.of("ending-unless-store-returns", in_s=limit_s), until=now + limit_s, setting="farewell_s"
    )


def conclude_without_store(state: MemberState, *, is_lost: bool) -> Verdict | None:
    """Return how this member ends because a served store is gone for good; None while it may still be needed.

    `is_lost`: the membership cannot be renewed.
    """
    leaving, round_state = state.leaving, state.round
    if not leaving.has_store_ended and (state.setup.store_owner is None or not (is_lost or state.outage.is_over)):
        return None  # an etcd outlives the agents, and a served store may answer again
    if (verdict := find_verdict(state)) is not None:
        return verdict
    number = round_state.status.round
    # No member has work left, or this one has none and nobody can tell it otherwise.
    if state.outage.is_over or (leaving.has_store_ended and round_state.has_succeeded):
        reason = Reason.of("succeeded-without-store")
        return Verdict(kind="success", exit_code=EXIT_SUCCESS, round=number, reason=reason)
    if leaving.has_store_ended:
        return Verdict(kind="stopped", exit_code=EXIT_STOPPED, round=number, reason=_explain_store_end(state))
    return None  # its agent may only be frozen: join again


# docs/internals/decisions/agreement.md#0059-no-job-survives-a-store-that-goes-back
def leave_store(state: MemberState, regress: Reason, now: float) -> Finish:
    """The store has gone back, or is another one: kill the workers; return how this agent ends for good.

    What this member and others have decided may never have been, for those who read the store from now on: they may
    seal the next round while this node's workers run. It does not join again: the number of a round, which storage is
    fenced by, would be used twice. `regress`: what shows it. A verdict that was seen stays.
    """
    verdict = find_verdict(state) if state.is_member else None
    local_round.stop_workers(state, "fence", Reason.of("store-replaced"), "isolation", now)
    if verdict is not None:
        return Finish(verdict.exit_code, verdict.reason, verdict)
    exit_code = state.leaving.request.exit_code if state.leaving.request is not None else EXIT_TEMPORARY
    return Finish(exit_code, Reason.of("store-went-back", why=regress))


def end_without_store(state: MemberState, verdict: Verdict, now: float) -> None:
    """Finish with this verdict, once the workers are gone: no later than the membership, which cannot be renewed."""
    if verdict != state.leaving.verdict:
        state.leaving.verdict = verdict
        state.requests.log(verdict.reason)
    is_over = now >= state.lease.membership_until
    mode = "fence" if is_over else "grace" if verdict.kind == "stopped" else "kill"
    local_round.stop_workers(state, mode, verdict.reason, "end", now)
    if not is_over:
        state.requests.wake_by(state.lease.membership_until)
    obey(state, verdict, now)


def _explain_store_end(state: MemberState) -> Reason:
    owner = state.setup.store_owner
    return Reason.of("store-ended", node=owner.node_name if owner is not None else "")


# --- the end of the job, or of this node's part in it ---


def find_verdict(state: MemberState) -> Verdict | None:
    """Return the verdict on this job; None if there is none yet."""
    state.leaving.verdict = state.cache.read(Verdict, state.job.verdict) or state.leaving.verdict
    return state.leaving.verdict


def obey(state: MemberState, verdict: Verdict, now: float) -> None:
    """Finish with the verdict's exit code, once the workers that were stopped are gone."""
    round_state = state.round
    if round_state.alive_round is None or now >= round_state.gone_by:
        own = state.leaving.request  # whoever is asked to leave ends as asked, as when it leaves alone
        exit_code = own.exit_code if own is not None and verdict.kind == "stopped" else verdict.exit_code
        state.ask(Finish(exit_code, verdict.reason, verdict))
    else:
        state.requests.wake_by(round_state.gone_by)


def explain_fence(state: MemberState, loss_reason: Reason | None, now: float) -> None:
    """The own key is gone, or the others have continued: find out whether this node was removed.

    A store may end a lease early and deletes its key: that ends a membership as an expired lease does. So a key is
    written under the lease, which no server can answer alone; if the lease is gone, the refusal says so (see
    `machine`). Without an answer, the membership ends when the lease does. `loss_reason`: what else was deleted, and
    why no member can go on.
    """
    lease = state.lease
    assert lease.id is not None
    if state.leaving.is_removal_sure:
        removed = Finish(EXIT_FENCED, Reason.of("removed"))
        state.ask(Finish(EXIT_TEMPORARY, loss_reason) if loss_reason else removed)
        return

    def on_reply(answer: TxnResult, now: float) -> None:
        current, spec = answer.found
        state.leaving.is_removal_sure = True
        if state.membership.is_removed(current.first, spec.first):
            state.ask(state.make_removal(current.first))

    probe = Put(state.job.make_lease_key(state.member_id), b"", lease.id)
    request = Txn((), (probe, Get(state.setup.current_key), Get(state.job.spec)))
    state.requests.request("farewell", "probe lease", request, on_reply, now)
    state.requests.wake_by(lease.membership_until)


def finish(state: MemberState, asked: Finish, now: float) -> None:
    """Give up the membership and end, without waiting for the store's reply."""
    requests, lease_id = state.requests, state.lease.id
    state.leaving.exit_action = Exit(asked.exit_code, asked.reason, asked.verdict)
    state.cache.unwatch_all()
    if lease_id is not None:
        requests.give_back(lease_id)
    requests.drop_requests()
    if state.setup.hosts_store and state.is_member:
        stay_s = state.settings.farewell_s
        # Without the store watchdogs would cut short who still saves, or waits for what its workers have left.
        if asked.verdict is not None and asked.verdict.kind in ("stopped", "success"):
            stay_s += state.settings.shutdown_timeout_s
        state.leaving.exit_by = now + stay_s
        state.leaving.stay_reason = asked.reason.add(Reason.of("store-host-stays", up_to_s=stay_s))
        advance(state, now)
    else:
        state.ask(ExitNow())


def advance(state: MemberState, now: float) -> None:
    """After finishing, stay until every member has gone, or until `exit_by`, if this node serves the store."""
    if state.membership.has_ended:
        return
    if now >= state.leaving.exit_by:
        state.ask(ExitNow())
        return
    members = state.job.members

    def on_reply(answer: TxnResult, now: float) -> None:
        others = [item.key for item in answer.found[0].items if item.key != members + state.member_id]
        if not others:
            state.ask(ExitNow())
            return
        if state.leaving.stay_reason is not None:
            state.requests.log(state.leaving.stay_reason, "host stays")
            state.leaving.stay_reason = None
        state.requests.pause("farewell", now)

    state.requests.wake_by(state.leaving.exit_by)
    request = Txn((), (Get(members, prefix=True),))
    state.requests.request("farewell", "list members", request, on_reply, now)
