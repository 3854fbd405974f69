"""Requests of people to a running job, made through the store: stop it, drain a node, undrain it.

The leader handles one request at a time, oldest first, and deletes it in the transaction that does what it asks for. A
request that cannot be met is answered with a sentence, which the requester reads from the same key.
"""

from __future__ import annotations

from rendezvous.errors import EXIT_STOPPED
from rendezvous.policy.decisions import ApplyCommand, EndJob
from rendezvous.policy.view import View
from rendezvous.records import Command, Verdict

TARGET_LENGTH_MAX = 255


def choose_request(view: View) -> EndJob | ApplyCommand | None:
    """Return the decision on the oldest request; None if there is none."""
    for token, command in view.commands.items():
        match command.kind:
            case "stop":
                return EndJob(_make_stop_verdict(view, command), token)
            case "drain":
                return _answer_drain(view, token, command.target)
            case "undrain":
                if command.target in view.drained:
                    return ApplyCommand(token, undrain=command.target)
                drained = ", ".join(sorted(view.drained)) or "none"
                return ApplyCommand(token, answer=f"{command.target} is not drained; drained: {drained}")
            case "takeover":
                return ApplyCommand(token, answer=f"this job has a leader, on node {view.get_name(view.own_id)}")
            case kind:
                return ApplyCommand(token, answer=f"{kind!r} is no request that this version of meshrun knows")
    return None


def _make_stop_verdict(view: View, command: Command) -> Verdict:
    by = f" of {command.by}" if command.by else ""
    number = view.seal.round if view.seal else 0
    return Verdict(kind="stopped", exit_code=EXIT_STOPPED, round=number, reason=f"stopped at the request{by}")


def _answer_drain(view: View, token: str, target: str) -> ApplyCommand:
    """Drain a node by name, whether it has joined or not; by member id where two nodes have the same name."""
    if not 0 < len(target) <= TARGET_LENGTH_MAX or not target.isprintable() or "/" in target:
        return ApplyCommand(token, answer="a node to drain is named by its name or its member id")
    if target in view.members:
        name = view.members[target].member.node_name
        return ApplyCommand(token, drain=name if len(_find_by_name(view, name)) == 1 else target)
    matches = _find_by_name(view, target)
    if len(matches) > 1:
        return ApplyCommand(
            token, answer=f"{len(matches)} nodes are called {target}: give a member id, {' or '.join(matches)}"
        )
    return ApplyCommand(token, drain=target)


def _find_by_name(view: View, name: str) -> list[str]:
    return sorted(member_id for member_id, member in view.members.items() if member.member.node_name == name)
