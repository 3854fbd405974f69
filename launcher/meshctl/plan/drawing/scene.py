"""The content of a picture of a plan, without positions: the tree of domains, and tiles with their coordinates.

A tile is a node; in a large cluster a few neighbours share one, so that a picture never has too many tiles to read.
Two axes of the mesh become colours: the pipeline's stages the hue, the data-parallel groups the shade.
A mesh without such axes shows its outermost axes that are spread over nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from launcher.meshctl.plan.drawing.lettering import format_ranges
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.text import format_count
from launcher.model.topology import Tree, build_tree
from launcher.model.traffic import DEFAULTS
from launcher.placement.limits import Plan

TILES_MAX = 1024
FRAMES_MAX = 300
STAGE_AXES = frozenset(name for name, usual in DEFAULTS.items() if usual == DEFAULTS["pp"])
GROUP_AXES = frozenset(name for name, usual in DEFAULTS.items() if usual == DEFAULTS["dp"])


class Colouring(NamedTuple):
    """The axes of the mesh, by position, that are shown as hue and as shade; None: no axis."""

    hue: int | None
    shade: int | None

    def swap_axes(self) -> Colouring:
        """Exchange hue and shade, if there are both."""
        return Colouring(self.shade, self.hue) if self.shade is not None else self


class RankSpan(NamedTuple):
    """A run of ranks with the same coordinates on the coloured axes."""

    hue: int
    shade: int
    rank_count: int


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One node, or `node_count` neighbours; `spare_count` of them have no ranks. `location`: "pod p0, leaf l3"."""

    name: str
    location: str
    node_count: int
    spare_count: int
    ranks: str
    spans: tuple[RankSpan, ...]


@dataclass(frozen=True, kw_only=True)
class DomainFrame:
    """A domain of the tree. The children of the innermost ones are tiles, of all others domains.

    `is_unknown`: no domain, but the nodes whose domain of this level is unknown.
    """

    level: str
    name: str
    is_unknown: bool
    children: tuple[DomainFrame | Tile, ...]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """`depth`: levels of frames below `root`. `notes`: what was left out to keep the picture readable."""

    root: DomainFrame
    depth: int
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    colouring: Colouring
    node_count: int
    notes: tuple[str, ...]


def build_scene(
    plan: Plan, nodes: Sequence[Node], mesh: Mesh, levels: Sequence[str], colouring: Colouring | None = None
) -> Scene:
    """Build the scene, with the given or the usual colouring; the same for every order of the nodes."""
    wood = build_tree(nodes, levels)
    colouring = colouring or choose_colouring(plan, mesh)
    levels_shown = _choose_levels(wood)
    leaves = _group_by_domain(wood, range(len(wood.nodes)), levels_shown)
    together = 1
    while sum(-(-len(leaf) // together) for leaf in leaves) > max(TILES_MAX, len(leaves)):
        together *= 2
    notes = []
    if together > 1:
        notes.append(f"a cell stands for up to {format_count(together, 'neighbouring node')}")
    if hidden := [
        level for index, level in enumerate(wood.levels) if index not in levels_shown and _is_informative(wood, index)
    ]:
        notes.append(f"domains of {' and '.join(hidden)} are too many to be drawn")
    coordinates = _RankCoordinates(plan, colouring)
    return Scene(
        root=_build_domain(wood, tuple(range(len(wood.nodes))), levels_shown, coordinates, together),
        depth=len(levels_shown),
        axes=tuple(axis.name for axis in mesh.axes),
        shape=plan.shape,
        colouring=colouring,
        node_count=len(wood.nodes),
        notes=tuple(notes),
    )


def choose_colouring(plan: Plan, mesh: Mesh) -> Colouring:
    """Choose the axes to colour by: those of stages and of groups, else the outermost that are spread over nodes."""
    names = [axis.name for axis in mesh.axes]
    sizes = plan.shape
    spread = [index for index in range(len(sizes)) if sizes[index] > 1 and _is_spread(plan, index)]
    if not spread:
        spread = [index for index, size in enumerate(sizes) if size > 1][:1]
    hue = next((index for index in spread if names[index].lower() in STAGE_AXES), None)
    shade = next((index for index in spread if names[index].lower() in GROUP_AXES and index != hue), None)
    if shade is None:
        shade = next((index for index in spread if mesh.axes[index].size is None and index != hue), None)
    rest = [index for index in spread if index not in (hue, shade)]
    if hue is None and rest:
        hue = rest.pop(0)
    if shade is None and rest:
        shade = rest.pop(0)
    return Colouring(shade, None) if hue is None else Colouring(hue, shade)


def _is_spread(plan: Plan, axis: int) -> bool:
    """Whether some node lacks some coordinate of the axis; else its colour would carry no information."""
    coordinates = np.unravel_index(np.arange(plan.world_size), plan.shape)[axis]
    return any(len(np.unique(coordinates[list(ranks)])) < plan.shape[axis] for ranks in plan.ranks.values())


def _is_informative(tree: Tree, level: int) -> bool:
    """Whether the level puts any two nodes together."""
    return len(tree.names[level]) < len(tree.nodes)


def _choose_levels(tree: Tree) -> tuple[int, ...]:
    """Choose the levels that have frames: those with information, from the outermost, as far as there is room."""
    shown: list[int] = []
    for level in range(len(tree.levels)):
        if not _is_informative(tree, level):
            continue
        if len(_group_by_domain(tree, range(len(tree.nodes)), (*shown, level))) > FRAMES_MAX:
            break
        shown.append(level)
    return tuple(shown)


def _find_domain(tree: Tree, position: int, level: int) -> int | None:
    """Return the node's domain; None if it is unknown from this level on, which makes the node a domain of its own."""
    path = tree.nodes[position].path
    return tree.domains[level][position] if any(name is not None for name in path[level:]) else None


def _group_by_domain(tree: Tree, positions: Sequence[int], levels: Sequence[int]) -> list[list[int]]:
    """Group the positions by their domains of `levels`, in order."""
    groups: dict[tuple[int | None, ...], list[int]] = {}
    for position in positions:
        groups.setdefault(tuple(_find_domain(tree, position, level) for level in levels), []).append(position)
    return list(groups.values())


class _RankCoordinates:
    """The coloured coordinates of every rank."""

    def __init__(self, plan: Plan, colouring: Colouring) -> None:
        self.ranks: Mapping[str, tuple[int, ...]] = plan.ranks
        every = np.unravel_index(np.arange(plan.world_size), plan.shape)
        nothing = np.zeros(plan.world_size, dtype=np.int64)
        self.hue, self.shade = ((nothing if axis is None else every[axis]).tolist() for axis in colouring)

    def split_ranks(self, ranks: Sequence[int]) -> tuple[RankSpan, ...]:
        found: list[RankSpan] = []
        for rank in ranks:
            here = (self.hue[rank], self.shade[rank])
            if found and found[-1][:2] == here:
                found[-1] = RankSpan(*here, found[-1].rank_count + 1)
            else:
                found.append(RankSpan(*here, 1))
        return tuple(found)


def _build_domain(
    tree: Tree,
    positions: Sequence[int],
    levels: Sequence[int],
    coordinates: _RankCoordinates,
    nodes_per_tile: int,
    depth: int = 0,
) -> DomainFrame:
    children: list[DomainFrame | Tile]
    if depth == len(levels):
        starts = range(0, len(positions), nodes_per_tile)
        children = [
            _build_tile(tree, positions[start : start + nodes_per_tile], levels, coordinates) for start in starts
        ]
    else:
        inner = _group_by_domain(tree, positions, levels[depth : depth + 1])
        children = [_build_domain(tree, group, levels, coordinates, nodes_per_tile, depth + 1) for group in inner]
    if depth == 0:
        return DomainFrame(level="", name="", is_unknown=False, children=tuple(children))
    level, first = levels[depth - 1], positions[0]
    is_unknown = _find_domain(tree, first, level) is None
    return DomainFrame(
        level=tree.levels[level],
        name="unknown" if is_unknown else _shorten_name(tree, first, level, levels[: depth - 1]),
        is_unknown=is_unknown,
        children=tuple(children),
    )


def _shorten_name(tree: Tree, position: int, level: int, above: Sequence[int]) -> str:
    """Return the name of the domain inside its enclosing frame: "l3" of "p0/l3"."""
    name = tree.names[level][tree.domains[level][position]]
    outer = tree.names[above[-1]][tree.domains[above[-1]][position]] + "/" if above else ""
    return name[len(outer) :] if outer and name.startswith(outer) else name


def _build_tile(tree: Tree, positions: Sequence[int], levels: Sequence[int], coordinates: _RankCoordinates) -> Tile:
    nodes = [tree.nodes[position] for position in positions]
    ranks = [rank for node in nodes for rank in coordinates.ranks.get(node.id, ())]
    places = []
    for depth, level in enumerate(levels):
        known = _find_domain(tree, positions[0], level) is not None
        name = _shorten_name(tree, positions[0], level, levels[:depth]) if known else "unknown"
        places.append(f"{tree.levels[level]} {name}")
    return Tile(
        name=nodes[0].id if len(nodes) == 1 else f"{nodes[0].id} … {nodes[-1].id}",
        location=", ".join(places),
        node_count=len(nodes),
        spare_count=sum(1 for node in nodes if not coordinates.ranks.get(node.id)),
        ranks=format_ranges(ranks),
        spans=coordinates.split_ranks(ranks),
    )
