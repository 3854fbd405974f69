"""Reads a dump of torch's flight recorder: the collectives that a rank has entered, by process group.

The dump is JSON of format 2. Its table of groups, `pg_config`, is empty under gloo, so groups are taken from the
entries, which name them alike on all ranks. `state` stays "scheduled" under gloo; `retired` does not lag. Operations
from point to point are not numbered like collectives, and gloo's are not recorded at all: they are left out, as are
coalesced operations, which share a number or have different ones on different ranks (pytorch#125173).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from launcher.diagnosis.evidence import Call, GroupCalls
from rendezvous import codec

DUMP_MAX = 32 * 2**20
"""Bytes: a ring of 2,000 entries has about 1 MB."""
SHAPE_MAX = 48
GROUPS_MAX = 8
CALLS_MAX = 3
"""The last of a group: another member may have stayed in an earlier one."""
TIMES_MAX = 20
_Number = Annotated[int, msgspec.Meta(gt=-(2**62), lt=2**62)]  # JSON has no limit, but the way through a float has


class _Entry(msgspec.Struct):
    process_group: tuple[str, str]
    collective_seq_id: _Number
    pg_id: int
    profiling_name: str
    retired: bool
    time_created_ns: _Number
    time_discovered_started_ns: _Number = 0
    time_discovered_completed_ns: _Number = 0
    duration_ms: Annotated[float, msgspec.Meta(lt=2**62)] | None = None
    is_p2p: bool = False
    input_sizes: Any = ()
    input_dtypes: Any = ()


class _Dump(msgspec.Struct):
    entries: list[_Entry] = []
    pg_status: dict[str, Any] = {}


def read_dump(dump: bytes, now_ns: int) -> tuple[tuple[GroupCalls, ...], bool]:
    """Return the calls of every group, the one that was used last first, and whether groups have been forgotten.

    `now_ns`: of the same clock as the dump's times, the system's. Raises ValueError for what is no dump.
    """
    if len(dump) > DUMP_MAX:
        raise ValueError(f"the flight recorder's dump has {len(dump):,} bytes; the limit is {DUMP_MAX:,}")
    try:
        found = codec.find_decoder(_Dump).decode(dump)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"the flight recorder's dump cannot be read: {error}") from None
    groups: dict[tuple[str, str], list[_Entry]] = {}
    for entry in found.entries:
        if not entry.is_p2p and "coalesced" not in entry.profiling_name:
            groups.setdefault(entry.process_group, []).append(entry)
    known = {str(entry.pg_id) for entry in found.entries}
    counted = {name: _keep_counted(entries) for name, entries in groups.items()}
    calls = [_read_group(name, entries, now_ns) for name, entries in counted.items() if entries]
    return keep_newest(calls), bool(found.pg_status.keys() - known) or len(calls) > GROUPS_MAX


def keep_newest(groups: Sequence[GroupCalls]) -> tuple[GroupCalls, ...]:
    """Return at most GROUPS_MAX of these, the one that was used last first."""
    return tuple(sorted(groups, key=lambda group: group.calls[-1].age_s)[:GROUPS_MAX])


def _keep_counted(entries: Sequence[_Entry]) -> list[_Entry]:
    """Return the entries that have a number for themselves, in order: others are parts of a coalesced operation."""
    count = Counter(entry.collective_seq_id for entry in entries)
    alone = (entry for entry in entries if count[entry.collective_seq_id] == 1)
    return sorted(alone, key=lambda entry: entry.collective_seq_id)


def _read_group(name: tuple[str, str], ordered: Sequence[_Entry], now_ns: int) -> GroupCalls:
    shown = list(ordered[-CALLS_MAX:])
    first_open = next((entry for entry in ordered if not entry.retired), None)
    if first_open and first_open not in shown:
        shown = [first_open, *shown]
    last = ordered[-TIMES_MAX:]
    # Times are compared by number, so there must be no gap.
    is_whole = last[-1].collective_seq_id - last[0].collective_seq_id == len(last) - 1
    entered_ms = [entry.time_created_ns // 10**6 for entry in last] if is_whole else []
    lengths = [_read_length_ms(entry) for entry in last] if is_whole else []
    return GroupCalls(
        name=name[0],
        description=name[1],
        calls=tuple(_read_call(entry, now_ns) for entry in shown),
        entered_ms=tuple(entered_ms[:1] + [after - before for before, after in pairwise(entered_ms)]),
        lengths_ms=tuple(lengths) if any(length >= 0 for length in lengths) else (),
    )


def _read_length_ms(entry: _Entry) -> int:
    """Return how long a call took on its device or, less exactly, as the watchdog saw it; -1 if that is not known."""
    if entry.duration_ms is not None:
        return round(entry.duration_ms)
    if entry.time_discovered_started_ns and entry.time_discovered_completed_ns:
        return max(0, entry.time_discovered_completed_ns - entry.time_discovered_started_ns) // 10**6
    return -1


def _read_call(entry: _Entry, now_ns: int) -> Call:
    sizes, types = entry.input_sizes, entry.input_dtypes
    is_plain = isinstance(sizes, list) and isinstance(types, list) and len(sizes) == len(types)
    shape = ", ".join(map("{}{}".format, types, sizes)) if is_plain else f"{sizes} {types}"
    return Call(
        number=entry.collective_seq_id,
        operation=entry.profiling_name.rpartition(":")[2],
        shape=shape if len(shape) <= SHAPE_MAX else shape[: SHAPE_MAX - 3] + "...",
        is_open=not entry.retired,
        age_s=round(max(0, now_ns - entry.time_created_ns) / 1e9, 3),
    )
