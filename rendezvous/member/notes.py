"""Notes: texts of the program above to other members of the job, over their presence connections.

The agreement does not read them. The leader is connected to all members, every other member to the leader alone, so
these are the ways a note can go. One that is addressed to its own sender comes back at once, so that whoever leads, and
a job of one machine, needs no way of its own. A note may be lost, like any message between members.
"""

from __future__ import annotations

import json

from rendezvous.events import TO_ALL, TO_LEADER, TO_ROUND, NoteReceived, SendNote, SendToPeer
from rendezvous.peers.messages import LINE_MAX, NOTE_MAX, Note, encode_message
from rendezvous.records import LeaderRecord, Member
from rendezvous.state.state import MemberState

SHORT_MAX = LINE_MAX // 12 - 20
"""Characters that fit whatever they are: JSON within JSON needs 12 for one of them at most."""


def send(state: MemberState, note: SendNote) -> None:
    """Send a note; without effect if its recipient is not known, as between two leaders, or if it is too long."""
    message, is_short = encode_message(Note(note.text)), fits(note.text)
    for member_id in _find_recipients(state, note.to):
        if member_id == state.member_id:
            state.requests.emit(NoteReceived(member_id, note.text))
        elif is_short:
            state.requests.emit(SendToPeer(member_id, message))


def fits(text: str) -> bool:
    """Return whether a note can hold this text as the connection writes it, JSON within JSON."""
    if len(text) <= SHORT_MAX:
        return True
    return len(text) <= NOTE_MAX and len(json.dumps(encode_message(Note(text)))) <= LINE_MAX


def _find_recipients(state: MemberState, to: str) -> list[str]:
    leads = state.leadership is not None
    if to == TO_ROUND:
        return sorted(state.leadership.active) if state.leadership is not None else []
    if to == TO_ALL:
        return sorted(list_members(state)) if leads else []
    if to == TO_LEADER and leads:
        return [state.member_id]
    if to == TO_LEADER:
        leader = state.cache.read(LeaderRecord, state.job.leader) if state.membership.job is not None else None
        return [leader.member_id] if leader is not None else []
    return [to]


def list_members(state: MemberState) -> dict[str, str]:
    """Return the names of the nodes of all members that the leader knows, by member id; empty on any other."""
    if state.leadership is None or state.membership.job is None:
        return {}
    prefix = state.job.members
    found = {
        item.key[len(prefix) :]: state.cache.read(Member, item.key) for item in state.cache.keys.list_under(prefix)
    }
    return {member_id: member.node_name for member_id, member in found.items() if member is not None}
