"""How a round is sealed: a plan, its assignments under a fresh token, then the seal that makes them count.

With the seal go the things that follow from it: who stands by as a spare and why, who shall lead if the leader
is lost, what is remembered of the round, and the removal of what nobody will read again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from rendezvous import records
from rendezvous.events import MakePlan, PlanReady, PlanRefused, RosterMember
from rendezvous.leader.guarded_writer import OPERATIONS_PER_TXN, GuardedWriter
from rendezvous.leader.view_builder import ViewBuilder
from rendezvous.policy import budget
from rendezvous.policy.decisions import SealRound
from rendezvous.policy.view import View
from rendezvous.records import Assignment, Command, RoundHistory, Seal, Spares
from rendezvous.stores.contract import Compare, Delete, Operation, Put
from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rendezvous.machine import MemberMachine

HISTORY_ROUNDS = 100  # so many rounds are remembered
SUCCESSORS = 3
REASONS_LENGTH_MAX = 2000
GARBAGE_MAX = 60  # the seal, the spares and the history have their places in the transaction too
ANSWERED_MAX = 20
SPARES_MAX = 100
"""So many are listed. Every member reads the list, so without a limit its cost would be the square of their number. Who
is not listed is to the others what a late member is: nobody waits for its word, and it does not lead."""
SPARES_PAUSE_S_PER_MEMBER = 1e-3  # between lists, each of which goes to every member: they take a part of its time


class _Draft(NamedTuple):
    """What is made of a plan: its token, the assignments, and what writes them."""

    plan: PlanReady
    token: str
    assignments: Mapping[str, Assignment]
    puts: tuple[Put, ...]


class RoundCommit:
    """`refuse` ends the job with a reason when the planner finds no plan."""

    def __init__(
        self,
        member: MemberMachine,
        job: records.Keys,
        writer: GuardedWriter,
        view_builder: ViewBuilder,
        refuse: Callable[[int, str, float], None],
    ) -> None:
        self._member = member
        self._job = job
        self._writer = writer
        self._view_builder = view_builder
        self._refuse = refuse
        self._plan_request: tuple[int, int, tuple[str, ...]] | None = None  # id, round, roster
        self._plan: PlanReady | PlanRefused | None = None
        self._draft: _Draft | None = None
        self._written_count = 0  # of its puts, those that are known to have happened
        self._spare_reasons: Mapping[str, str] = {}
        self._spares_due_at = -math.inf  # when the next list of spares may be written

    def take_plan(self, event: PlanReady | PlanRefused) -> None:
        if self._plan_request is not None and event.id == self._plan_request[0]:
            self._plan = event

    def commit(self, view: View, decision: SealRound, now: float) -> None:
        """Take the next step towards sealing this roster."""
        round = view.seal.round + 1 if view.seal else 1
        if self._plan_request is None or self._plan_request[1:] != (round, decision.roster):
            self._ask_for_plan(view, round, decision.roster)
        elif isinstance(self._plan, PlanRefused):
            self._refuse(round - 1, self._plan.reason, now)
        elif isinstance(self._plan, PlanReady):
            self._assign(round, view, self._plan, decision, now)

    def _ask_for_plan(self, view: View, round: int, roster: tuple[str, ...]) -> None:
        plan_id = self._member.make_request_id()
        self._plan_request, self._plan = (plan_id, round, roster), None
        candidates = tuple(self._make_roster_member(view, member_id) for member_id in roster)
        previous = dict(self._view_builder.contents)
        names = {member_id: view.get_name(member_id) for member_id in previous}
        self._member.emit(MakePlan(plan_id, round, candidates, previous, names))

    def _make_roster_member(self, view: View, member_id: str) -> RosterMember:
        member, status = view.members[member_id], view.statuses.get(member_id)
        port = (status.status.worker_port if status is not None else 0) or member.member.worker_port
        return RosterMember(member_id, member.member.description, port, member.create_revision)

    def _assign(self, round: int, view: View, plan: PlanReady, decision: SealRound, now: float) -> None:
        """Write the assignments in batches, one at a time, then the seal.

        After a write that was not answered it goes on where it was: the same plan has the same token, so that what was
        written late is what is written again. With a slow store there would be no end otherwise.
        """
        if self._draft is None or self._draft.plan is not plan:
            self._draft, self._written_count = self._make_draft(round, view, plan), 0
        made = self._draft
        still_current = self._writer.guard_unchanged(self._job.round)

        def next_batch(now: float) -> None:
            batch = made.puts[self._written_count : self._written_count + OPERATIONS_PER_TXN]

            def on_done(now: float) -> None:
                self._written_count += len(batch)
                next_batch(now)

            if batch:
                self._writer.write(f"assign round {round}", still_current, batch, now, on_done)
            else:
                seal = Seal(
                    round=round,
                    plan_token=made.token,
                    world_size=plan.world_size,
                    coordinator=plan.coordinator,
                    reason=decision.reason[:REASONS_LENGTH_MAX],
                    successors=choose_successors(view, plan, decision.roster),
                    unknown=view.seal.unknown if view.seal else {},
                )
                self._put_seal(seal, view, plan, made.assignments, decision, still_current, now)

        next_batch(now)

    def _make_draft(self, round: int, view: View, plan: PlanReady) -> _Draft:
        token = self._member.make_token()
        made = {
            member_id: Assignment(round=round, plan_token=token, content=content, node=view.nodes.get(member_id, ""))
            for member_id, content in sorted(plan.assignments.items())
        }
        name = self._job.make_assignment_key
        puts = tuple(self._writer.make_put(name(round, token, member_id), one) for member_id, one in made.items())
        return _Draft(plan, token, made, puts)

    def _put_seal(
        self,
        seal: Seal,
        view: View,
        plan: PlanReady,
        assignments: Mapping[str, Assignment],
        decision: SealRound,
        still_current: tuple[Compare, ...],
        now: float,
    ) -> None:
        """`still_current` is as old as the decision: what has been sealed since then must not be sealed over."""
        self._spare_reasons = plan.spare_reasons
        spares = self._make_spares(view, assignments, seal.round, now)
        past = RoundHistory(
            round=seal.round,
            world_size=seal.world_size,
            node_count=len(assignments),
            coordinator=seal.coordinator,
            reason="; ".join(dict.fromkeys((decision.reason, *plan.reasons, *plan.remarks)))[:REASONS_LENGTH_MAX],
        )
        writes: tuple[Operation, ...] = (
            self._writer.make_put(self._job.round, budget.add_to_seal(seal, decision.budget, now)),
            self._writer.make_put(self._job.make_history_key(seal.round), past),
            self._writer.make_put(self._job.spares, spares),
            *self._list_garbage(view, seal.round),
        )

        def on_done(now: float) -> None:
            self._view_builder.note_round(seal.plan_token, assignments)

        self._member.log_status(f"round {seal.round}: {decision.reason}")
        for remark in plan.remarks:
            self._member.log(remark)
        answered = self._list_answered()
        writes = (*writes, *map(Delete, answered))
        guards = (*still_current, *self._writer.guard_unchanged(self._job.spares, *answered))
        self._writer.write(f"seal round {seal.round}", guards, writes, now, on_done)

    # --- spares ---

    def update_spares(self, view: View, now: float) -> None:
        """Write who stands by now, if that has changed."""
        if view.seal is None:
            return
        spares = self._make_spares(view, view.active, view.seal.round, now)
        known = self._member.read(Spares, self._job.spares)
        if known is not None and (known.member_ids, known.why) == (spares.member_ids, spares.why):
            return
        if now < self._spares_due_at:
            self._member.wake_by(self._spares_due_at)
            return
        self._spares_due_at = now + SPARES_PAUSE_S_PER_MEMBER * len(view.members)
        guards = self._writer.guard_unchanged(self._job.round, self._job.spares)
        self._writer.write("list the spares", guards, [self._writer.make_put(self._job.spares, spares)], now)

    def _make_spares(self, view: View, active: Collection[str], round: int, now: float) -> Spares:
        """Those without ranks, and why: who came first first."""
        benches = view.budget.find_quarantines(self._member.settings)
        known = self._member.read(Spares, self._job.spares)
        reasons = known.why if known is not None else {}
        found: dict[str, str] = {}
        idle = sorted(view.members.keys() - active, key=lambda member_id: view.members[member_id].create_revision)
        for member_id in idle[:SPARES_MAX]:
            bench = benches.get(view.members[member_id].node)
            if view.is_leaving(member_id):
                found[member_id] = "leaving"
            elif bench is not None and bench.until > now:
                found[member_id] = bench.reason
            else:
                late = f"came after round {round} was sealed"
                found[member_id] = self._spare_reasons.get(member_id) or reasons.get(member_id, late)
        places = {reason: at for at, reason in enumerate(dict.fromkeys(found.values()))}
        return Spares(
            member_ids=tuple(found),
            reasons=tuple(places),
            reason_places=tuple(places[reason] for reason in found.values()),
        )

    # --- litter ---

    def _list_garbage(self, view: View, round: int) -> list[Operation]:
        """What nobody will read again once `round` is sealed."""
        job = self._job
        gone = [Delete(job.make_status_key(member_id)) for member_id in view.statuses if member_id not in view.members]
        litter: list[Operation] = list(gone[:GARBAGE_MAX])
        if round > 2:
            litter.append(Delete(job.make_assignments_prefix(round - 2), prefix=True))
        if round > HISTORY_ROUNDS:
            litter.append(Delete(job.make_history_key(round - HISTORY_ROUNDS)))
        return litter

    def _list_answered(self) -> list[str]:
        """Requests that were refused, and not taken away by whoever made them."""
        names = [item.key for item in self._member.cache.list_under(self._job.commands)]
        commands = {name: self._member.read(Command, name) for name in names}
        return [name for name, command in commands.items() if command is not None and command.answer][:ANSWERED_MAX]


def choose_successors(view: View, plan: PlanReady, roster: tuple[str, ...]) -> tuple[str, ...]:
    """Who leads when this leader is lost, best first: on other nodes than it and each other.

    The plan's own proposal comes first, since it knows the network; then who has ranks, then the spares.
    """
    chosen: list[str] = []
    taken = {view.nodes.get(view.own_id)}
    ranked = (*plan.successors, *(m for m in roster if m in plan.assignments), *roster)
    for member_id in ranked:
        node = view.nodes.get(member_id)
        if member_id in view.members and node not in taken:
            taken.add(node)
            chosen.append(member_id)
    return tuple(chosen[:SUCCESSORS])
