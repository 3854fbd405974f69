"""Clusters as they are met in the field, to try the planner on: ten families, each from a rack to a hall.

A cluster on paper is regular: every leaf switch has the same number of nodes. A real one has a node in repair here, a
rack that was never filled there, machines of two generations of purchase, nodes of which nobody knows where they stand.
The families below are irregular in such ways, drawn by a generator that is seeded with the instance's own name, so
every machine draws the same ones. Nodes come in the order in which they joined, which is no order at all; an address
follows the cabling, but for the nodes that were replaced since.

    for instance in families():
        plan(*instance.question, None)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from launcher.model import mesh as meshes
from launcher.model import traffic
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.placement.limits import AllOrNothing, Costs, Limits

REPLACED = 0.05  # share of nodes whose address is a late one


class Instance(NamedTuple):
    """A question to the planner. `name` is "family/size", with a letter where there are several of a size."""

    name: str
    nodes: tuple[Node, ...]
    mesh: Mesh
    limits: Limits
    costs: Costs

    @property
    def family(self) -> str:
        return self.name.partition("/")[0]

    @property
    def question(self) -> tuple[tuple[Node, ...], Mesh, Limits, Costs]:
        return self.nodes, self.mesh, self.limits, self.costs


Path = tuple[str | None, ...]
Places = list[tuple[Path, int]]
"""Path and slots of every node, in the order of the cabling."""


# Shapes of halls ------------------------------------------------------------------------------------------------


def tree(count: int, sizes: Sequence[Callable[[], int]]) -> list[Path]:
    """`count` places. `sizes`: per level, outermost first, how many children the next domain of it gets."""
    paths: list[Path] = []
    numbers = [0] * len(sizes)

    def grow(level: int, above: Path) -> None:
        for _ in range(sizes[level]()):
            if len(paths) >= count:
                return
            if level == len(sizes) - 1:
                paths.append(above)
            else:
                numbers[level + 1] += 1
                grow(level + 1, (*above, f"{'pld'[level + 1]}{numbers[level + 1]}"))

    while len(paths) < count:
        numbers[0] += 1
        grow(0, (f"p{numbers[0]}",))
    return paths


def some_missing(chance: random.Random, full: int, share: float) -> Callable[[], int]:
    """Domains of `full` places, of which each is empty with probability `share`; never all."""
    return lambda: max(1, sum(chance.random() >= share for _ in range(full)))


def between(chance: random.Random, least: int, most: int) -> Callable[[], int]:
    return lambda: chance.randint(least, most)


def one_of(chance: random.Random, *sizes: int) -> Callable[[], int]:
    return lambda: chance.choice(sizes)


def instance(
    chance: random.Random,
    name: str,
    places: Places,
    mesh: str,
    levels: str,
    *,
    weights: str = "",
    level_costs: Mapping[str, int | float] | None = None,
    indices: Sequence[int] | None = None,
    whole: AllOrNothing | None = None,
    within: Mapping[str, str] | None = None,
    unit: int | None = None,
) -> Instance:
    """The nodes at these places, in a random order of arrival."""
    grid = meshes.parse(mesh)
    late = [chance.random() < REPLACED for _ in places]
    numbers = {position: number for number, position in enumerate(sorted(range(len(places)), key=lambda p: late[p]))}
    arrivals = list(range(len(places)))
    chance.shuffle(arrivals)
    nodes = [
        Node(
            id=f"h{position + 1}",
            slot_count=places[position][1],
            path=places[position][0],
            address=address(numbers[position]),
            order=order,
            index=None if indices is None else indices[position],
        )
        for order, position in enumerate(arrivals)
    ]
    limits = Limits(levels=tuple(levels.split("/")), block_size=unit, within=within or {}, all_or_nothing=whole)
    costs = Costs(traffic=traffic.parse(weights, grid) if weights else None, level_costs=level_costs or {})
    return Instance(name, tuple(nodes), grid, limits, costs)


def address(number: int) -> str:
    return f"10.{number // 62500}.{number // 250 % 250}.{number % 250 + 1}"


# The families ---------------------------------------------------------------------------------------------------


def dgx(chance: random.Random, name: str, count: int, mesh: str, leaf: int, share: float) -> Instance:
    """Eight GPUs a node, leaves of 8 to 32, four or eight leaves a pod; now and then a node is in repair."""
    pod = chance.choice((4, 8))
    paths = tree(count, [lambda: pod, some_missing(chance, leaf, share)])
    return instance(chance, name, [(path, 8) for path in paths], mesh, "pod/leaf")


def nvl72(chance: random.Random, name: str, count: int, mesh: str, weights: str, within: str) -> Instance:
    """Racks of 18 hosts with 4 GPUs, one NVLink domain each: to leave the host is cheap, the rack is not."""
    paths = tree(count, [lambda: 8, some_missing(chance, 18, 0.04)])
    rules = {"tp": within} if within else None
    level_costs = {"pod": 6, "rack": 8, "host": 1}
    places = [(path, 4) for path in paths]
    return instance(chance, name, places, mesh, "pod/rack", weights=weights, level_costs=level_costs, within=rules)


def tpu(chance: random.Random, name: str, count: int, mesh: str, weights: str, broken: float) -> Instance:
    """v5e-16 slices of 4 hosts with 4 chips, used whole or not at all; of some, one host is missing."""
    places: Places = []
    indices: list[int] = []
    slice_count = 0
    room = between(chance, 3, 9)
    building, left = 1, room()
    while len(places) < count:
        if not left:
            building, left = building + 1, room()
        slice_count, left = slice_count + 1, left - 1
        missing = chance.randrange(4) if chance.random() < broken else None
        for host in range(4):
            if host != missing and len(places) < count:
                places.append(((f"z{building // 4 + 1}", f"b{building}", f"s{slice_count}"), 4))
                indices.append(host)
    whole = AllOrNothing(level="slice", hosts=4)
    return instance(
        chance, name, places, mesh, "zone/building/slice", weights=weights, indices=indices, whole=whole, unit=4
    )


def zones(chance: random.Random, name: str, count: int, mesh: str, weights: str, share: Sequence[float]) -> Instance:
    """Three zones of a cloud, far apart and of different sizes."""
    places: Places = []
    for zone, part in enumerate(share):
        left = count - len(places) if zone == len(share) - 1 else round(count * part)
        inside = tree(left, [between(chance, 3, 6), some_missing(chance, chance.choice((8, 12, 16)), 0.08)])
        places += [((f"z{zone + 1}", f"z{zone + 1}{spine}", f"{leaf}"), 8) for spine, leaf in inside]
    level_costs = {"zone": chance.choice((10, 20, 40)), "spine": 4, "leaf": 2, "host": 1}
    return instance(chance, name, places, mesh, "zone/spine/leaf", weights=weights, level_costs=level_costs)


def irregular(chance: random.Random, name: str, count: int, mesh: str, weights: str) -> Instance:
    """A hall that grew for years: leaves of 3 to 17 nodes, spines of 2 to 9 leaves."""
    paths = tree(count, [between(chance, 2, 9), between(chance, 3, 17)])
    return instance(chance, name, [(path, 8) for path in paths], mesh, "spine/leaf", weights=weights)


def unknown(chance: random.Random, name: str, count: int, mesh: str, share: float) -> Instance:
    """Of a good part of the nodes the leaf is not known, of some neither leaf nor pod, of a few only the leaf."""
    paths = tree(count, [lambda: 5, some_missing(chance, chance.choice((8, 10, 16)), 0.1)])

    def seen(path: Path) -> Path:
        draw = chance.random() / share
        if draw < 0.5:
            return (path[0], None)
        if draw < 0.8:
            return (None, None)
        return (None, path[1]) if draw < 1 else path

    return instance(chance, name, [(seen(path), 8) for path in paths], mesh, "pod/leaf")


def tp16(chance: random.Random, name: str, count: int, mesh: str, within: str) -> Instance:
    """Tensor parallelism over two nodes of eight, and leaves of odd numbers."""
    paths = tree(count, [between(chance, 3, 7), one_of(chance, 5, 7, 8, 9, 11, 15)])
    rules = {"tp": within} if within else None
    return instance(chance, name, [(path, 8) for path in paths], mesh, "pod/leaf", within=rules)


def experts(chance: random.Random, name: str, count: int, mesh: str, weights: str) -> Instance:
    """Context and expert parallelism: long rings and all-to-alls beyond the node."""
    paths = tree(count, [between(chance, 3, 6), some_missing(chance, chance.choice((8, 16)), 0.07)])
    return instance(chance, name, [(path, 8) for path in paths], mesh, "pod/leaf", weights=weights)


def uneven(chance: random.Random, name: str, count: int, mesh: str, slots: Sequence[int], unit: int) -> Instance:
    """Machines of two purchases side by side, and some that lost a device."""
    paths = tree(count, [between(chance, 2, 5), between(chance, 5, 14)])
    places: Places = []
    for start in range(0, count, 6):  # half a rack is of one kind
        kind = chance.choice(slots)
        places += [(path, kind - (chance.random() < 0.06)) for path in paths[start : start + 6]]
    return instance(chance, name, places, mesh, "pod/leaf", unit=unit)


def surplus(chance: random.Random, name: str, count: int, mesh: str, weights: str) -> Instance:
    """A mesh of fixed size and more nodes than it needs: which ones?"""
    paths = tree(count, [between(chance, 2, 6), between(chance, 4, 16)])
    return instance(chance, name, [(path, 8) for path in paths], mesh, "spine/leaf", weights=weights)


P4, P8, P2 = "pp=4,dp=*,tp=8", "pp=8,dp=*,tp=8", "pp=2,dp=*,tp=8"
EVEN = "tp=100,dp=10,pp=10"
HEAVY = "tp=100,dp=3,pp=30"  # a pipeline that talks more than data parallelism
THIRDS, TILTED = (0.34, 0.33, 0.33), (0.55, 0.3, 0.15)
WITH_DP_CP = "tp=100,cp=30,dp+cp=10,pp=3"

Row = tuple[object, ...]
FAMILIES: dict[Callable[..., Instance], tuple[Row, ...]] = {
    dgx: (
        (8, P2, 4, 0.1), (16, P4, 8, 0.1), (31, P4, 8, 0.03), (62, P4, 8, 0.05), (62, "pp=8,dp=*,cp=2,tp=4", 16, 0.05),
        (120, P8, 16, 0.05), (127, P4, 32, 0.05), (250, "pp=16,dp=*,tp=8", 16, 0.04), (500, P8, 32, 0.03),
        (1000, "pp=16,dp=*,tp=8", 32, 0.03), (2000, P8, 16, 0.03),
    ),
    nvl72: (
        (18, "pp=2,dp=*,tp=4", "", ""), (35, "pp=4,dp=*,tp=8", "", "rack"), (53, "pp=4,dp=*,tp=8", EVEN, ""),
        (70, "pp=2,dp=*,tp=16", "", "rack"), (106, "pp=8,dp=*,tp=4", EVEN, ""), (140, "pp=4,dp=*,ep=2,tp=8", "", ""),
        (210, "pp=8,dp=*,tp=8", "", "rack"), (280, "dp=*,ep=8,tp=8", "", ""), (560, "pp=8,dp=*,tp=8", HEAVY, ""),
        (1100, "pp=16,dp=*,tp=8", "", ""),
    ),
    tpu: (
        (15, "dp=*,fsdp=16", "", 0.4), (31, "pp=2,dp=*,fsdp=16", EVEN.replace("tp=", "fsdp="), 0.2),
        (47, "dp=*,fsdp=8,tp=8", "", 0.1), (63, "pp=4,dp=*,tp=16", "", 0.1), (95, "pp=3,dp=*,fsdp=4,tp=4", "", 0.15),
        (190, "pp=8,dp=*,tp=16", EVEN, 0.1), (380, "pp=4,dp=*,fsdp=4,tp=16", "", 0.1),
        (760, "pp=8,dp=*,tp=16", HEAVY, 0.08), (1500, "pp=8,dp=*,tp=16", "", 0.05),
    ),
    zones: (
        (24, P2, "", THIRDS), (45, P4, "", TILTED), (66, P4, EVEN, THIRDS), (96, P8, "", TILTED),
        (130, "pp=4,dp=*,cp=2,tp=8", "", THIRDS), (190, P8, HEAVY, TILTED), (250, P4, "", TILTED),
        (380, "pp=16,dp=*,tp=8", EVEN, THIRDS), (700, P8, "", TILTED), (1500, P8, HEAVY, THIRDS),
    ),
    irregular: (
        (64, P4, ""), (64, P8, EVEN), (90, "pp=6,dp=*,tp=8", HEAVY), (128, P8, ""), (180, P4, EVEN), (256, P8, HEAVY),
        (256, "pp=16,dp=*,tp=8", EVEN), (512, P8, ""), (1024, "pp=16,dp=*,tp=8", EVEN), (4096, P8, ""),
        (16384, "pp=16,dp=*,tp=8", EVEN),
    ),
    unknown: (
        (12, P2, 0.4), (24, P4, 0.2), (40, P4, 0.6), (64, P4, 0.15), (64, P8, 0.35), (100, P4, 0.3), (150, P8, 0.2),
        (260, P8, 0.4), (500, "pp=16,dp=*,tp=8", 0.1), (1000, P8, 0.25),
    ),
    tp16: (
        (12, "dp=*,tp=16", "leaf"), (23, "pp=2,dp=*,tp=16", ""), (40, "pp=4,dp=*,tp=16", "leaf"),
        (62, "pp=4,dp=*,tp=16", ""), (63, "dp=*,cp=2,tp=16", "pod"), (100, "pp=8,dp=*,tp=16", "leaf"),
        (160, "pp=4,dp=*,tp=16", ""), (240, "pp=8,dp=*,tp=16", "leaf"), (400, "pp=2,dp=*,tp=32", ""),
        (800, "pp=8,dp=*,tp=16", ""),
    ),
    experts: (
        (16, "dp=*,ep=8,tp=4", ""), (24, "dp=*,cp=4,tp=8", ""), (31, "pp=2,dp=*,cp=2,tp=8", WITH_DP_CP),
        (48, "pp=2,dp=*,ep=16,tp=2", ""), (64, "pp=4,dp=*,cp=4,tp=4", WITH_DP_CP), (64, "dp=*,ep=64", ""),
        (96, "pp=4,dp=*,cp=2,ep=4,tp=4", ""), (130, "pp=4,dp=*,ep=8,tp=8", ""),
        (200, "pp=8,dp=*,cp=3,tp=8", WITH_DP_CP),
        (256, "pp=4,dp=*,ep=32,tp=2", ""), (500, "pp=8,dp=*,cp=4,tp=8", ""), (1000, "pp=8,dp=*,cp=2,ep=8,tp=4", ""),
    ),
    uneven: (
        (10, "pp=2,dp=*,tp=4", (4, 8), 4), (20, "pp=2,dp=*,tp=4", (8, 8, 4), 4), (30, "pp=4,dp=*,tp=4", (8, 16), 4),
        (40, "pp=4,dp=*,tp=8", (8, 16), 8), (48, "pp=4,dp=*,tp=2", (8, 8, 6), 2),
        (60, "pp=4,dp=*,tp=4", (4, 8), 4), (60, "pp=4,dp=*,tp=4", (8, 8, 8), 4),
        (100, "pp=8,dp=*,tp=4", (4, 8, 8), 4), (160, "pp=4,dp=*,tp=8", (8, 16), 8),
        (240, "pp=8,dp=*,tp=4", (8, 8, 4), 4), (500, "pp=8,dp=*,tp=4", (8, 16), 4),
    ),
    surplus: (
        (12, "pp=2,dp=4,tp=8", ""), (24, "pp=4,dp=4,tp=8", ""), (39, "pp=4,dp=8,tp=8", ""),
        (50, "pp=8,dp=4,tp=8", EVEN),
        (80, "pp=8,dp=8,tp=8", ""), (100, "pp=4,dp=16,tp=8", HEAVY), (150, "pp=8,dp=16,tp=8", EVEN),
        (200, "pp=4,dp=32,tp=8", ""), (300, "pp=16,dp=16,tp=8", ""), (600, "pp=8,dp=64,tp=8", EVEN),
        (1300, "pp=16,dp=64,tp=8", ""),
    ),
}  # fmt: skip


def families(size_max: int | None = None) -> Iterator[Instance]:
    """All instances of all families, or those of at most `size_max` nodes; one at a time, as the largest are large."""
    for family, rows in FAMILIES.items():
        taken: dict[object, int] = {}
        for row in rows:
            count = row[0]
            number = taken[count] = taken.get(count, 0) + 1
            if isinstance(count, int) and (size_max is None or count <= size_max):
                name = f"{family.__name__}/{count}" + ("" if number == 1 else "abc"[number - 1])
                yield family(random.Random(name), name, *row)


# What can be checked by hand ------------------------------------------------------------------------------------


def regular(name: str, leaves: Sequence[int], mesh: str, weights: str) -> Instance:
    """Leaves of these sizes on one spine; leaving the host costs nothing."""
    places: Places = [(("s0", f"l{leaf}"), 8) for leaf, size in enumerate(leaves) for _ in range(size)]
    level_costs = {"spine": 4, "leaf": 2, "host": 0}
    return instance(random.Random(name), name, places, mesh, "spine/leaf", weights=weights, level_costs=level_costs)
