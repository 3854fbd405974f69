"""The notes of agents to each other: one union, in which each kind has its tag, decoded here alone.

Those of an inspection are in `messages`, those of an examination in `launcher.agent.diagnosis.messages`.
"""

from __future__ import annotations

import msgspec

from launcher.agent.diagnosis.messages import Message
from launcher.agent.inspection.messages import InspectionMessage
from rendezvous.errors import RecordError

AgentNote = InspectionMessage | Message
_decoder: msgspec.json.Decoder[AgentNote] = msgspec.json.Decoder(AgentNote)


def decode_note(text: str) -> AgentNote | None:
    """Decode a note; None for any other text."""
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, RecordError, RecursionError):
        return None
