"""Copies of a whole explored cluster, and the name of its state: what makes a search through states possible.

A cluster is a graph of objects with closures in it (the callbacks of requests, of dials, of watches), and
`copy.deepcopy` leaves those bound to the original. Here the C pickler copies the graph. Closures are taken apart and
rebuilt; immutable values (records, messages, settings) are not copied but referred to, by their place in a table.

Two clusters are in the same state if no later step can differ between them. So `digest` writes times as distances from
now, revisions and request ids as ranks, leases in order of appearance, and omits what only people read. It includes
every other field without a list, so that a new field of the protocol is part of the state at once: an omitted field
would merge states that differ, and hide a bug.
"""

from __future__ import annotations

import io
import itertools
import marshal
import math
import pickle
import sys
import types
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from msgspec import Struct, structs

from rendezvous.stores.contract import TxnResult

ERA = 2.0**20  # when time begins: numbers above half of it are times, numbers below are durations
GRID = 1024.0  # ticks per second
REVISIONS, LEASES, IDS = 1 << 40, 1 << 41, 1 << 42  # where revisions, leases and request ids begin
IDS_PER_NODE = 1 << 24

_PARTS_OF_CHECKS = frozenset({"_cluster", "_hosts", "_seed", "_settings", "_shape", "_storage", "_timeline"})
# What only people read, what follows from the rest, constants, and references to parts that are reached elsewhere.
_UNSEEN: dict[str, frozenset[str]] = {
    "ExploredCluster": frozenset({"config", "observers", "operator", "scope", "store_access", "timeline"}),
    "Network": frozenset({"model", "on_change", "timeline"}),
    "SimulatedNode": frozenset({
        "last_status", "_clock_offset_s", "_config", "_first_request", "_network", "_observers", "_presence_network",
        "_rng", "_storage", "_store", "_timeline",
    }),
    "SimulatedProcesses": frozenset({"_config", "_on_exit", "_send", "_timeline"}),
    "PresenceNetwork": frozenset({"deliver", "network", "timeline", "_hosts"}),
    "SimulatedPeers": frozenset({"_send"}),
    "SteppedStore": frozenset({"_offer", "_storage"}),
    "Storage": frozenset({
        "leases", "_expiry_at", "_hosts", "_network", "_running_before", "_settings", "_timeline",
    }),
    "StoreClock": frozenset({"_timeline"}),
    "Checker": _PARTS_OF_CHECKS | {"_budget", "_exit_codes", "_permissions", "_witnesses"},
    "DeadlineChecks": _PARTS_OF_CHECKS,
    "SealChecks": _PARTS_OF_CHECKS,
    "RoundRecord": frozenset({"sealed_at", "stopped_at", "failed_at", "departed_at"}),
    "JobRecord": frozenset({"seen_until", "leases"}),
    "MemberState": frozenset({"setup", "settings", "rng"}),
    # Revisions once seen matter only where the store goes back, which is not explored.
    "RequestQueue": frozenset({"_last_status", "settings", "rng", "actions", "revision"}),
    "_PendingRequest": frozenset({"revision"}),
    "WatchCache": frozenset({"secret"}),
    "Leadership": frozenset({"waiting"}),
    "MembershipState": frozenset({"join_problem"}),
    "MemoryStore": frozenset({"_changed", "_thread", "_hub", "_clock"}),
    "Keyspace": frozenset({"_history", "_history_bytes", "compacted_revision"}),
    "LeaseTable": frozenset({"_next_id"}),
    "Offer": frozenset({"label", "line", "touched"}),
    "Link": frozenset({"_last_at"}),
}  # fmt: skip
_NOTHING: frozenset[str] = frozenset()
_is_value_by_type: dict[type, bool] = {}


def _is_value(kind: type) -> bool:
    """Whether objects of this type, and everything in them, are immutable."""
    is_frozen = issubclass(kind, tuple) or (issubclass(kind, Struct) and kind.__struct_config__.frozen)
    if is_frozen:
        return kind.__name__ != "_PendingRequest"  # which contains functions
    return issubclass(kind, Exception) or kind.__name__ in ("Condition", "lock", "RLock")


class ValueTable:
    """The values that the snapshots of one level of a search refer to; it lives as long as they do."""

    def __init__(self) -> None:
        self.values: list[object] = []
        self._places: dict[int, int] = {}
        self.atoms: dict[int, tuple[list[object], list[tuple[int, int | float]]]] = {}  # place -> as `_Walk` lists it

    def place(self, value: object) -> int:
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = len(self.values)
            self.values.append(value)
        return place


_table = ValueTable()  # that of the pickle being read


def _get_value(place: int) -> object:
    return _table.values[place]


def _empty_cell() -> types.CellType:
    return types.CellType()


def _make_function(
    code: int, module: str, name: str, defaults: tuple[object, ...] | None, closure: tuple[types.CellType, ...]
) -> types.FunctionType:
    body: Any = _table.values[code]
    made = types.FunctionType(body, vars(sys.modules[module]), body.co_name, defaults, closure)
    made.__qualname__ = name
    return made


def _fill(function: types.FunctionType, contents: tuple[object, ...]) -> None:
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        cell.cell_contents = content


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, table: ValueTable) -> None:
        super().__init__(file, 5)
        self._table = table

    def reducer_override(self, thing: Any) -> Any:
        kind = type(thing)
        if kind is types.FunctionType:
            if thing.__closure__ is None:  # one that is found under its name, or a lambda
                return (_get_value, (self._table.place(thing),)) if "<" in thing.__qualname__ else NotImplemented
            code = self._table.place(thing.__code__)
            made_of = (code, thing.__module__, thing.__qualname__, thing.__defaults__, thing.__closure__)
            contents = tuple(cell.cell_contents for cell in thing.__closure__)
            return _make_function, made_of, contents, None, None, _fill
        if kind is types.CellType:
            return _empty_cell, ()
        if kind is itertools.count:
            return itertools.count, (int(repr(thing)[6:-1]),)
        is_kept = _is_value_by_type.get(kind)
        if is_kept is None:
            is_kept = _is_value_by_type[kind] = kind is not type and _is_value(kind)
        return (_get_value, (self._table.place(thing),)) if is_kept else NotImplemented


def dump(world: object, table: ValueTable) -> bytes:
    """A copy of the cluster, which can be loaded any number of times."""
    file = io.BytesIO()
    _Pickler(file, table).dump(world)
    return file.getvalue()


def load(snapshot: bytes, table: ValueTable) -> Any:
    global _table
    _table = table
    return pickle.loads(snapshot)


class _GraphWalk:
    """Lists the atoms of a graph; those whose name depends on all others are listed again, with their places."""

    def __init__(self, table: ValueTable, is_value: bool = False) -> None:
        self.atoms: list[object] = []
        self.special: list[tuple[int, int | float]] = []
        self.leases: dict[object, int] = {}  # in the order in which they appear
        self._seen: dict[int, int] = {}
        self._table = table
        self._is_value = is_value

    def walk(self, thing: Any) -> None:
        kind = type(thing)
        if kind in _PLAIN:
            self.atoms.append(thing)
        else:
            (_HANDLERS.get(kind) or _find_handler(kind))(self, thing)

    def add_number(self, thing: int) -> None:
        if thing < REVISIONS:
            self.atoms.append(thing)
        elif LEASES <= thing < IDS and not self._is_value:
            self.atoms.append(self.leases.setdefault(thing, len(self.leases)))
        else:
            self.special.append((len(self.atoms), thing))
            self.atoms.append(thing)

    def add_time(self, thing: float) -> None:
        if abs(thing) > ERA / 2 and not math.isinf(thing):
            self.special.append((len(self.atoms), thing))
        self.atoms.append(thing)

    def add_repr(self, thing: object) -> None:
        self.atoms.append(repr(thing))

    def add_row(self, things: Any) -> None:
        self.atoms.append("(")
        self.atoms.append(len(things))
        for thing in things:
            if type(thing) in _PLAIN:
                self.atoms.append(thing)
            else:
                self.walk(thing)

    def add_set(self, things: Any) -> None:
        self.add_row(sorted(things, key=self._make_sort_key))

    def add_mapping(self, things: Any) -> None:
        self.atoms.append("{")
        self.atoms.append(len(things))
        if not things:
            return
        for key in sorted(things) if type(next(iter(things))) is str else sorted(things, key=self._make_sort_key):
            self.walk(key)
            self.walk(things[key])

    def add_value(self, thing: Any) -> None:
        place = self._table.place(thing)
        known = self._table.atoms.get(place)
        if known is None:
            walk = _GraphWalk(self._table, is_value=True)
            walk.atoms.append(type(thing).__name__)
            walk.add_row(thing) if isinstance(thing, tuple) else walk.add_mapping(_list_fields(thing))
            known = self._table.atoms[place] = (walk.atoms, walk.special)
        base = len(self.atoms)
        self.atoms += known[0]
        for place, special in known[1]:
            if isinstance(special, int) and LEASES <= special < IDS and not self._is_value:
                self.atoms[base + place] = self.leases.setdefault(special, len(self.leases))
            else:
                self.special.append((base + place, special))

    def is_again(self, thing: object) -> bool:
        number = self._seen.get(id(thing))
        if number is None:
            self._seen[id(thing)] = len(self._seen)
            return False
        self.atoms.append("*")
        self.atoms.append(number)
        return True

    def _make_sort_key(self, thing: Any) -> str:
        if isinstance(thing, int) and LEASES <= thing < IDS:
            return f"{self.leases.get(thing, 1 << 30):010}"
        name = thing if isinstance(thing, str) else getattr(thing, "name", None)
        return name if isinstance(name, str) else repr(thing)

    def add_function(self, thing: Any) -> None:
        if not self.is_again(thing):
            self.atoms.append(thing.__qualname__)
            for cell in thing.__closure__ or ():
                self.walk(cell.cell_contents)

    def add_method(self, thing: Any) -> None:
        self.atoms.append(thing.__func__.__qualname__)
        self.walk(thing.__self__)

    def add_type_name(self, thing: object) -> None:
        self.atoms.append(type(thing).__name__)

    def add_object(self, thing: Any) -> None:
        if self.is_again(thing):
            return
        kind, fields = type(thing), _list_fields(thing)
        form = (kind, *fields)
        known = _forms.get(form)
        if known is None:
            unseen = _UNSEEN.get(kind.__name__, _NOTHING)
            seen = sorted(fields.keys() - unseen)
            known = _forms[form] = (f"{kind.__name__} {zlib.crc32(','.join(seen).encode())}", seen)
        self.atoms.append(known[0])
        for name in known[1]:
            value = fields[name]
            if type(value) in _PLAIN:
                self.atoms.append(value)
            else:
                self.walk(value)


_forms: dict[tuple[object, ...], tuple[str, list[str]]] = {}  # a class and its fields -> its name, what is seen


def _list_fields(thing: Any) -> dict[str, Any]:
    if isinstance(thing, Struct):
        return structs.asdict(thing)
    if hasattr(thing, "__dict__"):
        return thing.__dict__  # type: ignore[no-any-return]
    return {name: getattr(thing, name) for name in thing.__slots__}


_PLAIN = frozenset({str, bytes, bool, type(None)})
_HANDLERS: dict[type, Callable[[_GraphWalk, Any], None]] = {
    int: _GraphWalk.add_number, float: _GraphWalk.add_time,
    tuple: _GraphWalk.add_row, list: _GraphWalk.add_row, deque: _GraphWalk.add_row,
    set: _GraphWalk.add_set, frozenset: _GraphWalk.add_set,
    dict: _GraphWalk.add_mapping, defaultdict: _GraphWalk.add_mapping,
    OrderedDict: _GraphWalk.add_mapping, Counter: _GraphWalk.add_mapping,
    itertools.count: _GraphWalk.add_repr, types.FunctionType: _GraphWalk.add_function,
    types.MethodType: _GraphWalk.add_method,
}  # fmt: skip
_OPAQUE = frozenset({"MemoryWatch", "Condition", "lock", "Shape", "Settings", "Spec"})


def _find_handler(kind: type) -> Callable[[_GraphWalk, Any], None]:
    """The handler of a type that was not met before."""
    handler: Callable[[_GraphWalk, Any], None]
    if kind.__name__ in _OPAQUE or issubclass(kind, type):
        handler = _GraphWalk.add_type_name
    elif isinstance({}.keys(), kind):
        handler = _GraphWalk.add_set
    elif issubclass(kind, tuple) and not _is_value(kind):
        handler = _GraphWalk.add_row
    else:
        handler = _GraphWalk.add_value if _is_value(kind) else _GraphWalk.add_object
    _HANDLERS[kind] = handler
    return handler


def digest(world: Any, table: ValueTable) -> bytes:
    """The name of the state of a cluster."""
    walk = _GraphWalk(table)
    walk.walk(world)
    walk.walk(_list_history(world))
    atoms, now = walk.atoms, world.timeline.now
    ranks = {thing: rank for rank, thing in enumerate(sorted({n for _, n in walk.special if isinstance(n, int)}))}
    for place, thing in walk.special:
        atoms[place] = ranks[thing] if isinstance(thing, int) else round((thing - now) * GRID)
    return blake2b(marshal.dumps(atoms, 2), digest_size=10).digest()


def _list_history(world: Any) -> list[object]:
    """The events that a watch may still get that begins at the revision of an answer under way."""
    under_way = (getattr(thing, "answer", None) for offer in world.pool for thing in offer.arguments)
    oldest = min((answer.revision for answer in under_way if isinstance(answer, TxnResult)), default=1 << 62)
    return list(world.storage.store._keyspace.list_batches_from(oldest + 1))


__all__ = ["ERA", "GRID", "IDS", "IDS_PER_NODE", "LEASES", "REVISIONS", "ValueTable", "digest", "dump", "load"]
