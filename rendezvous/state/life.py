"""The life of a membership, and of a round on a node: tables of (phase, event) -> (next phase, action).

A phase changes by its table and in no other way; an event that the table does not list changes nothing. What a round
does depends on its phase. For a membership only the last two phases decide; the others tell where it stands, after
what is compared in every step (see `machine`). The diagrams in docs/images are drawn from these tables.
"""

from __future__ import annotations

from msgspec import Struct


class Transition(Struct, frozen=True):
    """The phase after an event, and a description of the action taken."""

    phase: str
    action: str


Life = dict[tuple[str, str], Transition]

MEMBERSHIP: Life = {
    ("joining", "registered"): Transition("member", "follow the job's keys, tell peers who this is"),
    ("joining", "lease lost"): Transition("joining", "begin anew under another member id"),
    ("joining", "finished"): Transition("ending", "give the lease back"),
    ("member", "lease held out"): Transition("held", "register again when the store is back"),
    ("member", "removal suspected"): Transition("fenced", "kill the workers, ask the store whether it was the lease"),
    ("member", "lease lost"): Transition("joining", "kill the workers, begin anew under another member id"),
    ("member", "finished"): Transition("ending", "give the lease back"),
    ("held", "own key found"): Transition("member", "the round goes on"),
    ("held", "removal suspected"): Transition("fenced", "kill the workers, ask the store whether it was the lease"),
    ("held", "lease lost"): Transition("joining", "kill the workers, begin anew under another member id"),
    ("held", "finished"): Transition("ending", "give the lease back"),
    ("fenced", "lease held out"): Transition("held", "register again when the store is back"),
    ("fenced", "own key found"): Transition("member", "the round goes on"),
    ("fenced", "lease lost"): Transition("joining", "begin anew under another member id"),
    ("fenced", "finished"): Transition("ending", "give the lease back"),
    ("ending", "exited"): Transition("ended", "exit with the code that was decided"),
}
"""`held`: the lease has ended or may have, while the whole roster agrees that no member is replaced in an outage.
`ending`: the exit code is decided; an agent that serves the store to others stays until they have gone."""

ROUND: Life = {
    ("idle", "ranks assigned"): Transition("running", "start the workers"),
    ("running", "succeeded"): Transition("running", "report success"),
    ("running", "failed"): Transition("running", "report the failure"),
    ("running", "failed for good"): Transition("running", "report the failure, which nobody is to wait for"),
    ("running", "stop"): Transition("stopping", "stop the workers: in peace, or at once"),
    ("running", "fence"): Transition("fencing", "kill the workers"),
    ("running", "workers gone"): Transition("idle", "report that the round is stopped here"),
    ("stopping", "failed for good"): Transition("stopping", "report the failure, which nobody is to wait for"),
    ("stopping", "fence"): Transition("fencing", "kill the workers"),
    ("stopping", "workers gone"): Transition("idle", "report that the round is stopped here"),
    ("fencing", "failed for good"): Transition("fencing", "report the failure, which nobody is to wait for"),
    ("fencing", "workers gone"): Transition("idle", "report that the round is stopped here"),
}
"""A worker's exit after the stop is not a failure of the round, unless it is final or the worker blames its node."""
