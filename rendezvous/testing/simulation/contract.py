"""What parts of a simulated cluster need without knowing who provides it: the store, the way to it, and observers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rendezvous.events import Action, Event, StoreRequest
from rendezvous.stores.contract import Watch
from rendezvous.stores.memory.store import MemoryStore
from rendezvous.testing.simulation.host import Host
from rendezvous.testing.simulation.processes import Running, SimulatedProcesses

Send = Callable[[int, Event], None]
"""Gives an event to the agent of this incarnation; an agent that was replaced since does not get it."""


class DirectStore(Protocol):
    """The store itself, without a network before it."""

    store: MemoryStore

    @property
    def is_away(self) -> bool: ...

    def read_current_job(self) -> str: ...

    def apply(self, store_request: StoreRequest) -> Event:
        """Execute a request; the event that answers it."""

    def deliver(self) -> None:
        """Give watches the events that they have not got yet."""


class StoreAccess(Protocol):
    """The store as one node reaches it: in time, late, or not at all."""

    def request(self, host: Host, incarnation: int, store_request: StoreRequest, send: Send) -> None:
        """Carry a request to the store and its answer back."""

    def follow(self, host: Host, key: str, start_revision: int, incarnation: int, send: Send) -> Watch:
        """Watch this key, or all below it if it ends with a slash."""


class Observers:
    """Functions that every node of a cluster calls. A checker and the work of the processes put theirs here."""

    def __init__(self) -> None:
        self.before_start: Callable[[Host, Running], None] = lambda host, running: None
        self.after_start: Callable[[SimulatedProcesses], None] = lambda processes: None
        self.after_step: Callable[[Host, Sequence[Event], Sequence[Action]], None] = lambda host, events, actions: None
        self.before_request: Callable[[Host, StoreRequest], None] = lambda host, store_request: None
        self.after_end: Callable[[Host, Sequence[str]], None] = lambda host, watched: None
