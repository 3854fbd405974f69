"""What people read of a reason: one sentence for each kind, and a hint for some.

This is the only place with the English of the agreement's reasons, and it is imported when a sentence is needed: a job
that starts well on one machine needs none. A sentence has no full stop, so that it can be a part of another one.
Kinds whose names have a slash are the launcher's, in launcher/model/sentences.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rendezvous.reasons import Reason, Value
from rendezvous.records import name_own_run

Sentence = str | Callable[..., str]
"""A template with the names of the kind's values, or a function of them; in both, a reason among them is its text."""
Find = Callable[[str], Sentence | None]


def describe(reason: Reason, find: Find | None = None) -> str:
    """Return the sentence for this reason.

    `find`: returns the sentence of a kind, None if there is none. A kind without a sentence, or with other values than
    its sentence has, comes from another program: it is shown as it is.
    """
    find = find or SENTENCES.get
    return "; ".join((_describe(reason, find), *(describe(one, find) for one in reason.also)))


def give_hint(reason: Reason, find: Find | None = None) -> str:
    """Return what the user can do; "" if nothing is known. `find`: as for `describe`."""
    return _fill((find or HINTS.get)(reason.kind) or "", reason.values) or ""


def _describe(reason: Reason, find: Find) -> str:
    values = {name: _make_text(name, value, find) for name, value in reason.values.items()}
    sentence = find(reason.kind)
    text = _fill(sentence, values) if sentence is not None else None
    return text if isinstance(text, str) else str(Reason(reason.kind, reason.values))  # some return a value as it is


def _make_text(name: str, value: Value, find: Find) -> Value:
    if isinstance(value, Reason):
        return describe(value, find)
    return name_own_run(value) if name == "run" and isinstance(value, str) else value


def _fill(sentence: Sentence, values: Mapping[str, Value]) -> str | None:
    """Return the sentence with these values; None if they do not fit: any program can write to the store."""
    try:
        if callable(sentence):
            return sentence(**values)
        return sentence.format(**{name: _join(value) for name, value in values.items()})
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None


def _join(value: Value) -> Value:
    return ", ".join(value) if isinstance(value, tuple) else value


def _name_nodes(names: tuple[str, ...], count: int) -> str:
    noun, more = f"node{'s' * (count != 1)}", f" and {count - len(names)} more" if count > len(names) else ""
    return f"{noun} {', '.join(names)}{more}" if names else f"{count} {noun}"


def _in(round: int) -> str:
    return f" in round {round}" if round else ""


def _explain_quarantine(cause: str, times: int, window_s: float, duration_s: float) -> str:
    what = {"losses": "lost", "failures": "its workers were the first to fail", "blame": "blamed by its workers"}[cause]
    often = "once" if times == 1 else f"{times} times"
    return f"{what} {often} within {window_s:g} s, quarantined for {duration_s:g} s"


def _explain_regress(round: int, is_stopped: bool, had_round: int, was_stopped: bool) -> str:
    state, former = "stopped" if is_stopped else "running", "stopped" if was_stopped else "running"
    return f"its last round is {round} ({state}), but was {had_round} ({former})"


SENTENCES: Mapping[str, Sentence] = {
    # --- rounds ---
    "nodes": _name_nodes,
    "running": lambda round, ranks, is_spare: (
        f"round {round} runs {ranks} rank{'s' * (ranks != 1)}" + ("; this node is a spare" if is_spare else "")
    ),
    "spare": "round {round} runs without this node, which is a spare",
    "sealed": "round {round}: {why}",
    "all-succeeded": "all workers succeeded",
    "gone": "{nodes} gone: no process listens there any more",
    "lost": "{nodes} lost in round {round}",
    "isolated": lambda nodes, for_s, round: (
        f"{nodes} cut off: store reachable, but no peer for {for_s:g} s{_in(round)}"
    ),
    "leader-isolated": lambda node, reached, others, round: (
        f"{node} leads, but reaches {f'only {reached} of {others}' if reached else 'no'} other nodes{_in(round)}"
    ),
    "leader-leaves": "this node leaves, and another one takes over",
    "failed": "a worker failed on {nodes} in round {round}",
    "failed-while-leaving": "{leaving} leaving, and {why}",
    "leaving": "{nodes} leaving in round {round}",
    "gathering-departures": "waiting for more nodes to leave round {round}",
    "stopping": "stopping round {round} ({why}): waiting for {nodes}",
    "not-stopped": "{nodes} did not stop round {round} in time",
    "not-stopped-here": "this node did not stop round {round} in time",
    "round-awaits-return": "waiting for {nodes} to register again after a store outage in round {round}",
    "next-round-awaits-return": "waiting for {nodes} to register again after a store outage before the next round",
    "next-round-awaits-unaware": (
        "waiting before the next round: {nodes} lost membership while connected, and workers there may still be running"
    ),
    "stop-awaits-unaware": (
        "waiting before the job is stopped: {nodes} lost membership while connected, and workers there may still "
        "be running"
    ),
    "stop-awaits-held": (
        "waiting before the job is stopped: since a store outage, workers may be running without membership on {nodes}"
    ),
    "growing": "growing after round {round}: {size}",
    "could-grow": "could grow: {size}",
    "could-grow-at-checkpoint": "could grow at the next checkpoint: {size}",
    # --- nodes to come ---
    "awaiting-nodes": "waiting for nodes: {size}",
    "awaiting-more-nodes": "waiting for more nodes: {why}",
    "awaiting-return": "waiting for nodes to return: {size}",
    "giving-up": "giving up in {in_s} s",
    "nodes-lost": "lost: {nodes}",
    "nodes-left": "left: {nodes}",
    "stop-ends-job": "meshctl stop ends the job",
    "no-world": "no valid job size: {size}",
    "too-few-joined": "too few nodes joined within {within_s:g} s: {size}",
    "too-few-returned": "too few nodes returned within {within_s:g} s: {size}",
    "target-nodes": lambda joined, target: (
        f"{joined} of {target} target nodes {'has' if joined == 1 else 'have'} joined"
    ),
    "target-nodes-after": "after {after_s:g} s {why}",
    "no-node-joined": "no node has joined for {for_s:g} s",
    "late": "joined after round {round} had started",
    "spare-leaves": "leaving",
    "quarantined": _explain_quarantine,
    "node-quarantined": "{node}: {why}",
    # --- failures and the end of the job ---
    "checking-cause": "round {round} failed; checking whether a lost node is the cause",
    "backoff": "round {round} was short, like the {before} before it: pausing",
    "worker-failed": "a worker failed on {node} in round {round}, {use}",
    "restarts-used": lambda used, allowed: f"{used} of {allowed} restarts used" if allowed else "no restarts allowed",
    "restart-useless": "a restart would not help: {why}",
    "restart-declined": "workers are not restarted on {nodes}",
    "same-failure": "rank {rank} ({failure_class}) failed in the same way {times} times in a row",
    "stuck": "no progress: {rounds} rounds in a row did not get beyond step {step}",
    "short-rounds": lambda rounds, least_s, is_futile: (
        f"no progress: {rounds} rounds in a row lasted less than {least_s:g} s"
        + (", or ended with the loss of a node that is lost repeatedly" if is_futile else "")
    ),
    "all-drained": "every node is drained",
    "stop-requested": lambda by: f"stopped at the request of {by}" if by else "stopped on request",
    "store-host-leaves": "node {node}, which serves the job's store, is leaving",
    "store-host-leaves-because": "node {node}, which serves the job's store, is leaving: {why}",
    # --- requests that are refused ---
    "not-drained": lambda target, drained: f"{target} is not drained; drained nodes: {', '.join(drained) or 'none'}",
    "has-leader": "this job already has a leader, on node {node}",
    "unknown-request": "unknown request {request!r}",
    "not-a-node": "the node to drain must be given by its name or member id",
    "store-host-not-drained": "{node} serves the job's store, so draining it would end the job: use meshctl stop",
    "ambiguous-node": lambda node, member_ids: (
        f"{len(member_ids)} nodes are called {node}: give a member id, {' or '.join(member_ids)}"
    ),
    # --- joining ---
    "join-timeout": "could not join {run} within {within_s:g} s: {why}",
    "not-joined": "could not join {run}: {why}",
    "nothing-tried": "no request to the store has been answered",
    "store-error": "{error}",
    "store-silent": "the store does not answer",
    "finished-job-remains": "agents of the finished job are still running ({why})",
    "awaiting-finished-job": "waiting for the agents of the finished job to exit: {why}",
    "attempt-remains": "attempt {attempt} has not ended on {nodes}",
    "awaiting-attempt": "waiting for attempt {attempt} to end on {nodes}",
    "replaced": lambda attempt, node: (
        f"attempt {attempt}{f', started on node {node},' if node else ''} replaces this one"
    ),
    "earlier-attempt": "this is attempt {attempt}, but {run} is at attempt {theirs}",
    "not-a-job-key": "the value of {key} is not a job key, so it was not written by meshrun",
    "unreadable": "{error}",
    "other-version": "{run} uses meshrun {theirs}, but node {node} has meshrun {ours}",
    "already-ended": "{run} has already ended: {why}",
    "already-ended-otherwise": "{run} has already ended: {why}; it was started with other arguments for the script",
    "drained": "node {node} was drained",
    "drained-from-run": "node {node} is drained from {run}",
    "other-arguments": "{run} was started with other arguments for the script; this node keeps its own",
    "other-secret": lambda run, has_secret: (
        f"{run} has {'a' if has_secret else 'no'} job secret, but this agent has {'none' if has_secret else 'one'}"
    ),
    "other-options": lambda run, is_served: f"{run} has different options from this agent",
    "option-differs": "{option} is {theirs} there and {ours} here",
    "option-not-here": "{option} is set to {theirs} there and not set here",
    "option-only-here": "{option} is not set there and set to {ours} here",
    "other-command": lambda run, is_served: f"this agent runs a different command from the first node of {run}",
    # --- membership and leading ---
    "membership-lost": "membership lost: {why}; joining again",
    "lease-expired": "the lease could not be renewed in time",
    "view-expired": "the store could not be read for too long",
    "lease-ended": "the lease has ended",
    "lease-ended-early": "the store ended the lease early",
    "no-member": "no longer a member",
    "removed": "this node was removed from the job",
    "job-removed": "{run} was removed from the store, or another job was started under its name",
    "round-lost": "round {round} is no longer in the store: its keys were deleted, or the store was restored",
    "job-ended-meanwhile": "the job ended during the store outage",
    "round-lost-meanwhile": "the store lost the job's round during the outage",
    "others-continued-meanwhile": "the other nodes continued without this one during the store outage",
    "place-taken-meanwhile": "during the store outage, another node replaced this one, or another job this job",
    "registered-again": "the store is back: this node registered again, and the round continues",
    "takeover-put-off": (
        "round {round} has no leader, and this node does not belong to it: other nodes take over once none of its "
        "nodes has been seen for {limit_s:g} s; if you are sure that all its nodes are lost, run meshctl takeover"
    ),
    "leader-unreachable": (
        "the leader, {node}, cannot be reached at {address}: open that port, or set --port-range to open ports; until "
        "then, the loss of this node is noticed only when its lease ends, and a store outage stops its workers"
    ),
    "foreign-member": "{key} contains the record of another member, {member_id}, which is ignored",
    "record-ignored": "{error}; it is ignored",
    "decision-unreadable": "the last decision cannot be read: no decisions are made until its key is removed",
    # --- the store ---
    "store-away": "the store does not answer; workers continue while no node of round {round} reaches it",
    "store-ended": lambda node: f"the store{f', which {node} served,' if node else ''} has ended, and the job with it",
    "store-host-stays": "staying for up to {up_to_s:g} s, because other nodes use this node's store",
    "node-succeeded": "all workers of this node succeeded",
    "succeeded-without-store": "all workers of this node succeeded, and the store is gone",
    "ending-without-store": "ending with success: all workers of this node succeeded, and the store did not return",
    "ending-unless-store-returns": (
        "all workers of this node succeeded: ending with success in {in_s:g} s unless the store returns"
    ),
    "store-replaced": "the store was restored, replaced, or restarted without its data",
    "store-went-back": "the store was restored, replaced, or restarted without its data: {why}",
    "revision-went-back": "it is at revision {revision}, but was at revision {was}",
    "key-went-back": "{key} is at revision {revision} in it, but was at revision {was}",
    "round-went-back": _explain_regress,
    "store-failing": lambda error, hint: f"{error} ({hint})" if hint else error,
    "store-answers-again": "the store answers again",
    "store-slow": "writes to the store take {write_s:.1f} s, and each join or restart needs several of them",
    "longer-lease-waits": "if nodes lose their membership, set --lease-ttl {lease_ttl_s:g}",
    "store-fast-again": "writes to the store are fast again",
    "plan-put-off": "the next round cannot be planned yet: {error}",
}

_SAME = {
    False: "use the same program and options on all nodes of a run, and a different --rdzv-id for each run",
    True: "use the same program and options on all nodes of a run, and a different port for each run",
}

HINTS: Mapping[str, Sentence] = {
    "other-version": "install meshrun {theirs} on every node, or use another --rdzv-id",
    "other-secret": "use the same job secret on all nodes of a run",
    "other-options": lambda is_served, **values: _SAME[is_served],
    "other-command": lambda is_served, **values: _SAME[is_served],
    "already-ended-otherwise": ("use another --rdzv-id for a new run, or restart this one with --on-finished rerun"),
    "join-timeout": lambda why, **values: (
        "stop its agents there: they may hang, still be saving, or have another job secret or version of meshrun"
        if getattr(why, "kind", "") == "attempt-remains"
        else ""
    ),
    "store-went-back": "start the agents again once all earlier agents of the run have exited",
}
