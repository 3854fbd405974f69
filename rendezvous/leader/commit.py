"""The commit of a round: a plan, its assignments under a new token, and the seal that makes them binding.

The transaction of the seal also writes what follows from it: which members are spares and why, the successors if the
leader is lost, the history of the round, and the removal of keys that are no longer read. It holds the assignments too,
so that a round costs one write to the store's disk; of a large job, those that no transaction before it has written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rendezvous.errors import EXIT_FAILURE
from rendezvous.events import MakePlan, PlanReady, PlanRefused, RosterMember
from rendezvous.leader.guarded_write import count_fitting, guard_unchanged, make_put, write
from rendezvous.leader.observe import note_round
from rendezvous.policy import budget
from rendezvous.policy.candidates import choose_members
from rendezvous.policy.decisions import SealRound
from rendezvous.policy.view import View
from rendezvous.reasons import Reason
from rendezvous.records import Assignment, Command, Keys, RoundHistory, Seal, Spares, Verdict
from rendezvous.settings import OPERATIONS_MIN
from rendezvous.state.state import CommitState, Draft, Leadership, MemberState
from rendezvous.stores.contract import Delete, Operation, Put

HISTORY_ROUNDS = 100  # how many rounds are kept in the history
SUCCESSORS = 3
HISTORY_REASONS_MAX = 8
"""Reasons of the plan, and remarks on it, that are kept with a round."""
GARBAGE_MAX = 60
ANSWERED_MAX = 20
# docs/internals/decisions/agreement.md#0039-bounded-list-of-spares
SPARES_MAX = 100
"""How many are listed. Every member reads the list, so without a limit its cost would be the square of their number. A
spare that is not listed is treated as a late member: its acknowledgement is not awaited, and it does not lead."""
SPARES_PAUSE_S_PER_MEMBER = 1e-3  # between lists, since each is sent to every member


def handle_plan(commit: CommitState, event: PlanReady | PlanRefused) -> None:
    """Handle the planner's reply; one to an earlier request is ignored."""
    if commit.plan_request is not None and event.id == commit.plan_request[0]:
        commit.plan = event


def commit_round(
    state: MemberState, leadership: Leadership, view: View, decision: SealRound, now: float
) -> Verdict | None:
    """Take the next step towards sealing this roster. Returns the verdict on the job if the planner finds no plan."""
    commit, number = leadership.commit, view.seal.round + 1 if view.seal else 1
    if commit.plan_request is None or commit.plan_request[1:] != (number, decision.roster):
        _ask_for_plan(state, leadership, view, number, decision.roster)
    elif isinstance(commit.plan, PlanRefused):
        return Verdict(kind="failure", exit_code=EXIT_FAILURE, round=number - 1, reason=commit.plan.reason)
    elif isinstance(commit.plan, PlanReady):
        if commit.draft is None or commit.draft.plan is not commit.plan:
            commit.draft, commit.written_count = _make_draft(state, leadership.job, number, view, commit.plan), 0
        _assign(state, leadership, view, commit.draft, decision, now)
    return None


def plan_ahead(state: MemberState, leadership: Leadership, view: View, now: float) -> None:
    """Ask for the plan of the next round while the last one is being stopped.

    It is asked for again if a member that it counts on is lost or leaves. If the roster is still another one when all
    have stopped, or the job ends, that plan is ignored.
    """
    seal, stop, settings, commit = view.seal, view.stop, state.settings, leadership.commit
    if seal is None or stop is None or stop.round != seal.round:
        return
    if commit.plan_request is not None and commit.plan_request[1] == seal.round + 1:
        is_good = all(m in view.members and not view.is_leaving(m) for m in commit.plan_request[2])
        if commit.plan is None or is_good:  # one plan at a time: it may take seconds
            return
    if stop.cause == "failure" and view.budget.count_spent(now, settings.restart_window_s) >= settings.max_restarts:
        return  # the job ends, as far as is known
    chosen = choose_members(view, view.budget, now, settings, state.setup.sizer)
    if chosen.size.world_size:
        _ask_for_plan(state, leadership, view, seal.round + 1, chosen.roster)


def _ask_for_plan(state: MemberState, leadership: Leadership, view: View, number: int, roster: tuple[str, ...]) -> None:
    plan_id = state.requests.make_request_id()
    leadership.commit.plan_request, leadership.commit.plan = (plan_id, number, roster), None
    members = [view.members[member_id] for member_id in roster]
    candidates = tuple(RosterMember(m.member.member_id, m.member.description, m.create_revision) for m in members)
    previous = dict(leadership.seen.contents)
    names = {member_id: view.get_name(member_id) for member_id in previous}
    state.requests.emit(MakePlan(plan_id, number, candidates, previous, names))


def get_offered_port(view: View, member_id: str) -> int:
    """Return the worker port that this member offers for the next round."""
    member, status = view.members[member_id], view.statuses.get(member_id)
    return (status.status.worker_port if status is not None else 0) or member.member.worker_port


def _find_coordinator(view: View, plan: PlanReady) -> str:
    """Return the address of rank 0's node with MASTER_PORT: the user's port, else that node's offer."""
    host, _, port = plan.coordinator.rpartition(":")
    return plan.coordinator if int(port) else f"{host}:{get_offered_port(view, plan.coordinator_id)}"


# docs/internals/decisions/agreement.md#0060-one-write-for-what-is-decided-at-once
def _assign(
    state: MemberState, leadership: Leadership, view: View, draft: Draft, decision: SealRound, now: float
) -> None:
    """Write the assignments and the seal: in one transaction, or after others that hold what does not fit in it.

    After a write without a reply it continues where it was: the same plan has the same token, so a write that arrives
    late is the one that is repeated. With a slow store it would otherwise never finish.
    """
    commit = leadership.commit
    # As old as the decision: a seal written since then must not be replaced.
    still_current, limit = guard_unchanged(state, leadership.job.round), state.settings.operations_per_txn

    def write_next(now: float) -> None:
        left = draft.puts[commit.written_count :]
        if len(left) >= limit or not seal_with(left, now):
            batch = left[: count_fitting(left, limit)]

            def on_done(now: float) -> None:
                commit.written_count += len(batch)
                write_next(now)

            write(state, leadership, "assign", still_current, batch, now, on_done)

    def seal_with(left: tuple[Put, ...], now: float) -> bool:
        answered = _list_answered(state, leadership.job)
        sealing = _list_sealing_writes(state, leadership, view, draft, decision, answered, now)
        writes = (*left, *sealing)
        if left and count_fitting(writes, limit) < len(writes):
            return False

        def on_done(now: float) -> None:
            note_round(leadership.seen, draft.token, draft.assignments)

        _log_seal(state, draft, decision)
        guards = (*still_current, *guard_unchanged(state, leadership.job.spares, *answered))
        write(state, leadership, "seal", guards, writes, now, on_done)
        return True

    write_next(now)


def _make_draft(state: MemberState, job: Keys, number: int, view: View, plan: PlanReady) -> Draft:
    token = state.requests.make_token()
    assignments = {
        member_id: Assignment(round=number, plan_token=token, content=content, node=view.nodes.get(member_id, ""))
        for member_id, content in sorted(plan.assignments.items())
    }
    make_key = job.make_assignment_key
    puts = tuple(
        make_put(state, make_key(number, token, member_id), record) for member_id, record in assignments.items()
    )
    return Draft(number, plan, token, assignments, puts)


def _list_sealing_writes(
    state: MemberState,
    leadership: Leadership,
    view: View,
    draft: Draft,
    decision: SealRound,
    answered: Collection[str],
    now: float,
) -> tuple[Operation, ...]:
    """List the writes of the seal's transaction, without assignments. `answered`: the requests to be deleted."""
    job, number, plan, limit = leadership.job, draft.number, draft.plan, state.settings.operations_per_txn
    leadership.commit.spare_reasons = plan.spare_reasons
    seal = Seal(
        round=number,
        plan_token=draft.token,
        world_size=plan.world_size,
        coordinator=_find_coordinator(view, plan),
        reason=decision.reason,
        successors=choose_successors(view, plan, decision.roster),
    )
    history = RoundHistory(
        round=number,
        world_size=seal.world_size,
        node_count=len(draft.assignments),
        coordinator=seal.coordinator,
        reason=decision.reason.add(*plan.reasons[:HISTORY_REASONS_MAX], *plan.remarks[:HISTORY_REASONS_MAX]),
        began_at=state.compute_wall_time(now),
    )
    needed: tuple[Operation, ...] = (
        make_put(state, job.round, budget.add_to_seal(seal, decision.budget, now)),
        make_put(state, job.make_history_key(number), history),
        make_put(state, job.spares, _make_spares(state, leadership, view, draft.assignments, number, now)),
        *map(Delete, answered),
    )
    return (*needed, *_list_garbage(job, view, number)[: limit - len(needed)])


def _log_seal(state: MemberState, draft: Draft, decision: SealRound) -> None:
    state.requests.log_status(Reason.of("sealed", round=draft.number, why=decision.reason))
    if decision.remark is not None:
        state.requests.log(decision.remark, "same failure")
    for remark in draft.plan.remarks:
        state.requests.log(remark)


# --- spares ---


def update_spares(state: MemberState, leadership: Leadership, view: View, now: float) -> None:
    """Write the list of spares, if it has changed."""
    if view.seal is None:
        return
    job = leadership.job
    spares = _make_spares(state, leadership, view, view.active, view.seal.round, now)
    known = state.cache.read(Spares, job.spares)
    if known is not None and (known.member_ids, known.why) == (spares.member_ids, spares.why):
        return
    if now < leadership.commit.spares_due_at:
        state.requests.wake_by(leadership.commit.spares_due_at)
        return
    leadership.commit.spares_due_at = now + SPARES_PAUSE_S_PER_MEMBER * len(view.members)
    guards = guard_unchanged(state, job.round, job.spares)
    write(state, leadership, "list spares", guards, [make_put(state, job.spares, spares)], now)


def _make_spares(
    state: MemberState, leadership: Leadership, view: View, active: Collection[str], number: int, now: float
) -> Spares:
    """List the members without ranks, and why, in the order in which they joined."""
    quarantines = view.budget.find_quarantines(state.settings)
    known = state.cache.read(Spares, leadership.job.spares)
    reasons: Mapping[str, Reason] = known.why if known is not None else {}
    found: dict[str, Reason] = {}
    late = Reason.of("late", round=number)
    idle = sorted(view.members.keys() - active, key=lambda member_id: view.members[member_id].create_revision)
    for member_id in idle[:SPARES_MAX]:
        quarantine = quarantines.get(view.members[member_id].node)
        if view.is_leaving(member_id):
            found[member_id] = Reason.of("spare-leaves")
        elif quarantine is not None and quarantine.until > now:
            found[member_id] = quarantine.reason
        else:
            found[member_id] = leadership.commit.spare_reasons.get(member_id) or reasons.get(member_id, late)
    distinct: list[Reason] = []
    distinct += [reason for index, reason in enumerate(found.values()) if reason not in [*found.values()][:index]]
    places = tuple(distinct.index(reason) for reason in found.values())
    return Spares(member_ids=tuple(found), reasons=tuple(distinct), reason_places=places)


# --- garbage ---


def _list_garbage(job: Keys, view: View, number: int) -> list[Operation]:
    """List the deletions of keys that are no longer read once round `number` is sealed."""
    garbage: list[Operation] = []
    if number > 2:
        garbage.append(Delete(job.make_assignments_prefix(number - 2), prefix=True))
    if number > HISTORY_ROUNDS:
        garbage.append(Delete(job.make_history_key(number - HISTORY_ROUNDS)))
    stale = [Delete(job.make_status_key(member_id)) for member_id in view.statuses if member_id not in view.members]
    return garbage + stale[:GARBAGE_MAX]


def _list_answered(state: MemberState, job: Keys) -> list[str]:
    """List the requests that were refused and that their requesters have not deleted."""
    names = [item.key for item in state.cache.keys.list_under(job.commands)]
    commands = {name: state.cache.read(Command, name) for name in names}
    found = [name for name, command in commands.items() if command is not None and command.is_answered]
    return found[: min(ANSWERED_MAX, state.settings.operations_per_txn - OPERATIONS_MIN)]


def choose_successors(view: View, plan: PlanReady, roster: tuple[str, ...]) -> tuple[str, ...]:
    """Choose the members to lead if this leader is lost, best first: on other nodes than it and each other.

    The plan's own proposal comes first, since it knows the network; then members with ranks, then spares.
    """
    chosen: list[str] = []
    used_nodes = {view.nodes.get(view.own_id)}
    candidates = (*plan.successors, *(member_id for member_id in roster if member_id in plan.assignments), *roster)
    for member_id in candidates:
        node = view.nodes.get(member_id)
        if member_id in view.members and node not in used_nodes:
            used_nodes.add(node)
            chosen.append(member_id)
    return tuple(chosen[:SUCCESSORS])
