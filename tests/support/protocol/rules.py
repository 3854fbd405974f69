"""The rules of the agreement that a test can take out, and the bugs that it can plant: one table.

A row says which functions are replaced and by what. Tests name the row; `take_out` does it for the length of one test.
Only public functions are replaced, so that a row breaks when a rule moves, and not when its inside changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from rendezvous.events import ExtendWatchdog, StartRound
from rendezvous.leader import commit, election, guarded_write, leader
from rendezvous.member import admission, join, lease, leave, local_round, outage, refusal, stale_watch
from rendezvous.peers.liveness import PeerLiveness
from rendezvous.policy import budget, charge, decide, quarantine
from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.view import View
from rendezvous.records import Assignment
from rendezvous.settings import Settings
from rendezvous.state.intents import Finish
from rendezvous.state.key_cache import KeyCache
from rendezvous.state.request_queue import RequestQueue
from rendezvous.state.state import MemberState
from rendezvous.state.watch_cache import WatchCache
from rendezvous.stores.contract import Compare, KeyValue
from tests.simulation.processes import SimulatedProcesses


class Switch(NamedTuple):
    """`places`: (owner, name) of what is replaced; `make` gets what stood at the first of them."""

    places: tuple[tuple[Any, str], ...]
    make: Callable[[Any], Any]


def _replace(owner: Any, name: str, stand_in: Any) -> Switch:
    return Switch(((owner, name),), lambda original: stand_in)


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> Switch:
    return Switch(((owner, name),), make)


def _get_unreachable_since(self: PeerLiveness, member_id: str, address: str) -> float:
    return self.unreachable_since.get(member_id, math.inf)


def _guard_nothing(state: MemberState, *names: str) -> tuple[Compare, ...]:
    return tuple(Compare(name, "mod", ">", -1) for name in names)


def _extend_from_answer(extend_lease: Any) -> Any:
    # As if the renewal had been sent when the late one was applied.
    return lambda state, sent_at, ttl_s: extend_lease(state, sent_at + 3.0, ttl_s)


def _renew_too_rarely(extend_lease: Any) -> Any:
    def extend(state: MemberState, sent_at: float, ttl_s: float) -> None:
        extend_lease(state, sent_at, ttl_s)
        state.lease.keep_alive_at += 2.5

    return extend


def _hold_at_once(send_probe: Any) -> Any:
    def send(state: MemberState, seal: Any, *rest: Any) -> None:
        send_probe(state, seal, *rest)
        state.outage.awaited_ids.clear()
        outage.count_acknowledgements(state, seal)

    return send


def _hold_for_ever(state: MemberState, until: float) -> None:
    state.requests.emit(ExtendWatchdog(until - state.settings.kill_margin_s))
    state.lease.held_until = max(state.lease.held_until, until)


def _resync_living_watches(resync: Any) -> Any:
    def resync_some(self: WatchCache, now: float, on_done: Any) -> None:
        followed = self.watched
        self.watched = followed - self.lost_watches
        resync(self, now, on_done)
        self.watched = followed

    return resync_some


def _request_without_own_key(request: Any) -> Any:
    def send(self: RequestQueue, purpose: str, why: str, asked: Any, *rest: Any) -> None:
        if purpose == "lead" and hasattr(asked, "compares"):
            compares = tuple(one for one in asked.compares if "/members/" not in one.key)
            asked = replace(asked, compares=compares)
        request(self, purpose, why, asked, *rest)

    return send


def _finish_well(finish: Any) -> Any:
    def well(state: MemberState, asked: Finish, now: float) -> None:
        finish(state, replace(asked, exit_code=0) if asked.exit_code == 143 else asked, now)

    return well


def _extend_without_margin(state: MemberState) -> None:
    state.requests.emit(ExtendWatchdog(state.lease.membership_until))


def _stop_gently(stop_workers: Any) -> Any:
    def stop(state: MemberState, mode: str, *rest: Any) -> None:
        stop_workers(state, "kill" if mode == "fence" else mode, *rest)

    return stop


def _register_blindly(register: Any) -> Any:
    def blind(state: MemberState, *arguments: Any) -> None:
        current = state.membership.current
        state.membership.current = None if current is None else replace(current, mod_revision=0)
        register(state, *arguments)
        state.membership.current = current

    return blind


def _open_at_once(may_join: Any) -> Any:
    def may(state: MemberState, now: float, open_job: Any) -> bool:
        if state.job.attempt >= (state.setup.attempt or 0):
            return bool(may_join(state, now, open_job))
        open_job(state, now)
        return False

    return may


def _pass_over_attempts(choose_request: Any) -> Any:
    def choose(view: View) -> Any:
        kept = {token: command for token, command in view.commands.items() if command.kind != "replace"}
        return choose_request(replace(view, commands=kept))

    return choose


def _take_up_anything(state: MemberState, sealed: Any, answer: Any, now: float) -> None:
    here, found = state.round, answer.found[0].first
    assignment = state.cache.decode(Assignment, found) if found is not None else None
    here.answered_token = sealed.plan_token
    if assignment is not None and here.alive_round is None:
        here.move("ranks assigned")
        here.alive_round, here.ranked_token = sealed.round, sealed.plan_token
        local_round.begin_status(here, sealed, is_stopped=False)
        start = (sealed.round, sealed.restart_count, sealed.world_size, sealed.coordinator, assignment.content)
        state.requests.emit(StartRound(*start))


def _believe_one_success(get_outcome: Any) -> Any:
    def of_anyone(self: View, member_id: str) -> str:
        outcomes = (get_outcome(self, m) for m in self.active)
        return next((found for found in outcomes if found == "succeeded"), get_outcome(self, member_id))

    return of_anyone


def _charge_twice(charge: Any) -> Any:
    return lambda self, number, failed_at, now: charge(charge(self, number, failed_at, now), number, failed_at, now)


def _forget_oldest(strikes: str) -> Any:
    return lambda restore: lambda seal, at: restore(replace(seal, **{strikes: getattr(seal, strikes)[1:]}), at)


def _count_from_now(observe: Any) -> Any:
    def observe_anew(state: MemberState, leadership: Any, now: float) -> View:
        view: View = observe(state, leadership, now)
        return view if view.seal is None else replace(view, budget=budget.restore_budget(view.seal, now))

    return observe_anew


def _count_from_last_read(put: Any) -> Any:
    def put_anew(self: KeyCache, item: KeyValue, now: float, read_at: int = 0) -> None:
        put(self, item, now, read_at)
        if self.get_revision(item.key) == item.mod_revision:
            self._seen_at[item.key] = now

    return put_anew


_GUARDS = ((guarded_write, "guard_unchanged"), (leader, "guard_unchanged"), (commit, "guard_unchanged"))

SWITCHES: dict[str, tuple[Switch, ...]] = {
    # Who is gone, lost, isolated, doubtful.
    "nobody is proven gone": (_replace(PeerLiveness, "get_gone_since", lambda self, member_id, address: math.inf),),
    "a broken connection is a proof": (_replace(PeerLiveness, "get_gone_since", _get_unreachable_since),),
    "nobody is isolated": (_replace(Settings, "isolation_s", math.inf),),
    "doubtful members are lost": (_replace(View, "list_doubtful", lambda self, now: []),),
    "unaware members are gone": (_replace(View, "list_unaware", lambda self, now: []),),
    # Rounds.
    "a round ends before it is stopped": (_replace(View, "has_stopped", lambda self, member_id: True),),
    "departures are not gathered": (
        _replace(View, "is_leaving", lambda self, member_id: member_id == sorted(self.members)[0]),
    ),
    "finished members are pending": (_replace(View, "is_pending", lambda self, member_id: member_id in self.active),),
    "one success is enough": (_wrap(View, "get_outcome", _believe_one_success),),
    "an assignment is believed under any seal": (_replace(local_round, "take_up", _take_up_anything),),
    "a fence leaves a grace": (_wrap(local_round, "stop_workers", _stop_gently),),
    "the first port is used for ever": (_replace(commit, "get_offered_port", lambda view, member_id: 20_000),),
    # Charges.
    "failures are charged at once": (_replace(charge, "must_await_cause", lambda *arguments: False),),
    "the last failure is blamed": (
        _wrap(charge, "sort_failures", lambda sort: lambda view, failures: sort(view, failures)[::-1]),
    ),
    "failures are free": (_replace(RestartBudget, "charge", lambda self, number, failed_at, now: self),),
    "a failure is charged twice": (_wrap(RestartBudget, "charge", _charge_twice),),
    "ages are rounded up": (_replace(budget, "compute_age_s", lambda at, now: float(math.ceil(now - at))),),
    "the oldest loss is forgotten": (_wrap(budget, "restore_budget", _forget_oldest("losses")),),
    "the oldest node at fault is forgotten": (_wrap(budget, "restore_budget", _forget_oldest("blamed")),),
    "ages stand still": (_wrap(leader, "observe", _count_from_now),),
    "ages count from the last read": (_wrap(KeyCache, "put", _count_from_last_read),),
    "nobody is quarantined": (_replace(quarantine, "find_quarantines", lambda *strikes, blamed: {}),),
    "a poisoned batch is not told apart": (_replace(quarantine, "find_poisoned_ranks", lambda first_failures: set()),),
    # Leading.
    "writes do not name the leader": (
        _wrap(
            guarded_write,
            "make_leader_guard",
            lambda make: lambda leader: replace(make(leader), relation=">", operand=-1),
        ),
    ),
    "writes do not name the own key": (_wrap(RequestQueue, "request", _request_without_own_key),),
    "guards hold always": (Switch(_GUARDS, lambda original: _guard_nothing),),
    "non-members of the roster may lead": (_replace(election, "may_lead", lambda state, seal, now: True),),
    "requests are not read": (_replace(decide, "choose_request", lambda view: None),),
    "nobody takes over on request": (_replace(election, "find_takeover_request", lambda state: None),),
    # The lease, and what is known.
    "the watchdog counts from the answer": (_wrap(lease, "extend_lease", _extend_from_answer),),
    "the watchdog ends with the lease": (_replace(lease, "extend_watchdog", _extend_without_margin),),
    "there is no watchdog": (_replace(SimulatedProcesses, "check_watchdog", lambda self: None),),
    "renewals are too rare": (_wrap(lease, "extend_lease", _renew_too_rarely),),
    "members do not come back": (_replace(lease, "handle_end", lambda state, now: False),),
    "the leader tells no revisions": (_replace(stale_watch, "advance", lambda state, now: None),),
    "nobody reads again": (
        _replace(WatchCache, "resync", lambda self, now, on_done: None),
        _replace(lease, "note_resync", lambda state, sent_at: None),
    ),
    "lost watches stay lost": (
        _replace(WatchCache, "rewatch", lambda self, key, now: None),
        _wrap(WatchCache, "resync", _resync_living_watches),
    ),
    "watches are left behind": (_replace(WatchCache, "unwatch", lambda self, *keys: None),),
    "late answers are believed": (_replace(RequestQueue, "drop_requests", lambda self: self.reset_backoff()),),
    "it wakes at once": (_wrap(RequestQueue, "wake_by", lambda wake_by: lambda self, at: wake_by(self, at - 0.5)),),
    "a store that goes back is believed": (_replace(RequestQueue, "note_revision", lambda self, revision: None),),
    # An outage of the store.
    "nobody acknowledges probes": (_replace(outage, "acknowledge", lambda state, seal, now: None),),
    "probes need no acknowledgements": (_wrap(outage, "send_probe", _hold_at_once),),
    "outages have no limit": (
        _replace(outage, "is_endured", lambda state, now: state.lease.is_store_away),
        _replace(lease, "hold_until", _hold_for_ever),
    ),
    # Joining and leaving.
    "any command will do": (_replace(refusal, "find_difference", lambda theirs, ours, run_id, *, is_served: None),),
    "who joins compares another job": (_wrap(join, "register", _register_blindly),),
    "a later attempt waits for nobody": (_wrap(admission, "may_join", _open_at_once),),
    "a later attempt asks nobody": (_wrap(decide, "choose_request", _pass_over_attempts),),
    "success when told to leave": (_wrap(leave, "finish", _finish_well),),
}


def take_out(patch: pytest.MonkeyPatch, name: str) -> None:
    """Let the test go on without this rule, or with this bug."""
    for switch in SWITCHES[name]:
        (owner, attribute), *_ = switch.places
        stand_in = switch.make(getattr(owner, attribute))
        for place, at in switch.places:
            patch.setattr(place, at, stand_in)
