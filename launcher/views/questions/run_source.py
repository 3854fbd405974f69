"""Where a view of a run gets what it shows: a page, a full screen, metrics.

RunSource is a Protocol. `QuestionSource` in `local_socket` implements it over the socket of an agent on this machine,
for the agent's own threads; `SocketSource` beside it, for another process; and `LocalSource` in
launcher/meshctl/live/source.py, which asks another agent of the run if the one it asks has ended.
"""

from __future__ import annotations

from typing import Protocol

from launcher.views.requests import NodeReply, NodeRequest
from launcher.views.run_view import RunView


class RunSource(Protocol):
    """Answers within a limit; each method raises TemporaryError with a sentence if there is no answer."""

    @property
    def is_live(self) -> bool:
        """Whether agents are asked; otherwise it is what they have left."""
        ...

    @property
    def switch_count(self) -> int:
        """How often another agent was chosen to be asked: numbers of events are an agent's own."""
        ...

    def read_run(self) -> RunView:
        """Return what all nodes of the run say of themselves."""
        ...

    def read_node(self, node: str, request: NodeRequest) -> NodeReply:
        """Return what one node, by name or member id, answers to a request; "" is the agent's own."""
        ...

    def ask_why(self) -> bytes:
        """Return the encoded Conclusion of launcher.diagnosis: which rank the run waits for, with all stacks."""
        ...
