"""What a picture of a plan shows, before anybody asks where: the tree of domains, and tiles with their coordinates.

A tile is a node; in a large cluster a few neighbours share one, so that a picture never has more tiles than an eye
can take in. Two axes of the mesh become colours: the pipeline's stages the hue, the data-parallel groups the shade.
A mesh without such axes shows its outermost axes that are spread over nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Plan
from launcher.preview.lettering import counted, spans
from launcher.topology import Tree, tree
from launcher.traffic import USUAL

TILES_MAX = 1024
FRAMES_MAX = 300
STAGES = frozenset(name for name, usual in USUAL.items() if usual == USUAL["pp"])
GROUPS = frozenset(name for name, usual in USUAL.items() if usual == USUAL["dp"])


class Colouring(NamedTuple):
    """Which axes of the mesh, by position, are shown as hue and as shade; None: there is none to show."""

    hue: int | None
    shade: int | None

    def turned(self) -> Colouring:
        """Hue and shade exchanged, if there are both."""
        return Colouring(self.shade, self.hue) if self.shade is not None else self


class Part(NamedTuple):
    """A run of ranks with the same coordinates on the coloured axes."""

    hue: int
    shade: int
    rank_count: int


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One node, or `node_count` neighbours; `spare_count` of them have no ranks. `where`: "pod p0, leaf l3"."""

    name: str
    where: str
    node_count: int
    spare_count: int
    ranks: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A place in the tree. The children of the innermost ones are tiles, of all others domains.

    `is_unknown`: no domain, but the nodes of which nobody knows their domain of this level.
    """

    level: str
    name: str
    is_unknown: bool
    children: tuple[Domain | Tile, ...]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """`depth`: levels of frames below `root`. `notes`: what was left out to keep the picture readable."""

    root: Domain
    depth: int
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    colouring: Colouring
    node_count: int
    notes: tuple[str, ...]


def scene(
    plan: Plan, nodes: Sequence[Node], mesh: Mesh, levels: Sequence[str], colouring: Colouring | None = None
) -> Scene:
    """What there is to see, coloured as asked for or as is usual; the same for every order of the nodes."""
    wood = tree(nodes, levels)
    colouring = colouring or choose(plan, mesh)
    levels_shown = _levels_shown(wood)
    leaves = _split(wood, range(len(wood.nodes)), levels_shown)
    together = 1
    while sum(-(-len(leaf) // together) for leaf in leaves) > max(TILES_MAX, len(leaves)):
        together *= 2
    notes = []
    if together > 1:
        notes.append(f"a cell stands for up to {counted(together, 'neighbouring node')}")
    if hidden := [
        level for index, level in enumerate(wood.levels) if index not in levels_shown and _tells(wood, index)
    ]:
        notes.append(f"domains of {' and '.join(hidden)} are too many to be drawn")
    coordinates = _Coordinates(plan, colouring)
    return Scene(
        root=_domain(wood, tuple(range(len(wood.nodes))), levels_shown, coordinates, together),
        depth=len(levels_shown),
        axes=tuple(axis.name for axis in mesh.axes),
        shape=plan.shape,
        colouring=colouring,
        node_count=len(wood.nodes),
        notes=tuple(notes),
    )


def choose(plan: Plan, mesh: Mesh) -> Colouring:
    """The axes to colour by: those of stages and of groups, else the outermost that are spread over nodes."""
    names = [axis.name for axis in mesh.axes]
    sizes = plan.shape
    spread = [index for index in range(len(sizes)) if sizes[index] > 1 and _is_spread(plan, index)]
    if not spread:
        spread = [index for index, size in enumerate(sizes) if size > 1][:1]
    hue = next((index for index in spread if names[index].lower() in STAGES), None)
    shade = next((index for index in spread if names[index].lower() in GROUPS and index != hue), None)
    if shade is None:
        shade = next((index for index in spread if mesh.axes[index].size is None and index != hue), None)
    rest = [index for index in spread if index not in (hue, shade)]
    if hue is None and rest:
        hue = rest.pop(0)
    if shade is None and rest:
        shade = rest.pop(0)
    return Colouring(shade, None) if hue is None else Colouring(hue, shade)


def _is_spread(plan: Plan, axis: int) -> bool:
    """Whether some node lacks some coordinate of the axis; else its colour would tell nothing."""
    coordinates = np.unravel_index(np.arange(plan.world_size), plan.shape)[axis]
    return any(len(np.unique(coordinates[list(ranks)])) < plan.shape[axis] for ranks in plan.ranks.values())


def _tells(wood: Tree, level: int) -> bool:
    """Whether the level puts any two nodes together."""
    return len(wood.names[level]) < len(wood.nodes)


def _levels_shown(wood: Tree) -> tuple[int, ...]:
    """The levels that have frames: none that tells nothing, and from the outermost as many as there is room for."""
    shown: list[int] = []
    for level in range(len(wood.levels)):
        if not _tells(wood, level):
            continue
        if len(_split(wood, range(len(wood.nodes)), (*shown, level))) > FRAMES_MAX:
            break
        shown.append(level)
    return tuple(shown)


def _key(wood: Tree, position: int, level: int) -> int | None:
    """The node's domain; None if it is unknown here and from here on, which makes the node a domain of its own."""
    path = wood.nodes[position].path
    return wood.domains[level][position] if any(name is not None for name in path[level:]) else None


def _split(wood: Tree, positions: Sequence[int], levels: Sequence[int]) -> list[list[int]]:
    """The positions by their domains of `levels`, in order."""
    groups: dict[tuple[int | None, ...], list[int]] = {}
    for position in positions:
        groups.setdefault(tuple(_key(wood, position, level) for level in levels), []).append(position)
    return list(groups.values())


class _Coordinates:
    """The coloured coordinates of every rank."""

    def __init__(self, plan: Plan, colouring: Colouring) -> None:
        self.ranks: Mapping[str, tuple[int, ...]] = plan.ranks
        every = np.unravel_index(np.arange(plan.world_size), plan.shape)
        nothing = np.zeros(plan.world_size, dtype=np.int64)
        self.hue, self.shade = ((nothing if axis is None else every[axis]).tolist() for axis in colouring)

    def parts(self, ranks: Sequence[int]) -> tuple[Part, ...]:
        found: list[Part] = []
        for rank in ranks:
            here = (self.hue[rank], self.shade[rank])
            if found and found[-1][:2] == here:
                found[-1] = Part(*here, found[-1].rank_count + 1)
            else:
                found.append(Part(*here, 1))
        return tuple(found)


def _domain(
    wood: Tree,
    positions: Sequence[int],
    levels: Sequence[int],
    coordinates: _Coordinates,
    together: int,
    depth: int = 0,
) -> Domain:
    children: list[Domain | Tile]
    if depth == len(levels):
        starts = range(0, len(positions), together)
        children = [_tile(wood, positions[start : start + together], levels, coordinates) for start in starts]
    else:
        inner = _split(wood, positions, levels[depth : depth + 1])
        children = [_domain(wood, group, levels, coordinates, together, depth + 1) for group in inner]
    if depth == 0:
        return Domain(level="", name="", is_unknown=False, children=tuple(children))
    level, first = levels[depth - 1], positions[0]
    is_unknown = _key(wood, first, level) is None
    return Domain(
        level=wood.levels[level],
        name="unknown" if is_unknown else _name(wood, first, level, levels[: depth - 1]),
        is_unknown=is_unknown,
        children=tuple(children),
    )


def _name(wood: Tree, position: int, level: int, above: Sequence[int]) -> str:
    """What to call the domain inside the frame around it: "l3" of "p0/l3"."""
    name = wood.names[level][wood.domains[level][position]]
    outer = wood.names[above[-1]][wood.domains[above[-1]][position]] + "/" if above else ""
    return name[len(outer) :] if outer and name.startswith(outer) else name


def _tile(wood: Tree, positions: Sequence[int], levels: Sequence[int], coordinates: _Coordinates) -> Tile:
    nodes = [wood.nodes[position] for position in positions]
    ranks = [rank for node in nodes for rank in coordinates.ranks.get(node.id, ())]
    places = []
    for depth, level in enumerate(levels):
        known = _key(wood, positions[0], level) is not None
        name = _name(wood, positions[0], level, levels[:depth]) if known else "unknown"
        places.append(f"{wood.levels[level]} {name}")
    return Tile(
        name=nodes[0].id if len(nodes) == 1 else f"{nodes[0].id} … {nodes[-1].id}",
        where=", ".join(places),
        node_count=len(nodes),
        spare_count=sum(1 for node in nodes if not coordinates.ranks.get(node.id)),
        ranks=spans(ranks),
        parts=coordinates.parts(ranks),
    )
