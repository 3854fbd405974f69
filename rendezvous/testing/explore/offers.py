"""What may happen next in an explored cluster: what is under way, and what an explorer may choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rendezvous import events
from rendezvous.events import Event, StoreOutcomeUnknown
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
        self.delayed = 0  # how often it was put behind all other offers

    def make_sort_key(self, late: Mapping[object, int]) -> tuple[int, str]:
        """Its place in the pool; messages of one connection stay together. `late`: lines that were delayed."""
        if type(self.line) is tuple:
            return late.get(self.line, 0), "/".join(self.line)
        return self.delayed, self.label


def is_void(call: Any, arguments: Sequence[Any], at: float) -> bool:
    """Whether this call would have no effect any more."""
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
        return not owner.is_open
    if name == "once":
        return any(cell.cell_contents is True for cell in call.__closure__)
    return False


def is_known(event: Event, node: Any) -> bool:
    """Whether the watch cache of this member already has what the event contains."""
    if not isinstance(event, events.WatchUpdate):
        return False
    cache = node.machine.state.cache
    return event.key not in cache.watched or not any(cache.keys.is_news(change.item) for change in event.batch.events)


def find_owner(call: Any) -> str:
    """The name of the node whose method this is, or whose processes'; else empty."""
    name = getattr(getattr(call, "__self__", None), "name", "")
    assert isinstance(name, str)
    return name


def make_label(call: Any, arguments: tuple[Any, ...]) -> str:
    if call.__name__ == "_send_to":
        return f"{find_owner(call)} takes in {describe_event(arguments[1])}"
    words = {"_tick": "wakes", "kill": "has no processes left", "check_watchdog": "is at the end of its watchdog"}
    return f"{find_owner(call)} {words.get(call.__name__, call.__name__)}".strip()


def describe_event(event: Event) -> str:
    if isinstance(event, StoreOutcomeUnknown):
        return "that a request brought no answer"
    return f"{type(event).__name__} {getattr(event, 'member_id', '')[:4]}".strip()
