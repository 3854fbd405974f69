"""What the workers noted of themselves, held against each other: who lived when, under which rank, in which world."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.jobs.multi_node import Life, find_overlaps
from tests.support.soak.history import Round


class World(NamedTuple):
    """What one worker found in its environment."""

    rank: int
    round: int
    world_size: int
    master: str
    restart_count: int


def worlds(directory: Path) -> list[World]:
    """Of the workers that noted it in this directory."""
    found = []
    for path in directory.glob("world-*"):
        match = re.fullmatch(r"world-(\d+)-(\d+)", path.name)
        words = path.read_text().split()
        if match and len(words) == 3:
            found.append(World(int(match[1]), int(match[2]), int(words[0]), words[1], int(words[2])))
    return found


def broken_rules(
    lives: Sequence[Life], kin: Sequence[Life], found: Sequence[World], sealed: Sequence[Round]
) -> Iterator[str]:
    """What should never have been, in sentences. `kin`: children of workers, which are of their round as well."""
    owners: dict[tuple[int, int], list[Life]] = defaultdict(list)
    for life in lives:
        owners[life.round, life.rank].append(life)
    for (round, rank), all_of_it in owners.items():
        if len(all_of_it) > 1:
            yield f"S1: rank {rank} of round {round} had {len(all_of_it)} owners: {all_of_it}"
    yield from (f"S2: {sentence}" for sentence in find_overlaps([*lives, *kin]))
    seals = {round.number: round.seal for round in sealed}
    for world in found:
        seal = seals.get(world.round)
        if seal is None:
            yield f"S1: rank {world.rank} ran in round {world.round}, which nobody sealed"
            continue
        said = (world.world_size, world.master, world.restart_count)
        meant = (seal["world_size"], seal["coordinator"], seal["restart_count"])
        if said != meant:
            yield f"S1: rank {world.rank} of round {world.round} was told {said}, the seal says {meant}"
        if not 0 <= world.rank < world.world_size:
            yield f"S1: rank {world.rank} in a world of {world.world_size}"
