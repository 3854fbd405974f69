"""The agreement of one member with the others, as a state machine without I/O.

`steps(events, now)` takes what happened and returns the actions to take; the machine itself reads no clock, opens no
socket and starts no process. So a whole cluster can be simulated on one virtual clock, and a fault is a list of events.
The machine compares state and remembers no steps: after every batch of events `_advance` compares what is known of the
store with what is wanted and requests the next thing that is missing. So a reply that is lost, late or duplicated needs
no special case: the store is read and compared again. Every write is guarded by the revision of what it replaces and by
the member's own key.

The machine calls the parts in order and carries out what they ask of each other (`state.intents`). In `member`: `join`
(find the job, register), `lease` (lease, watchdog, registering again), `local_round` (start, stop, status), `outage`
(store outage), `stale_watch`, `notes`, `leave` (leaving, the verdict, the end). In `leader`: `election` (who leads) and
`leader` (what the leader does). `peers.liveness` is which members are connected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from rendezvous import events
from rendezvous.errors import EXIT_FENCED, EXIT_TEMPORARY, LeaseNotFound, StoreEnded
from rendezvous.events import Action, Event, StoreOutcomeUnknown, StoreRejected, StoreReply
from rendezvous.leader import election, leader
from rendezvous.member import join, lease, leave, local_round, outage, stale_watch
from rendezvous.peers import messages
from rendezvous.policy.decisions import QuitJob
from rendezvous.reasons import Reason
from rendezvous.records import Keys, LeaderRecord, Seal, Stop, Verdict
from rendezvous.settings import Settings
from rendezvous.state import intents
from rendezvous.state.intents import ExitNow, Finish, Intent, LoseMembership, NoteRegistration, SuspectRemoval
from rendezvous.state.state import LeaseState, MemberState, Setup, StaleWatchState
from rendezvous.stores.contract import KeyValue


class MemberMachine:
    """One member. `rng` returns a random number in [0, 1); `secret` signs records, empty if the job has none."""

    def __init__(self, setup: Setup, worker_port: int, rng: Callable[[], float], secret: bytes = b"") -> None:
        spec = replace(setup.spec, has_secret=bool(secret))
        self._state = MemberState(replace(setup, spec=spec), worker_port, rng, secret)

    # --- public ---

    @property
    def settings(self) -> Settings:
        """The settings of this agent."""
        return self._state.settings

    @property
    def member_id(self) -> str:
        """The id under which this agent is a member, or tries to become one."""
        return self._state.member_id

    @property
    def joined_root(self) -> str:
        """The job that this agent has been a member of last, "" before the first."""
        return self._state.membership.joined_root

    @property
    def verdict(self) -> Verdict | None:
        """How the job has ended, once this member knows it."""
        return self._state.leaving.verdict

    @property
    def is_leader(self) -> bool:
        """Return whether this member leads, as far as it knows."""
        return self._state.leadership is not None

    @property
    def has_taken_over(self) -> bool:
        """Return whether this member leads a job that others may have led before, as far as its rounds show."""
        leadership = self._state.leadership
        if leadership is None or (seal := self._state.cache.read(Seal, leadership.job.round)) is None:
            return False
        return seal.round > 1 or self._state.cache.keys.get_revision(leadership.job.round) < leadership.revision

    @property
    def is_spare(self) -> bool:
        """Return whether a round runs without this member, as far as it knows."""
        state = self._state
        if not state.is_member or state.membership.job is None or state.round.alive_round is not None:
            return False
        seal, stop = state.cache.read(Seal, state.job.round), state.cache.read(Stop, state.job.stop)
        runs = seal is not None and (stop is None or stop.round < seal.round)
        return seal is not None and runs and state.round.answered_token == seal.plan_token

    @property
    def leader(self) -> LeaderRecord | None:
        """Who leads, as far as this member knows."""
        state = self._state
        return state.cache.read(LeaderRecord, state.job.leader) if state.membership.job is not None else None

    def find_failure(self, round: int) -> str:
        """Return the program's text of the round's first failure on any node, if this member leads; else ""."""
        state, leadership = self._state, self._state.leadership
        first = leader.find_first_failure(state, leadership.job, round) if leadership is not None else None
        return "" if first is None else first.failure

    def list_members(self) -> dict[str, str]:
        """Return the names of the nodes of all members by member id, if this member leads; else nothing."""
        from rendezvous.member import notes

        return notes.list_members(self._state)

    def read_records(self) -> tuple[Keys, tuple[KeyValue, ...], bytes] | None:
        """Return the keys of its job, what it knows of them, and the secret, if this member leads."""
        leadership, cache = self._state.leadership, self._state.cache
        if leadership is None:
            return None
        return leadership.job, tuple(cache.keys.list_under(f"{leadership.job.root}/")), cache.secret

    @property
    def wake_at(self) -> float:
        """When to send Tick if nothing else happens before; infinite if never."""
        return self._state.requests.wake_at

    def steps(self, events: Sequence[Event], now: float) -> list[Action]:
        """Handle the events in order, then compare once, and return the actions to take.

        Never raises for anything that a peer or the store sent.
        """
        state = self._state
        requests, membership = state.requests, state.membership
        requests.actions = []
        if membership.has_ended:
            return requests.actions
        if state.is_member and not membership.is_final and now >= state.lease.membership_until:
            self._lose_membership(now)  # before any event of the time in which this node was frozen is handled
        for event in events:
            self._handle(event, now)
            regress = requests.regress or state.cache.keys.regress
            if regress is not None and not membership.is_final:
                state.ask(intents.LeaveStore(regress))
            self._apply_intents(now)
        requests.wake_at = math.inf
        self._advance(now)
        if membership.has_ended:
            requests.wake_at = math.inf
        return requests.actions

    def _handle(self, event: Event, now: float) -> None:
        state = self._state
        if state.membership.is_final and not isinstance(event, (StoreReply, StoreRejected, StoreOutcomeUnknown)):
            return
        match event:
            case events.Start(wall_offset_s):
                state.wall_offset_s = wall_offset_s
            case events.Tick():
                pass
            case StoreReply() | StoreRejected() | StoreOutcomeUnknown():
                self._handle_outcome(event, now)
            case events.WatchLost(error=StoreEnded()):
                leave.note_store_end(state)
            case events.WatchUpdate() | events.WatchLost():
                state.cache.handle_watch(event, now)
            case events.PlanReady() | events.PlanRefused():
                if state.leadership is not None:
                    leader.handle_plan(state.leadership, event)
            case events.RoundSucceeded() | events.RoundFailed() | events.RoundStopped():
                local_round.handle(state, event)
            case events.CheckpointSaved() | events.RoundExamined():
                local_round.handle(state, event)
            case events.PeerUp() | events.PeerDown() | events.PeerGone():
                state.peers.take(event, now)
            case events.PeerMessage(member_id, text):
                message = messages.decode_message(text)
                if isinstance(message, messages.KnownRevision):
                    stale_watch.handle(state, member_id, message, now)
                elif isinstance(message, messages.Note):
                    state.requests.emit(events.NoteReceived(member_id, message.text))
                elif message is not None:
                    outage.handle(state, member_id, message, now)
            case events.SendNote():
                from rendezvous.member import notes

                notes.send(state, event)
            case events.AnswerCommand(token, text):
                if state.leadership is not None:
                    leader.handle_answer(state.leadership, token, text)
            case events.WatchdogExpired():
                if state.lease.id is not None:
                    state.requests.give_back(state.lease.id)
                self._lose_membership(now)
            case events.LeaveRequest():
                leave.handle(state, event, now)

    def _handle_outcome(self, event: StoreReply | StoreRejected | StoreOutcomeUnknown, now: float) -> None:
        state = self._state
        purpose = state.requests.handle_outcome(event, now)
        if isinstance(event, StoreRejected) and isinstance(event.error, StoreEnded):
            leave.note_store_end(state)
        self._apply_intents(now)
        if not purpose:
            return
        is_lease_gone = isinstance(event, StoreRejected) and isinstance(event.error, LeaseNotFound)
        if purpose == "lease":
            lease.note_outcome(state, is_answer=isinstance(event, StoreReply) or is_lease_gone)
        if purpose == "join" and not isinstance(event, StoreReply):
            problem = Reason.of("store-silent")
            if isinstance(event, StoreRejected):
                problem = Reason.of("store-error", error=str(event.error))
            state.membership.join_problem = problem
        # For the purpose of leading it is the verdict's lease.
        if is_lease_gone and purpose == "lead" and state.leadership is not None:
            state.leadership.is_verdict_lease_granted = False
        if is_lease_gone and purpose != "lead" and not lease.handle_end(state, now):
            is_early = now < state.lease.ends_at
            self._lose_membership(now, Reason.of("lease-ended-early") if is_early else None, is_early=is_early)

    # --- the comparison, made after every batch of events ---

    def _advance(self, now: float) -> None:
        state = self._state
        if state.membership.is_final:
            leave.advance(state, now)
        elif not state.is_member:
            self._advance_outside(now)
        elif verdict := leave.conclude_without_store(state, is_lost=now >= state.lease.membership_until):
            leave.end_without_store(state, verdict, now)
        elif now >= state.lease.membership_until:
            self._lose_membership(now)
            self._advance(now)  # to join again at once
        else:
            self._advance_member(now)
        self._apply_intents(now)

    def _advance_outside(self, now: float) -> None:
        """Advance an agent that is no member."""
        state, round_state = self._state, self._state.round
        # It does not join while processes of its last membership's round may live: two rounds would share a device.
        if round_state.alive_round is not None and now >= round_state.gone_by:
            state.ask(QuitJob(Reason.of("not-stopped-here", round=round_state.alive_round)))
        elif round_state.alive_round is not None:
            state.requests.wake_by(round_state.gone_by)
        elif leave.leave_before_joining(state, now) or join.has_run_out(state, now):
            return
        else:
            lease.advance(state, now)
            if state.lease.id is None:
                lease.request_first_lease(state, now)
            else:
                join.advance(state, now)

    def _advance_member(self, now: float) -> None:
        state = self._state
        is_key_present = state.cache.keys.get(state.own_key) is not None
        if not is_key_present and not lease.may_have_ended(state, now):
            self._suspect_removal(None, now)
            return
        state.cache.restore_watches(now)
        lease.advance(state, now)
        if not is_key_present or state.lease.is_over(now):  # the roster holds this member's place; it writes nothing
            state.membership.move("lease held out")
            outage.advance(state, now)
            self._apply_intents(now)
            self._leave_in_order(now)
            return
        state.membership.move("own key found")
        stale_watch.advance(state, now)
        verdict = leave.find_verdict(state)
        if verdict is not None:
            local_round.stop_workers(
                state, "grace" if verdict.kind == "stopped" else "kill", verdict.reason, "end", now
            )
            leave.obey(state, verdict, now)
            return
        local_round.advance(state, now)
        self._apply_intents(now)
        self._leave_in_order(now)
        if state.membership.is_final or state.round.loss_reason is not None:
            return  # a leader that has lost its round would seal another of the same number
        outage.advance(state, now)
        self._apply_intents(now)
        election.advance(state, now)
        # Nothing is decided on data that may be old.
        is_blind = bool(state.cache.lost_watches) or state.lease.is_store_away
        leadership, report = None if is_blind else state.leadership, local_round.make_report(state)
        is_taken = leadership is not None and leader.end_own_round(state, leadership, report, now)
        if not is_taken:
            local_round.write_status(state, report, now)
            if leadership is not None:
                leader.advance(state, leadership, now)

    def _leave_in_order(self, now: float) -> None:
        """Announce the departure and leave, if this node was asked to leave or is drained."""
        state = self._state
        request = leave.find_request(state, now)
        if request is not None and not state.membership.is_final:
            local_round.announce_departure(state, request.reason, request.exit_code or EXIT_TEMPORARY)
            leave.depart(state, request, now)
            self._apply_intents(now)

    # --- intents ---

    def _apply_intents(self, now: float) -> None:
        """Carry out each intent at its place among the actions, before the actions that were emitted after it."""
        state = self._state
        while state.intents:
            (index, intent), *others = state.intents
            state.intents = []
            actions = state.requests.actions
            later = actions[index:]
            del actions[index:]
            self._apply(intent, now)
            shift = len(actions) - index
            state.intents += [(other_index + shift, other) for other_index, other in others]
            actions += later

    def _apply(self, intent: Intent, now: float) -> None:
        state = self._state
        match intent:
            case NoteRegistration(create_revision):
                state.membership.revision = create_revision
            case LoseMembership(reason):
                self._lose_membership(now, reason)
            case SuspectRemoval(loss_reason):
                self._suspect_removal(loss_reason, now)
            case intents.LeaveStore(regress):
                self._finish(leave.leave_store(state, regress, now), now)
            case QuitJob(reason):
                local_round.stop_workers(state, "fence", reason, "isolation", now)
                asked = state.leaving.request or events.LeaveRequest(reason, EXIT_FENCED)
                self._finish(Finish(asked.exit_code, asked.reason), now)
            case Finish():
                self._finish(intent, now)
            case ExitNow():
                if state.leaving.exit_action is not None and not state.membership.has_ended:
                    state.membership.move("exited")
                    state.requests.emit(state.leaving.exit_action)

    def _finish(self, request: Finish, now: float) -> None:
        if not self._state.membership.is_final:
            self._state.membership.move("finished")
            leave.finish(self._state, request, now)

    def _suspect_removal(self, loss_reason: Reason | None, now: float) -> None:
        """The own key is gone, or the others continued: kill at once, then find out whether this node was removed."""
        self._state.membership.move("removal suspected")
        local_round.stop_workers(self._state, "fence", Reason.of("no-member"), "isolation", now)
        leave.explain_fence(self._state, loss_reason, now)

    def _lose_membership(self, now: float, why: Reason | None = None, *, is_early: bool = False) -> None:
        """The lease is gone, so others may take this node's place: kill at once, then join again as a new member.

        `is_early`: it ended before its time. Then members that were connected recently may have lost theirs as well.
        """
        state = self._state
        if state.is_member and (verdict := leave.conclude_without_store(state, is_lost=True)):
            leave.end_without_store(state, verdict, now)
            return
        if state.is_member:
            state.requests.log(Reason.of("membership-lost", why=why or state.lease.loss_reason))
            leave.note_loss(state, now)
        local_round.stop_workers(state, "fence", Reason.of("lease-ended"), "isolation", now)
        since = now - state.settings.lease_ttl_s
        election.note_unaware(state, state.peers.list_reached_after(since) if is_early else (), now)
        self._become_new_member()

    def _become_new_member(self) -> None:
        """Forget the membership: a node that rejoins is a new member."""
        state = self._state
        if state.is_member:
            state.requests.emit(events.SetIdentity("", ""))
        state.requests.begin_membership()
        state.cache.clear()
        state.membership.move("lease lost")
        state.membership.member_id, state.membership.revision = state.requests.make_token(), 0
        state.lease, state.stale_watch = LeaseState(), StaleWatchState()
        join.restart(state)
        state.round.begin_membership()
        election.begin_membership(state)
        state.outage.begin_membership()
        state.leaving.begin_membership()
