"""What agents say to each other when somebody looks at the run.

    any agent  -- Inspect -->    the leader      of one member, of a node by name, or of all
    the leader -- Expect -->     who asks        which members were asked
               -- PassedRequest --> each of them
    each       -- Reply -->      the leader      which passes it on to who asks

They are notes of the agreement (rendezvous/member/notes.py): each may be lost, so who waits for one has a limit. A
reply is one note; what does not fit is cut into pages by the request.
"""

from __future__ import annotations

from msgspec import Struct

from launcher.observe.node_report import EventPage, LogPage, NodeReport, NodeRequest
from rendezvous import codec


class _InspectionMessage(Struct, frozen=True, kw_only=True, tag_field="note"):
    """`id`: the question's, by which who asks knows it again."""

    id: str


class Inspect(_InspectionMessage, frozen=True, kw_only=True, tag="inspect"):
    """`node`: a member id or a node's name, "" for all members."""

    node: str
    request: NodeRequest


class Expect(_InspectionMessage, frozen=True, kw_only=True, tag="expect"):
    """`members`: the names of those that were asked, by member id. `leader`: the member id of the leader."""

    members: dict[str, str]
    leader: str


class PassedRequest(_InspectionMessage, frozen=True, kw_only=True, tag="request"):
    """`asker`: a member id."""

    asker: str
    request: NodeRequest


class Reply(_InspectionMessage, frozen=True, kw_only=True, tag="reply"):
    """A node's answer to a question."""

    asker: str
    member_id: str
    report: NodeReport | None = None
    events: EventPage | None = None
    logs: LogPage | None = None
    error: str = ""
    """Why there is no answer, "" if there is one."""


InspectionMessage = Inspect | Expect | PassedRequest | Reply


def encode_inspection(message: InspectionMessage) -> str:
    return codec.encode(message).decode()
