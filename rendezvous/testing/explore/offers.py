"""What may happen next in a world that is explored: what is under way, and what an explorer may choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rendezvous import events
from rendezvous.events import Event, StoreOutcomeUnknown
from rendezvous.testing.simulation.node import SimulatedNode
from rendezvous.testing.simulation.processes import SimulatedProcesses

ALL: tuple[str, ...] = ("all",)
STORE = "the store"
SUCCEED = "success of the workers of"


class ScheduleChoice(NamedTuple):
    """Something that may happen next. `touched`: the nodes, or the store, whose state it reads or changes."""

    label: str
    touched: tuple[str, ...]
    call: Callable[..., object]
    arguments: tuple[Any, ...] = ()
    is_fault: bool = False


class Offer:
    """Something that is under way. Of those with the same `line` only the first may happen."""

    def __init__(
        self,
        line: object,
        label: str,
        touched: tuple[str, ...],
        call: Callable[..., object],
        arguments: tuple[Any, ...],
    ) -> None:
        self.line = line
        self.touched = touched
        self.label = label
        self.call = call
        self.arguments = arguments
        self.put_off = 0

    def make_sort_key(self, late: Mapping[object, int]) -> tuple[int, str]:
        """Its place in the pool; what one connection carries stays together. `late`: lines that were put off."""
        if type(self.line) is tuple:
            return late.get(self.line, 0), "/".join(self.line)
        return self.put_off, self.label


def is_void(call: Any, arguments: Sequence[Any], at: float) -> bool:
    """Whether nothing would come of this any more."""
    name = call.__name__
    owner: Any = getattr(call, "__self__", None)
    if name == "_send_to":
        return arguments[0] != owner._incarnation or not owner.is_up
    if name == "_tick":
        return arguments[0] != owner._incarnation or arguments[1] != owner._armed_for or not owner.is_up
    if name == "check_watchdog":
        return bool(at < owner.watchdog_until)
    if name == "kill" and isinstance(owner, SimulatedProcesses):
        return owner.running is None or owner.running is not arguments[0]
    if name == "hear":
        return arguments[0] is not owner.presence or not owner.is_up
    if name == "once":
        return any(cell.cell_contents is True for cell in call.__closure__)
    return False


def is_known(event: Event, node: Any) -> bool:
    """Whether this member's copy of the store is not older than what a watch or a word tells."""
    if isinstance(event, events.WatchUpdate):
        cache = node.machine.state.cache
        if event.key not in cache.watched:
            return True
        return not any(cache.keys.is_news(change.item) for change in event.batch.events)
    return False


def find_owner(call: Any) -> str:
    """The node that this concerns, if it is one."""
    owner = getattr(call, "__self__", None)
    if isinstance(owner, SimulatedProcesses):
        owner = owner._node
    return owner.name if isinstance(owner, SimulatedNode) else ""


def make_label(call: Any, arguments: tuple[Any, ...]) -> str:
    if call.__name__ == "_send_to":
        return f"{find_owner(call)} takes in {describe_event(arguments[1])}"
    words = {"_tick": "wakes", "kill": "has no processes left", "check_watchdog": "is at the end of its watchdog"}
    return f"{find_owner(call)} {words.get(call.__name__, call.__name__)}".strip()


def describe_event(event: Event) -> str:
    match event:
        case StoreOutcomeUnknown():
            return "that a request brought no answer"
    return f"{type(event).__name__} {getattr(event, 'member_id', '')[:4]}".strip()
