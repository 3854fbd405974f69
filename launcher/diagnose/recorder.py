"""Reads a dump of torch's flight recorder: the collectives that a rank has entered, by process group.

The dump is JSON of format 2. Its table of groups, `pg_config`, is empty under gloo, so groups are taken from the
entries, which name them alike on all ranks. `state` stays "scheduled" under gloo; `retired` does not lag. Operations
from point to point are not numbered like collectives, and gloo's are not recorded at all: they are left out, as are
coalesced operations, whose numbers differ between ranks (pytorch#125173).
"""

from __future__ import annotations

from typing import Any

import msgspec

from launcher.diagnose.evidence import Call, GroupCalls

DUMP_MAX = 32 * 2**20
"""Bytes: a ring of 2,000 entries has about 1 MB."""
SHAPE_MAX = 80
GROUPS_MAX = 8


class _Entry(msgspec.Struct):
    process_group: tuple[str, str]
    collective_seq_id: int
    pg_id: int
    profiling_name: str
    retired: bool
    time_created_ns: int
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
        raise ValueError(f"the flight recorder's dump has {len(dump):,} bytes, {DUMP_MAX:,} are the most")
    try:
        found = msgspec.json.decode(dump, type=_Dump)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the flight recorder's dump cannot be read: {error}") from None
    groups: dict[tuple[str, str], list[_Entry]] = {}
    for entry in found.entries:
        if not entry.is_p2p and "coalesced" not in entry.profiling_name:
            groups.setdefault(entry.process_group, []).append(entry)
    known = {str(entry.pg_id) for entry in found.entries}
    calls = [_read_group(name, entries, now_ns) for name, entries in groups.items()]
    calls.sort(key=lambda group: group.calls[-1].age_s)
    return tuple(calls[:GROUPS_MAX]), bool(found.pg_status.keys() - known) or len(calls) > GROUPS_MAX


def _read_group(name: tuple[str, str], entries: list[_Entry], now_ns: int) -> GroupCalls:
    ordered = sorted(entries, key=lambda entry: entry.collective_seq_id)
    first_open = next((entry for entry in ordered if not entry.retired), None)
    shown = [ordered[-1]] if first_open in (None, ordered[-1]) else [first_open, ordered[-1]]
    return GroupCalls(
        name=name[0], description=name[1], calls=tuple(_read_call(entry, now_ns) for entry in shown if entry)
    )


def _read_call(entry: _Entry, now_ns: int) -> Call:
    shape = f"{entry.input_sizes} {entry.input_dtypes}"
    return Call(
        number=entry.collective_seq_id,
        operation=entry.profiling_name.rpartition(":")[2],
        shape=shape if len(shape) <= SHAPE_MAX else shape[: SHAPE_MAX - 3] + "...",
        is_open=not entry.retired,
        age_s=max(0, now_ns - entry.time_created_ns) / 1e9,
    )
