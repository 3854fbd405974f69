"""The description of a node that joins, and the assignment that it gets: the two texts that the agreement carries.

The agreement reads neither. Both come back from the store, so they are validated like any input: another program may
have written them. An invalid text is refused in a sentence, and never stops a job.
"""

import math
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from rendezvous import codec
from rendezvous.errors import RecordError
from rendezvous.reasons import Reason
from rendezvous.records import Port

Text = Annotated[str, Meta(max_length=255)]
SlotCount = Annotated[int, Meta(gt=0, le=10_000)]
NodeIndex = Annotated[int, Meta(ge=0, lt=1_000_000)]
NodeCount = Annotated[int, Meta(ge=0, le=1_000_000)]
RankCount = Annotated[int, Meta(gt=0, le=10_000_000)]
Ranks = Annotated[tuple[int, ...], Meta(min_length=1)]
Shape = Annotated[tuple[RankCount, ...], Meta(min_length=1, max_length=64)]


class Description(Struct, frozen=True, kw_only=True):
    """The description of a node."""

    slot_count: SlotCount
    address: Text
    role: Text
    name: Text = ""
    """The node's display name."""
    machine: Text = ""
    """The kernel's id of this boot, "" in a job of one machine."""
    locality: tuple[tuple[str, str], ...] = ()
    """The levels of the network at which its domain is known, outermost first, each with the domain's name; the leader
    merges those of all nodes into one path of levels.
    """
    index: NodeIndex | None = None
    """Its place in its slice, see `Node`."""
    slice_hosts: NodeCount = 0
    """The number of hosts of a complete slice, 0 without one."""
    host_pattern: Text = ""
    """The host names of its slice, see `Node`."""
    master_port: Port = 0
    """0 if rank 0 listens on the port offered per round."""
    node_rank: NodeIndex | None = None
    """Its number, if the user has set it; `master_addr` is then its workers' MASTER_ADDR."""
    master_addr: Text = ""


class NodeAssignment(Struct, frozen=True, kw_only=True):
    """One node's part of a round, and the values common to all nodes."""

    ranks: Ranks
    """One per slot, in slot order."""
    world_size: RankCount
    shape: Shape
    group_rank: int
    group_world_size: int
    role_ranks: Ranks
    role_world_size: int
    master_addr: Text
    master_port: Port = 0
    """0 for the port that the round's seal names."""
    summary: Reason | None = None
    """The round in a few words; None in a job of one machine."""
    slice_index: int = 0
    """The number of the node's TPU slice in this round."""
    slice_count: NodeCount = 0
    """0 without slices."""


def encode_description(description: Description) -> str:
    return codec.encode(description).decode()


def encode_assignment(assignment: NodeAssignment) -> str:
    return codec.encode(assignment).decode()


def decode_description(text: str) -> Description:
    """Raises RecordError, which says what is wrong, for anything that `encode_description` did not write."""
    found = codec.decode(Description, text, "its description")
    if found.locality:
        _require_locality(found.locality)
    texts = (found.address, found.role, found.name, found.machine, found.master_addr, found.host_pattern)
    for name in texts:
        _require(name.isprintable(), f"the text {name[:40]!r}")
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


def decode_assignment(text: str, coordinator: str = "") -> NodeAssignment:
    """Read what `encode_assignment` wrote, with the port of `coordinator`, HOST:PORT. Raises RecordError."""
    found = codec.decode(NodeAssignment, text, "its assignment")
    are_ranks = len(found.ranks) == len(found.role_ranks) and _are_valid_ranks(found.ranks, found.world_size)
    _require(are_ranks and _are_valid_ranks(found.role_ranks, found.role_world_size), "ranks that cannot be")
    is_grid = math.prod(found.shape) == found.world_size
    _require(is_grid, f"a grid of {found.shape} for {found.world_size} ranks")
    is_node = 0 <= found.group_rank < found.group_world_size <= found.world_size
    _require(is_node and found.role_world_size <= found.world_size, f"group_rank {found.group_rank}")
    is_host = bool(found.master_addr) and found.master_addr.isprintable()
    _require(is_host, f"the address {found.master_addr[:40]!r}")
    is_slice = 0 <= found.slice_index < max(1, found.slice_count)
    _require(is_slice, f"slice {found.slice_index} of {found.slice_count}")
    if coordinator and not found.master_port:
        port = coordinator.rpartition(":")[2]
        _require(port.isascii() and port.isdigit() and 0 < int(port[:6]) < 2**16, f"the port {port[:40]!r}")
        found = replace(found, master_port=int(port))
    return found


def _are_valid_ranks(ranks: tuple[int, ...], count: int) -> bool:
    """Whether these are different ranks below `count`."""
    return len(set(ranks)) == len(ranks) and all(0 <= rank < count for rank in ranks)


def _require(is_right: bool, what: str) -> None:
    if not is_right:
        raise RecordError(f"it has {what}, which meshrun does not write")
