"""What a node that does not lead says while no round starts: who leads, and what that node waits for."""

from __future__ import annotations

from launcher.model.errors import describe
from rendezvous.reasons import Reason


def describe_wait(leader: str, why: Reason | None) -> str:
    """`leader`: the node's name, "" if none leads; `why`: what it waits for, None if it has not said."""
    if not leader:
        return "waiting for a round: it is not known here which node leads"
    reason = describe(why) if why is not None else "the reason is in its log"
    return f"{leader} leads, and starts no round yet: {reason}"
