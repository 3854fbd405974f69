"""How an agent ends when the store has gone back, or is another one than before.

What this member and others have decided may never have been, for those who read the store from now on: they may seal
the next round while this node's workers run. So the workers are killed at once, and the agent ends for good. It does
not join again: the number of a round, which storage is fenced by, would be used twice.
"""

from __future__ import annotations

from rendezvous.errors import EXIT_TEMPORARY
from rendezvous.member import leave, local_round
from rendezvous.reasons import Reason
from rendezvous.state.intents import Finish
from rendezvous.state.state import MemberState


# docs/internals/decisions/agreement.md#0059-no-job-survives-a-store-that-goes-back
def end(state: MemberState, regress: Reason, now: float) -> Finish:
    """Kill the workers; return how this agent ends. `regress`: what shows it. A verdict that was seen stays."""
    verdict = leave.find_verdict(state) if state.is_member else None
    local_round.stop_workers(state, "fence", Reason.of("store-replaced"), "isolation", now)
    if verdict is not None:
        return Finish(verdict.exit_code, verdict.reason, verdict)
    asked = state.leaving.request
    exit_code = asked.exit_code if asked is not None else EXIT_TEMPORARY
    return Finish(exit_code, Reason.of("store-went-back", why=regress))
