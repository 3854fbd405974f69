"""Whether an agent may join the job that it finds, and what becomes of a job in whose place another one is opened.

A job that has failed or was stopped is over. Once no member of it is left, one of the agents opens the next job in its
place by a compare on `current`, and the others join that one. If an external system counts attempts (a job set, a batch
system), the job key begins with that number. An agent of an earlier attempt is refused. One of a later attempt asks the
members that it finds to end, as a person does who stops the job, and waits until none is left; if they have ended
without a verdict, it writes one, so that no late agent of that attempt can lead any more.

Imported only where there is a job already, and it is not just the one that was expected.
"""

from __future__ import annotations

from collections.abc import Callable

from rendezvous import __version__, records
from rendezvous.errors import EXIT_TEMPORARY, EXIT_USAGE, EXIT_USELESS, RecordError, VersionError
from rendezvous.events import Txn
from rendezvous.reasons import Reason
from rendezvous.records import Command, Keys, Member, Seal, Spec, Verdict
from rendezvous.state.intents import Finish
from rendezvous.state.state import MemberState
from rendezvous.stores.contract import Compare, Get, KeyValue, Put, TxnResult

OpenJob = Callable[[MemberState, float], None]


def may_join(state: MemberState, now: float, open_job: OpenJob) -> bool:
    """Return whether this agent may join: the job has not ended, and is the one that this agent was started for.

    `open_job`: called once nothing is left of a job in whose place the next one is to be opened.
    """
    setup, cache = state.setup, state.cache
    was_member = state.job.root == state.membership.joined_root
    their_attempt = state.job.attempt
    if setup.attempt is not None and their_attempt > setup.attempt:  # what counts attempts has given this one up
        reason = Reason.of("earlier-attempt", attempt=setup.attempt, run=setup.run_id, theirs=their_attempt)
        state.ask(Finish(EXIT_USAGE, reason))
        return False
    is_earlier = their_attempt < (setup.attempt or 0) and not was_member
    item = cache.keys.get(state.job.spec) if not is_earlier else None
    try:  # before anything else of the job: what that means is known to its version alone
        spec = records.decode(Spec, item.value, item.key, cache.secret) if item is not None else None
    except VersionError as error:
        node = setup.node.node_name
        reason = Reason.of("other-version", run=setup.run_id, theirs=error.version, node=node, ours=__version__)
        state.ask(Finish(EXIT_USAGE, reason))
        return False
    except RecordError as error:  # with a secret that this agent does not know
        state.ask(Finish(EXIT_USAGE, Reason.of("unreadable", error=str(error))))
        return False
    verdict = cache.read(Verdict, state.job.verdict)
    reopened = {"next": ("failure", "stopped"), "rerun": ("success", "failure", "stopped")}
    begins_anew = verdict is not None and verdict.kind in reopened.get(state.settings.on_finished, ())
    if is_earlier or (begins_anew and not was_member):  # a member ends as its job did
        _follow(state, None if is_earlier else verdict, now, open_job)
        return False
    difference = None
    has_other_arguments = spec is not None and spec.arguments_digest != setup.spec.arguments_digest
    if spec is not None and spec != setup.spec:
        from rendezvous.member import refusal

        is_served = setup.store_owner is not None
        difference = refusal.find_difference(spec, setup.spec, setup.run_id, is_served=is_served)
    if difference is not None:
        state.ask(Finish(EXIT_USAGE, difference))
    elif has_other_arguments and verdict is not None and verdict.kind == "success" and not was_member:
        # Its exit code would say that this command has succeeded, too.
        reason = Reason.of("already-ended-otherwise", run=setup.run_id, why=verdict.reason)
        state.ask(Finish(EXIT_USAGE, reason))
    elif verdict is not None:
        ended = Reason.of("already-ended", run=setup.run_id, why=verdict.reason)
        if not was_member and verdict.kind == "success":  # which an agent does not report otherwise
            state.requests.log(ended, setting="on_finished")
        state.ask(Finish(verdict.exit_code, verdict.reason if was_member else ended, verdict))
    elif state.is_drained:
        reason = Reason.of("drained-from-run", node=setup.node.node_name, run=setup.run_id)
        state.ask(Finish(EXIT_TEMPORARY, reason))
    else:
        if has_other_arguments and not state.membership.has_warned:
            state.membership.has_warned = True
            state.requests.log(Reason.of("other-arguments", run=setup.run_id))
        return True
    return False


# docs/internals/decisions/agreement.md#0066-a-later-attempt-ends-the-earlier
def _follow(state: MemberState, verdict: Verdict | None, now: float, open_job: OpenJob) -> None:
    """Open the next job as soon as no member of the last one is left.

    `verdict`: how that one has ended; None if it is an earlier attempt, whose members are asked to end.
    """
    job, membership, settings = state.job, state.membership, state.settings
    has_ended = state.cache.keys.get(job.verdict) is not None

    def on_reply(answer: TxnResult, now: float) -> None:
        members = answer.found[0].items
        if not members and has_ended:
            open_job(state, now)
            return
        membership.is_inspected = False
        if not members:
            _end_attempt(state, now)
            return
        state.requests.pause("join", now)
        if verdict is not None:
            problem = Reason.of("finished-job-remains", why=verdict.reason)
            awaited = Reason.of("awaiting-finished-job", why=verdict.reason)
        else:
            nodes = _refer_to(state, members)
            problem = Reason.of("attempt-remains", attempt=job.attempt, nodes=nodes)
            awaited = Reason.of("awaiting-attempt", attempt=job.attempt, nodes=nodes)
        membership.join_problem = problem
        until = membership.join_since + settings.start_timeout_s
        state.requests.log_status(awaited, until=until, setting="start_timeout_s")

    list_members = Get(job.members, prefix=True)
    request = Txn((), (list_members,))
    if not has_ended:
        setup = state.setup
        guards, ask = make_request(job, setup.attempt or 0, setup.node.node_name, state.cache.secret)
        request = Txn(guards, (ask, list_members), (list_members,))
    state.requests.request("join", "list members of finished job", request, on_reply, now)


def make_request(job: Keys, attempt: int, node: str, secret: bytes) -> tuple[tuple[Compare, ...], Put]:
    """Make what asks the leader of an earlier attempt to end it, once for all agents of this one, and its guards."""
    key = job.make_command_key(f"attempt-{attempt}")
    ask = Command(kind="replace", target=str(attempt), by=node)
    guards = (Compare(key, "mod", "=", 0), Compare(job.verdict, "create", "=", 0))
    return guards, Put(key, records.encode(ask, key, secret))


def _refer_to(state: MemberState, members: tuple[KeyValue, ...]) -> Reason:
    """Return the nodes of these members as a part of a reason."""
    found = [state.cache.decode(Member, item) for item in members]
    names = sorted(member.node_name for member in found if member is not None)
    return Reason.of("nodes", names=tuple(names[:4]), count=len(members))


def _end_attempt(state: MemberState, now: float) -> None:
    """Write how an earlier attempt has ended, of which no member is left; from then on no agent leads it."""
    job, cache = state.job, state.cache
    seal = cache.read(Seal, job.round)
    reason = Reason.of("replaced", attempt=str(state.setup.attempt), node=state.setup.node.node_name)
    ended = Verdict(kind="stopped", exit_code=EXIT_USELESS, round=seal.round if seal else 0, reason=reason)
    guards = (
        Compare(job.verdict, "create", "=", 0),
        Compare(job.leader, "mod", "=", 0),
        *(Compare(key, "mod", "=", cache.keys.get_revision(key)) for key in (job.round, job.stop)),
    )

    def on_reply(answer: TxnResult, now: float) -> None:
        if not answer.succeeded:  # somebody has joined, or has written it
            state.requests.pause("join", now)

    request = Txn(guards, (Put(job.verdict, cache.encode(ended, job.verdict)),))
    state.requests.request("join", "end earlier attempt", request, on_reply, now)
