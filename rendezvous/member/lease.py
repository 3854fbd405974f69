"""The lease that makes this agent a member, and the watchdog that limits the life of its workers.

The store deletes a member's keys when its lease ends, and then others may take its place. So this node's workers must
be gone before that: the watchdog ends `kill_margin_s` before the lease, counted from the *send* time of the last
renewal that is known to have reached the store's leader and to have found the own key in place. The lease id is chosen
here, so a grant whose reply was lost is requested again and leaves no second lease behind.

During a store outage the whole roster may agree that no member is replaced (see `outage`), and the watchdog is extended
beyond the lease. If the lease has ended when the store is back, the member registers again on a new one, unless the
others have continued without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from rendezvous import events
from rendezvous.events import ExtendWatchdog, KeepAlive, Txn
from rendezvous.reasons import Reason
from rendezvous.state.intents import LoseMembership, NoteRegistration
from rendezvous.state.state import MemberState
from rendezvous.stores.contract import Compare, Get, GetResult, KeyValue, Lease, Put, Renewal, TxnResult


def request_first_lease(state: MemberState, now: float) -> None:
    """Request the first lease of this membership."""

    def on_lease(granted: Lease, sent_at: float) -> None:
        state.lease.id = granted.id
        extend_lease(state, sent_at, granted.ttl_s)

    _request_lease(state, "join", "grant lease", on_lease, now)


def _request_lease(
    state: MemberState, purpose: str, kind: str, on_lease: Callable[[Lease, float], None], now: float
) -> None:
    """Request one lease until it is granted; `on_lease` gets the time of the first request, when its TTL starts."""
    lease = state.lease
    if lease.requested is None:
        lease.requested = (state.requests.make_lease_id(), now)
    lease_id, since = lease.requested

    def on_reply(answer: Lease, now: float) -> None:
        lease.requested = None
        on_lease(answer, since)

    state.requests.request(purpose, kind, events.Grant(state.settings.lease_ttl_s, lease_id), on_reply, now)


# docs/internals/decisions/agreement.md#0018-expiry-of-a-members-view
def note_resync(state: MemberState, sent_at: float) -> None:
    """Extend the view: all that this member follows was read by a request sent at `sent_at`."""
    if state.lease.ends_at < math.inf:
        state.lease.view_until = sent_at + state.settings.view_s
        extend_watchdog(state)


def note_outcome(state: MemberState, *, is_answer: bool) -> None:
    """Note whether the store replied, whatever it said, or refused the request or gave no reply in time."""
    if is_answer and state.lease.is_store_away:
        state.requests.reset_backoff()
    state.lease.is_store_away = not is_answer


def hold_until(state: MemberState, until: float) -> None:
    """Extend the watchdog: the roster agrees that no node takes this member's place before `until`."""
    lease, settings = state.lease, state.settings
    until = min(until, lease.renewed_at + settings.outage_limit_s)
    if until > lease.membership_until:
        state.requests.emit(ExtendWatchdog(until - settings.kill_margin_s))
    lease.held_until = max(lease.held_until, until)
    lease.held_seal = state.cache.keys.get_revision(state.job.round)


def handle_end(state: MemberState, now: float) -> bool:
    """Note that the store reports the end of the lease; return whether the member may still register again."""
    state.lease.has_ended = state.lease.is_held(now) and state.is_member
    return state.lease.has_ended


def advance(state: MemberState, now: float) -> None:
    """Request the next renewal when it is due."""
    lease, requests = state.lease, state.requests
    if lease.id is None or lease.ends_at == math.inf:
        return
    if now < lease.membership_until:
        requests.wake_by(lease.membership_until)
    if lease.has_ended:
        _register_again(state, now)
    elif now >= lease.keep_alive_at:
        # Before the own key is known, another key that this agent may read.
        key = state.own_key if state.membership.job is not None else state.setup.current_key

        def on_reply(answer: Renewal, now: float) -> None:
            _handle_renewal(state, answer, key, now)

        requests.request("lease", "renew", KeepAlive(lease.id, key), on_reply, now)
    else:
        requests.wake_by(lease.keep_alive_at)


def may_have_ended(state: MemberState, now: float) -> bool:
    """Return whether the own key may be gone because its lease has ended in an outage that is being held out.

    If a renewal was answered that was sent after the key was found gone, it was deleted instead.
    """
    lease = state.lease
    if not lease.is_held(now):
        return False
    if lease.missing_since == -math.inf:
        lease.missing_since = now
    lease.keep_alive_at = -math.inf
    return lease.renewed_at < lease.missing_since


# docs/internals/decisions/agreement.md#0041-renewals-confirmed-by-a-read
def _handle_renewal(state: MemberState, answer: Renewal, key: str, now: float) -> None:
    """Extend the lease, if the answer shows that it was renewed and that this node is still a member.

    `key` is the key that was read with the renewal: not the own one, if it was requested while joining.
    """
    lease, requests, own_revision = state.lease, state.requests, state.membership.revision
    if answer.is_confirmed:
        lease.renewed_count += 1
    else:  # a server that no longer leads may have answered: ask again
        requests.pause("lease", now)
    is_own = own_revision > 0 and key == state.own_key
    if is_own and answer.revision >= own_revision and answer.create_revision != own_revision:
        if answer.is_confirmed:  # the lease lives without the key: see `may_have_ended`
            lease.renewed_at = requests.sent_at
        state.cache.keys.load(GetResult(answer.revision, ()), key, now)
    elif answer.is_confirmed:
        extend_lease(state, requests.sent_at, answer.ttl_s)


def extend_lease(state: MemberState, sent_at: float, ttl_s: float) -> None:
    """Set the end of the lease to the *send* time of the renewal plus its TTL; the watchdog ends a margin before."""
    lease = state.lease
    lease.renewed_at = sent_at
    lease.ends_at = sent_at + ttl_s
    lease.keep_alive_at = sent_at + state.settings.keep_alive_interval_s if ttl_s < math.inf else math.inf
    extend_watchdog(state)


def extend_watchdog(state: MemberState) -> None:
    """Extend the watchdog to a margin before the end of the membership."""
    lease = state.lease
    # A round of an earlier membership keeps its old watchdog until it is gone.
    if lease.ends_at < math.inf and (state.round.alive_round is None or state.is_member):
        state.requests.emit(ExtendWatchdog(lease.membership_until - state.settings.kill_margin_s))


# --- registering again ---


def _register_again(state: MemberState, now: float) -> None:
    lease, job, current = state.lease, state.job, state.membership.current
    if state.requests.is_busy("lease"):
        return  # its reply counts, although the new lease may have expired meanwhile
    if lease.new_lease is None or now >= lease.new_lease[1] + lease.new_lease[0].ttl_s:
        lease.new_lease = None

        def on_lease(granted: Lease, sent_at: float) -> None:
            lease.new_lease = (granted, sent_at)

        _request_lease(state, "lease", "grant another lease", on_lease, now)
        return
    key, (granted, granted_at) = state.own_key, lease.new_lease
    assert current is not None
    guards = (
        Compare(key, "create", "=", 0),
        Compare(job.round, "mod", "=", lease.held_seal),
        Compare(job.verdict, "create", "=", 0),
        Compare(current.key, "mod", "=", current.mod_revision),
    )
    reads = (Get(key), Get(job.control, prefix=True))
    request = Txn(guards, (Put(key, state.cache.encode(state.make_member_record(), key), granted.id), *reads), reads)

    def on_reply(answer: TxnResult, now: float) -> None:
        _handle_registration(state, answer, granted, granted_at, now)

    state.requests.request("lease", "register again", request, on_reply, now)


def _explain_refusal(control: Mapping[str, KeyValue], state: MemberState) -> Reason:
    """Return why this node could not register again. `control`: the job's control keys, as the store has them now."""
    job = state.job
    if job.verdict in control:
        return Reason.of("job-ended-meanwhile")
    if job.round not in control:
        return Reason.of("round-lost-meanwhile")
    if control[job.round].mod_revision != state.lease.held_seal:
        return Reason.of("others-continued-meanwhile")
    return Reason.of("place-taken-meanwhile")


def _handle_registration(state: MemberState, answer: TxnResult, granted: Lease, granted_at: float, now: float) -> None:
    lease, keys = state.lease, state.cache.keys
    own = answer.found[0].first
    if own is None or own.lease != granted.id:
        state.ask(LoseMembership(_explain_refusal({item.key: item for item in answer.found[1].items}, state)))
        return
    keys.load(answer.found[0], own.key, now)
    keys.load(answer.found[1], state.job.control, now)
    lease.has_ended, lease.new_lease, lease.id = False, None, granted.id
    lease.missing_since = -math.inf
    state.ask(NoteRegistration(own.create_revision))
    note_resync(state, state.requests.sent_at)
    extend_lease(state, granted_at, granted.ttl_s)  # registering does not renew the lease
    state.requests.log(Reason.of("registered-again"), "registered again")
