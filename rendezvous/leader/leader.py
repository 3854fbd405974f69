"""What the leader does in addition to a member: observe all members, decide, and write.

It observes, decides on one thing, requests one write, and observes again when that is done or something has changed.
With a thousand members each observation takes milliseconds and changes arrive by the thousand, so changes that are
close together are observed together, and the cost of a round stays linear in members.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from rendezvous import events
from rendezvous.events import PlanReady, PlanRefused, Txn
from rendezvous.leader import commit
from rendezvous.leader.guarded_write import guard_unchanged, make_put, write
from rendezvous.leader.observe import note_fenced, note_round, observe
from rendezvous.policy import decide
from rendezvous.policy.decisions import ApplyCommand, Decision, EndJob, EndRound, Fence, QuitJob, SealRound, Wait
from rendezvous.policy.view import StatusView, View
from rendezvous.reasons import Reason
from rendezvous.records import Assignment, Command, Drain, Keys, RoundHistory, Seal, Status, Stop, Verdict
from rendezvous.state.state import Leadership, MemberState, StatusReport
from rendezvous.stores.contract import Delete, Get, Lease, Operation, Put, TxnResult


def advance(state: MemberState, leadership: Leadership, now: float) -> None:
    """Observe, decide, and request one write at most; while one is in progress nothing is decided."""
    if state.requests.is_busy("lead"):
        leadership.observe_at = now  # to handle its reply at once
        return
    leadership.carried_status = None
    if now < leadership.observe_at:
        state.requests.wake_by(leadership.observe_at)
        return
    seal = state.cache.read(Seal, leadership.job.round)
    if not _has_read_all(state, leadership, seal, now):
        _load(state, leadership, seal, now)
        return
    if _is_unreadable(state, leadership):
        return
    if _is_removed(state, leadership):
        end = state.make_removal(state.cache.keys.get(state.setup.current_key))
        number = seal.round if seal else 0
        removed = Verdict(kind="stopped", exit_code=end.exit_code, round=number, reason=end.reason)
        _end_job(state, leadership, EndJob(removed), now)
        return
    view = observe(state, leadership, now)
    # docs/internals/decisions/agreement.md#0015-pacing-of-the-leaders-evaluations
    leadership.observe_at = now + state.settings.observe_pause_s * len(view.members)
    _pass_on(state, leadership, view)
    _carry_out(state, leadership, decide.decide(view, now, state.settings, state.setup.sizer), view, now)


def end_own_round(state: MemberState, leadership: Leadership, report: StatusReport | None, now: float) -> bool:
    """End the round for the failure that `report` tells of, and write both at once; return whether that is under way.

    `report`: this member's own status, if the store does not have it. If it is no failure, or does not end the round,
    it is to be written alone, and counts when it has been.
    """
    if report is None or state.requests.is_busy("lead") or not _is_news(state, leadership, report):
        return False
    is_ready = _has_read_all(state, leadership, state.cache.read(Seal, leadership.job.round), now)
    if not is_ready or _is_unreadable(state, leadership) or _is_removed(state, leadership):
        return False
    leadership.judged_status = report.status
    view = observe(state, leadership, now)
    leaving_at = leadership.seen.leaving_at.get(state.member_id, math.inf)
    statuses = {**view.statuses, state.member_id: StatusView(report.status, 0, now, leaving_at)}
    decision = decide.decide(replace(view, statuses=statuses), now, state.settings, state.setup.sizer)
    if not isinstance(decision, EndRound):
        return False
    _end_round(state, leadership, decision, now, report)
    leadership.carried_status = report.status
    return state.requests.is_busy("lead")  # not if it pauses after a failed request


def _is_news(state: MemberState, leadership: Leadership, report: StatusReport) -> bool:
    """Return whether the report is of a failure that the store does not know, and was not judged before."""
    stored, status = state.cache.read(Status, report.put.key), report.status
    is_known = stored is not None and (stored.plan_token, stored.outcome) == (status.plan_token, "failed")
    return status.outcome == "failed" and not is_known and status != leadership.judged_status


def handle_answer(leadership: Leadership, token: str, text: str) -> None:
    """Handle the program's answer to a request: observe again at once."""
    leadership.observe_at = float("-inf")
    leadership.answers[token] = text


def _pass_on(state: MemberState, leadership: Leadership, view: View) -> None:
    """Pass on the requests that the program above answers, each once, and forget those that are gone."""
    for token in leadership.answers.keys() - view.commands.keys():
        del leadership.answers[token]
    for token, command in view.commands.items():
        if command.kind in decide.PASSED_ON and token not in leadership.answers:
            leadership.answers[token] = ""
            state.requests.emit(events.PassOn(token, command.target))


def handle_plan(leadership: Leadership, event: PlanReady | PlanRefused) -> None:
    """Handle the planner's reply: observe again at once."""
    leadership.observe_at = float("-inf")
    commit.handle_plan(leadership.commit, event)


def _carry_out(state: MemberState, leadership: Leadership, decision: Decision, view: View, now: float) -> None:
    match decision:
        case Wait():
            _wait(state, leadership, decision, now)
            commit.update_spares(state, leadership, view, now)
            commit.plan_ahead(state, leadership, view, now)
        case EndRound():
            _end_round(state, leadership, decision, now)
        case SealRound():
            refused = commit.commit_round(state, leadership, view, decision, now)
            if refused is not None:  # the planner finds no plan for a roster that should make a world
                _end_job(state, leadership, EndJob(refused), now)
        case Fence():
            _fence(state, leadership, decision, now)
        case EndJob():
            _end_job(state, leadership, decision, now)
        case ApplyCommand():
            _apply_command(state, leadership, decision, now)
        case QuitJob():
            state.ask(decision)


def _wait(state: MemberState, leadership: Leadership, decision: Wait, now: float) -> None:
    """Log the reason of the wait when it changes, with the time left as of then."""
    if leadership.waiting is None or decision.reason != leadership.waiting[0]:
        left = [Reason.of("giving-up", in_s=round(decision.until - now))] if decision.is_limit else []
        leadership.waiting = (decision.reason, decision.reason.add(*left))
    state.requests.log_status(
        leadership.waiting[1], decision.rule, decision.limit_at or decision.until, decision.setting
    )
    state.requests.wake_by(decision.until)


# --- reading everything ---


def _load(state: MemberState, leadership: Leadership, seal: Seal | None, now: float) -> None:
    """Read all keys of the job, and the assignments of the sealed round unless this leader wrote them itself."""
    job, cache = leadership.job, state.cache
    followed = (state.setup.current_key, job.spec, job.members, job.statuses)
    names = [*followed, job.control]
    if seal is not None:
        names += [job.history, job.make_assignments_prefix(seal.round, seal.plan_token)]

    def on_reply(answer: TxnResult, now: float) -> None:
        found = dict(zip(names, answer.found, strict=True))
        if seal is not None:
            items = found.pop(names[-1]).items
            decoded = {item.key.rpartition("/")[2]: cache.decode(Assignment, item) for item in items}
            assignments = {member_id: record for member_id, record in decoded.items() if record is not None}
            note_round(leadership.seen, seal.plan_token, assignments)
        for name, items_found in found.items():
            cache.keys.load(items_found, name, now)
        if not leadership.is_watching:
            leadership.is_watching = True
            for name in followed:
                cache.watch(name, answer.revision + 1)
        leadership.is_loaded, leadership.loaded_at = True, state.requests.sent_at

    reads = tuple(Get(name, prefix=name.endswith("/")) for name in names)
    state.requests.request("lead", "read all", Txn((), reads), on_reply, now)


def _has_read_all(state: MemberState, leadership: Leadership, seal: Seal | None, now: float) -> bool:
    """Return whether all keys were read, and the assignments of the sealed round."""
    is_other_round = seal is not None and seal.plan_token != leadership.seen.round_token
    # A member that registers again after an outage is in the store by then, though a watch may not show it yet.
    is_before_return = leadership.loaded_at < state.outage.no_omission_before <= now
    return leadership.is_loaded and not is_other_round and not is_before_return


def _is_removed(state: MemberState, leadership: Leadership) -> bool:
    keys = state.cache.keys
    return state.membership.is_removed(keys.get(state.setup.current_key), keys.get(leadership.job.spec))


def _is_unreadable(state: MemberState, leadership: Leadership) -> bool:
    """Return whether seal, stop or verdict exists but cannot be read: then nothing is decided."""
    job, is_readable = leadership.job, state.cache.is_readable
    if is_readable(Seal, job.round) and is_readable(Stop, job.stop) and is_readable(Verdict, job.verdict):
        leadership.has_lost_record = False
        return False
    if not leadership.has_lost_record:
        leadership.has_lost_record = True
        state.requests.log(Reason.of("decision-unreadable"))
    return True


# --- writing ---


def _end_history(
    state: MemberState, leadership: Leadership, stop: Stop, now: float, report: StatusReport | None = None
) -> list[Operation]:
    """Return the write that completes the history of a round that ends so. `report`: a failure written with it."""
    job = leadership.job
    key = job.make_history_key(stop.round)
    history = state.cache.read(RoundHistory, key)
    is_sealed = state.cache.keys.get(job.round) is not None  # not if the job was just removed
    if history is None or history.ended or not is_sealed:
        return []
    first = find_first_failure(state, job, stop.round, report) if stop.cause in ("failure", "end") else None
    ended = replace(
        history,
        ended=stop.reason,
        ran_s=_measure_round(state, job, now),
        ended_at=state.compute_wall_time(now),
        saved_at=max(0.0, state.compute_wall_time(leadership.seen.saved_at)),
        cause=stop.cause,
        failed_rank=-1 if first is None else first.rank,
        failure_class=None if first is None else first.failure_class,
        nodes=stop.nodes,
    )
    return [make_put(state, key, ended)]


def find_first_failure(state: MemberState, job: Keys, number: int, report: StatusReport | None = None) -> Status | None:
    """Return the status that tells of the first failure in the round; None if none has failed."""
    items = state.cache.keys.list_under(job.statuses)
    found = [(item.mod_revision, status) for item in items if (status := state.cache.read(Status, item.key))]
    failed: list[tuple[float, int, Status]] = [
        (status.failed_revision or revision, status.rank, status)
        for revision, status in found
        if status.outcome == "failed" and status.round == number
    ]
    if report is not None:
        failed.append((math.inf, report.status.rank, report.status))
    return min(failed, key=lambda one: one[:2])[2] if failed else None


def _measure_round(state: MemberState, job: Keys, now: float) -> float:
    """Return how long the sealed round has run, in seconds; milliseconds are enough for a record."""
    return round(now - state.cache.keys.get_first_seen_at(job.round), 3)


def _end_round(
    state: MemberState, leadership: Leadership, decision: EndRound, now: float, report: StatusReport | None = None
) -> None:
    """Write the stop, and before it the own failure that `report` tells of."""
    job = leadership.job
    seal = state.cache.read(Seal, job.round)
    assert seal is not None
    stop = Stop(
        round=seal.round,
        reason=decision.reason,
        mode=decision.mode,
        ran_s=_measure_round(state, job, now),
        cause=decision.cause,
        nodes=decision.nodes,
    )
    writes: list[Operation] = [make_put(state, job.stop, stop), *_end_history(state, leadership, stop, now, report)]
    guards = guard_unchanged(state, job.round, job.stop)
    if decision.member_id:  # a success may have been written that no watch has delivered yet
        guards += guard_unchanged(state, job.make_status_key(decision.member_id))
    if report is not None:
        writes.insert(0, report.put)
        guards += (report.guard,)
    state.requests.log_status(decision.reason, decision.rule)
    write(state, leadership, "stop", guards, writes, now)


def _fence(state: MemberState, leadership: Leadership, decision: Fence, now: float) -> None:
    """Delete members' keys, guarded: each may have registered again or left."""
    member_ids = decision.member_ids[: (state.settings.operations_per_txn - 3) // 2]  # each needs two comparisons
    names = [leadership.job.make_member_key(member_id) for member_id in member_ids]
    statuses = [leadership.job.make_status_key(member_id) for member_id in member_ids]

    def on_done(now: float) -> None:
        note_fenced(leadership.seen, member_ids, is_confirmed_gone=decision.is_confirmed_gone)

    state.requests.log_status(decision.reason, decision.rule)
    # A member may have reported a success that no watch has delivered yet: that must not be run again. Once its key is
    # deleted a member writes nothing.
    guards = guard_unchanged(state, *names, *statuses)
    write(state, leadership, "fence", guards, [Delete(name) for name in names], now, on_done)


def _apply_command(state: MemberState, leadership: Leadership, decision: ApplyCommand, now: float) -> None:
    """Do what a person requested and delete the request, or write the answer to it."""
    job = leadership.job
    command_key = job.make_command_key(decision.token)
    command, item = state.cache.read(Command, command_key), state.cache.keys.get(command_key)
    assert command is not None
    assert item is not None
    drain_key = job.make_drain_key(decision.drain or decision.undrain)
    names = [command_key, drain_key]
    writes: list[Operation] = [Delete(command_key), Delete(drain_key)]
    answered = replace(command, refused=decision.refused, answer=decision.answer)
    if decision.refused is not None:
        names, writes = [command_key], [make_put(state, command_key, answered, item.lease)]
    elif decision.answer:
        answer_key = job.make_answer_key(decision.token)
        names, writes = [command_key], [Delete(command_key), make_put(state, answer_key, answered, item.lease)]
    elif decision.drain:
        writes = [Delete(command_key), make_put(state, drain_key, Drain(node_name=decision.drain))]
    write(state, leadership, "answer", guard_unchanged(state, *names), writes, now)


# docs/internals/decisions/agreement.md#0016-expiry-of-the-job-name-with-its-verdict
def _end_job(state: MemberState, leadership: Leadership, decision: EndJob, now: float) -> None:
    """Write the verdict on a lease of its own, if what was decided on is unchanged."""
    if not _has_verdict_lease(state, leadership, now):
        return
    job, current_key = leadership.job, state.setup.current_key
    verdict = replace(decision.verdict, ended_at=state.compute_wall_time(now))
    current = state.cache.keys.get(current_key)
    names = [job.round, job.stop, current_key]
    writes: list[Operation] = [make_put(state, job.verdict, verdict, leadership.verdict_lease)]
    # The job's name expires with the verdict, or a later run under this run id would find a job that has not ended.
    if current is not None and current.value == job.name.encode():
        writes.append(Put(current_key, current.value, leadership.verdict_lease))
    if decision.token:
        names.append(job.make_command_key(decision.token))
        writes.append(Delete(names[-1]))
    end = Stop(round=verdict.round, reason=verdict.reason, mode="kill", cause="end")  # for the history alone
    writes += _end_history(state, leadership, end, now)
    write(state, leadership, "end job", guard_unchanged(state, *names), writes, now)


def _has_verdict_lease(state: MemberState, leadership: Leadership, now: float) -> bool:
    """Return whether there is a lease for the verdict; else request it."""
    settings = state.settings
    # One that was granted long ago, for a conclusion that was dropped, is replaced.
    if now >= leadership.verdict_lease_since + max(settings.keep_finished_s / 2, settings.write_limit_s):
        leadership.verdict_lease, leadership.verdict_lease_since = state.requests.make_lease_id(), now
        leadership.is_verdict_lease_granted = False

    # No verdict is written when it comes: a slow store takes seconds for it, and a node that is lost meanwhile may have
    # to be waited for. So the leader decides anew.
    def on_reply(answer: Lease, now: float) -> None:
        leadership.is_verdict_lease_granted = True

    if not leadership.is_verdict_lease_granted:
        grant = events.Grant(settings.keep_finished_s, leadership.verdict_lease)
        state.requests.request("lead", "grant verdict lease", grant, on_reply, now)
    return leadership.is_verdict_lease_granted
