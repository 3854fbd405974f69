"""Changes of a cluster: nodes that are lost, nodes that join, and the ranks that move.

    h17           a node that is lost
    h40=p0/l3     a node that joins, in leaf l3 of pod p0
    h40           a node that joins in the place of one that is lost, the first for the first; if none is lost,
                  its locality is unknown

A node that joins has as many devices as most of the others.

What a change moves is counted by coordinates of the mesh: the worker at pp=1, dp=3 finds its checkpoint shard and its
caches where it was, even if its rank has changed. Coordinates that are new do not move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from launcher.meshctl.plan.cluster import ClusterSpec, require_size
from launcher.meshctl.plan.generate import make_address
from launcher.model import odd_text
from launcher.model.errors import UsageError, suggest
from launcher.model.locality_path import is_text
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.ranges import merge_names
from launcher.model.text import format_count, format_list
from launcher.model.topology import sort_nodes
from launcher.placement.limits import Plan
from launcher.placement.stability import find_owners


def apply_changes(cluster: ClusterSpec, lost: Sequence[str], joined: Sequence[str]) -> ClusterSpec:
    """Return the cluster after these changes, each from `parse_list`. Raises UsageError."""
    gone = _find_lost(cluster, lost)
    gone_ids = {node.id for node in gone}
    stays = [node for node in cluster.nodes if node.id not in gone_ids]
    nodes = (*stays, *_make_newcomers(cluster, gone, joined))
    require_size(len(nodes), sum(node.slot_count for node in nodes), f"{cluster.name} with --join")
    return replace(cluster, nodes=nodes)


def parse_list(texts: Sequence[str], flag: str) -> list[str]:
    """Return the entries of a flag that may be repeated, each with a list. Raises UsageError."""
    words = [(word.strip(), text) for text in texts if text for word in text.split(",")]
    for word, text in words:
        if not word:
            raise UsageError(
                f"--{flag} {text!r} has an empty entry", f"separate nodes with one comma: --{flag} h17,h23"
            )
    for word, count in Counter(word for word, _ in words).items():
        if count > 1:
            raise UsageError(f"--{flag} contains {word} twice")
    return [word for word, _ in words]


def _find_lost(cluster: ClusterSpec, ids: Sequence[str]) -> list[Node]:
    by_id = {node.id: node for node in cluster.nodes}
    for name in ids:
        if name not in by_id:
            question = suggest(name, {each: each for each in by_id}) if len(by_id) <= 1000 else ""
            hint = odd_text.explain(name) or question or _describe_nodes(cluster)
            raise UsageError(f"--lose: {cluster.name} has no node {name!r}", hint)
    return [by_id[name] for name in ids]


def _describe_nodes(cluster: ClusterSpec) -> str:
    names = [node.id for node in sort_nodes(cluster.nodes)]
    return f"use one of {format_list(merge_names(names), 8)}"


def _make_newcomers(cluster: ClusterSpec, lost: Sequence[Node], entries: Sequence[str]) -> list[Node]:
    present = {node.id for node in cluster.nodes}
    places = list(lost)
    arrivals = max(node.order for node in cluster.nodes) + 1
    counts = Counter(node.slot_count for node in cluster.nodes)
    slot_count = max(counts, key=lambda size: (counts[size], size))
    nowhere = Node(id="", slot_count=slot_count, path=(None,) * len(cluster.levels))
    newcomers: list[Node] = []
    for index, word in enumerate(entries):
        name, equals, path = (piece.strip() for piece in word.partition("="))
        if not is_text(name) or name in present:
            why = "already exists" if name in present else "is not a name"
            raise UsageError(f"--join: {name!r} {why}", "choose another id for the new node")
        present.add(name)
        place = replace(nowhere, path=_parse_path(path, cluster)) if equals else places.pop(0) if places else nowhere
        address = make_address(len(cluster.nodes) + index) if cluster.is_generated else ""
        newcomers.append(replace(place, id=name, slot_count=slot_count, address=address, order=arrivals + index))
    return newcomers


def _parse_path(text: str, cluster: ClusterSpec) -> tuple[str | None, ...]:
    path = [entry.strip() or None for entry in text.split("/")]
    if len(path) != len(cluster.levels) or not all(entry is None or is_text(entry) for entry in path):
        hint = (
            f"use the form {'/'.join(cluster.levels)}" if cluster.levels else "omit the path: the cluster has no levels"
        )
        raise UsageError(f"--join: {text!r} is not a path in {cluster.name}", hint)
    return tuple(path)


class Move(NamedTuple):
    """A number of ranks that go from one node to another."""

    source: str
    target: str
    rank_count: int


def list_moves(before: Plan, after: Plan, mesh: Mesh) -> list[Move]:
    """List all moves, those of most ranks first, then in the order of ranks. `before`: a plan of this mesh, too."""
    holders = {rank: node for node, ranks in after.ranks.items() for rank in ranks}
    owners = find_owners(before, mesh, after.shape) or ()
    counts = Counter((old, holders[rank]) for rank, old in enumerate(owners) if old not in (None, holders[rank]))
    return [Move(old, new, count) for (old, new), count in counts.most_common() if old is not None]


LOST = "lost"
"""The remark on a node that is lost."""


class Change(Struct, frozen=True, kw_only=True):
    """What a change of the cluster does to a plan."""

    nodes: tuple[Node, ...]
    """All of before and after."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """Node id -> LOST, "(new)", or where its ranks come from: "from h3"."""
    sentence: str = ""
    """ "h3 is lost; 8 of 224 ranks move: 8 from h3 to h7" """


def describe_change(cluster: ClusterSpec, after: ClusterSpec, before: Plan | None, plan: Plan, mesh: Mesh) -> Change:
    """Describe what differs between the plan before, of `cluster`, and the plan after."""
    if before is None:
        return Change(nodes=after.nodes)
    stays = {node.id for node in after.nodes}
    known = {node.id for node in cluster.nodes}
    lost = [node for node in cluster.nodes if node.id not in stays]
    # A plan from elsewhere may name nodes of which the cluster knows nothing.
    unknown = (None,) * len(cluster.levels)
    lost += [
        Node(id=id, slot_count=len(ranks), path=unknown)
        for id, ranks in before.ranks.items()
        if id not in stays and id not in known
    ]
    joined = [node.id for node in after.nodes if node.id not in known]
    if not lost and not joined and before.ranks == plan.ranks:
        return Change(nodes=after.nodes)
    moves = list_moves(before, plan, mesh)
    remarks = dict.fromkeys((node.id for node in lost), LOST) | dict.fromkeys(joined, "(new)")
    sources: dict[str, list[str]] = {}
    for move in moves:
        sources.setdefault(move.target, []).append(move.source)
    for id, own in sources.items():
        if id in known:
            remarks[id] = f"from {own[0] if len(own) == 1 else f'{len(own)} nodes'}"
    sentence = _describe_change([node.id for node in lost], joined, plan, moves)
    return Change(nodes=(*after.nodes, *lost), remarks=remarks, sentence=sentence)


def _describe_change(lost: Sequence[str], joined: Sequence[str], plan: Plan, moves: Sequence[Move]) -> str:
    said = []
    for ids, verbs in ((lost, ("is lost", "are lost")), (joined, ("joins", "join"))):
        if ids:
            said.append(f"{format_list(merge_names(ids), 4)} {verbs[len(ids) > 1]}")
    return "; ".join((*said, describe_moves(plan, moves, " move")))


def describe_moves(plan: Plan, moves: Sequence[Move], verb: str = "") -> str:
    """Describe how many ranks of the plan change their node, and from where to where."""
    text = f"{plan.moved:,} of {format_count(plan.world_size, 'rank')}{verb}"
    if moves:
        text += ": " + format_list([f"{move.rank_count} from {move.source} to {move.target}" for move in moves], 4)
    return text
