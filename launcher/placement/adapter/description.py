"""The description of a node that joins, and the assignment that it gets: the two texts that the agreement carries.

The agreement reads neither. Both come back from the store, so they are validated like any input: another version or
program may have written them. An invalid text is refused in a sentence, and never stops a job.
"""

from __future__ import annotations

import json
import math

from rendezvous.errors import RecordError
from rendezvous.values import MISSING, dataclass, fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    _Record = TypeVar("_Record", "Description", "NodeAssignment")

_TEXT_MAX = 255
_SLOTS_MAX = 10_000
_AXES_MAX = 64
_RANKS_MAX = 10_000_000
_NODES_MAX = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Description:
    """The description of a node. `master_port` 0: rank 0 listens on the port offered per round.

    `node_rank`: its number, if the user has set it; `master_addr` is then its workers' MASTER_ADDR. `name`: the node's
    display name, `machine`: the kernel's id of this boot, "" in a job of one machine. `locality`: the levels of the
    network at which its domain is known, outermost first, each with the domain's name; the leader merges those of all
    nodes into one path of levels. `index`: its place in its slice, see `Node`; `slice_hosts`: the number of hosts of a
    complete slice, 0 without one; `host_pattern`: their names, see `Node`.
    """

    slot_count: int
    address: str
    role: str
    name: str = ""
    machine: str = ""
    locality: tuple[tuple[str, str], ...] = ()
    index: int | None = None
    slice_hosts: int = 0
    host_pattern: str = ""
    master_port: int = 0
    node_rank: int | None = None
    master_addr: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeAssignment:
    """One node's part of a round: one rank per slot, in slot order, and the values common to all nodes.

    `summary` describes the round in a few words; empty in a job of one machine. `slice_index`: the number of the
    node's TPU slice in this round, of `slice_count`; 0 where there are none.
    """

    ranks: tuple[int, ...]
    world_size: int
    shape: tuple[int, ...]
    group_rank: int
    group_world_size: int
    role_ranks: tuple[int, ...]
    role_world_size: int
    master_addr: str
    master_port: int
    summary: str = ""
    slice_index: int = 0
    slice_count: int = 0


def encode_description(description: Description) -> str:
    return json.dumps(vars(description))


def encode_assignment(assignment: NodeAssignment) -> str:
    return json.dumps(vars(assignment))


def decode_description(text: str) -> Description:
    """Raises RecordError, which says what is wrong, for anything that `encode_description` did not write."""
    found = _decode(Description, text, "description")
    _require(0 < found.slot_count <= _SLOTS_MAX, f"slot_count {found.slot_count}")
    _require(0 <= found.master_port < 65536, f"master_port {found.master_port}")
    _require(0 <= found.slice_hosts <= _NODES_MAX, f"slice_hosts {found.slice_hosts}")
    _require(found.index is None or 0 <= found.index < _NODES_MAX, f"index {found.index}")
    if found.locality:
        _require_locality(found.locality)
    _require(found.node_rank is None or 0 <= found.node_rank < _NODES_MAX, f"node_rank {found.node_rank}")
    texts = (found.address, found.role, found.name, found.machine, found.master_addr, found.host_pattern)
    for name in texts:
        _require(len(name) <= _TEXT_MAX and name.isprintable(), f"the text {name[:40]!r}")
    _require(bool(found.address), "no address")
    return found


def _require_locality(locality: tuple[tuple[str, str], ...]) -> None:
    from launcher.model.locality_path import LEVELS_MAX, is_level_name, is_text  # one machine does not need it

    _require(len(locality) <= LEVELS_MAX, f"a place of {len(locality)} levels")
    for level, domain in locality:
        for name in (level, domain):
            _require(is_text(name), f"the text {name[:40]!r} in its place")
        _require(is_level_name(level), f"a level {level!r}")
    names = [level for level, _ in locality]
    _require(len(set(names)) == len(names), "a level twice in its place")


def decode_assignment(text: str) -> NodeAssignment:
    """Read what `encode_assignment` wrote. Raises RecordError."""
    found = _decode(NodeAssignment, text, "assignment")
    is_whole = 0 < len(found.ranks) == len(found.role_ranks) and found.world_size <= _RANKS_MAX
    is_whole = is_whole and _are_valid_ranks(found.ranks, found.world_size)
    _require(is_whole and _are_valid_ranks(found.role_ranks, found.role_world_size), "ranks that cannot be")
    is_grid = 0 < len(found.shape) <= _AXES_MAX and all(0 < length <= found.world_size for length in found.shape)
    is_right = is_grid and math.prod(found.shape) == found.world_size
    _require(is_right, f"a grid of {found.shape[:_AXES_MAX]} for {found.world_size} ranks")
    is_node = 0 <= found.group_rank < found.group_world_size <= found.world_size
    _require(is_node and found.role_world_size <= found.world_size, f"group_rank {found.group_rank}")
    _require(0 < found.master_port < 65536, f"port {found.master_port}")
    is_host = 0 < len(found.master_addr) <= _TEXT_MAX and found.master_addr.isprintable()
    _require(is_host, f"the address {found.master_addr[:40]!r}")
    is_slice = 0 <= found.slice_index < max(1, found.slice_count) <= _NODES_MAX
    _require(is_slice, f"slice {found.slice_index} of {found.slice_count}")
    return found


def _are_valid_ranks(ranks: tuple[int, ...], count: int) -> bool:
    """Whether these are different ranks below `count`."""
    return len(set(ranks)) == len(ranks) and all(0 <= rank < count for rank in ranks)


def _decode(kind: type[_Record], text: str, what: str) -> _Record:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise RecordError(f"its {what} is not JSON") from None
    if not isinstance(content, dict):
        raise RecordError(f"its {what} is not an object")
    if kind is Description and "path" in content:  # the format before levels had names
        raise RecordError("it is of another version of meshrun: run the same version on every node")
    known: dict[str, Any] = {}
    for item in fields(kind):
        if item.name not in content:
            if item.default is MISSING:
                raise RecordError(f"its {what} lacks {item.name}")
            continue
        value = content[item.name]
        _require(_has_type(value, str(item.type)), f"{item.name} {value!r:.40}")
        known[item.name] = _make_tuple(value)
    return kind(**known)


def _has_type(value: object, kind: str) -> bool:
    """Whether JSON's value fits the annotation, which is a string here."""
    if kind.startswith("tuple[int"):
        return isinstance(value, list) and all(_has_type(one, "int") for one in value)
    if kind.startswith("tuple[tuple["):
        return isinstance(value, list) and all(isinstance(one, list) and _is_pair(one) for one in value)
    if kind.endswith("| None") and value is None:
        return True
    if kind.startswith("int"):
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53
    return isinstance(value, str)


def _is_pair(value: list[object]) -> bool:
    return len(value) == 2 and all(isinstance(one, str) for one in value)


def _make_tuple(value: object) -> object:
    """Convert JSON's lists to tuples."""
    return tuple(map(_make_tuple, value)) if isinstance(value, list) else value


def _require(is_right: bool, what: str) -> None:
    if not is_right:
        raise RecordError(f"it has {what}, which this version does not write")
