"""This worker's coordinates in the mesh, and the ranks of its group along each axis.

    mesh pp=2,dp=2,tp=2       rank 5 is pp=1 dp=0 tp=1
                              its groups: pp (1, 5)   dp (5, 7)   tp (4, 5)

Both follow from the shape and the rank, by the rule of every rank-major grid: the last axis varies fastest. The
groups are those that were declared before the start: one per axis, and those over several axes that `--traffic` names.
An undeclared group is refused, since the planner has not placed it: its ranks may be far apart.
"""

from __future__ import annotations

import os
from itertools import product
from math import prod
from typing import NamedTuple

from launcher.worker import recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class WorkerMesh(NamedTuple):
    """The mesh of this round and this worker's rank in it."""

    axes: tuple[str, ...]
    """From the outermost to the innermost."""
    shape: tuple[int, ...]
    """Sizes of `axes`, in the same order."""
    rank: int
    group_names: tuple[str, ...]
    """The names that `group` accepts."""

    @property
    def world_size(self) -> int:
        return prod(self.shape)

    @property
    def coordinates(self) -> tuple[int, ...]:
        """This worker's position, one number per axis."""
        found, rest = [], self.rank
        for size in reversed(self.shape):
            rest, coordinate = divmod(rest, size)
            found.append(coordinate)
        return tuple(reversed(found))

    def size(self, name: str) -> int:
        """Return the size of a group of `name`, an axis, or several as "dp+cp". Raises LookupError, as all below."""
        return prod(self.shape[index] for index in self._find_indices(name))

    def coordinate(self, name: str) -> int:
        """Return this worker's index in its group, from 0: the index of its rank in `group(name)`."""
        return self.group(name).index(self.rank)

    def group(self, name: str) -> tuple[int, ...]:
        """Return the ranks that differ from this one only along the axes of `name`, this one included; ascending."""
        return self._list_group(self._find_indices(name), self.coordinates)

    def groups(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Return every group of `name`, ordered by first rank; each rank is in exactly one of them."""
        inner = self._find_indices(name)
        outer = [range(1) if index in inner else range(size) for index, size in enumerate(self.shape)]
        return tuple(self._list_group(inner, place) for place in product(*outer))

    def _list_group(self, inner: tuple[int, ...], place: tuple[int, ...]) -> tuple[int, ...]:
        strides = [prod(self.shape[index + 1 :]) for index in range(len(self.shape))]
        first = sum(strides[index] * place[index] for index in range(len(place)) if index not in inner)
        steps = product(*(range(self.shape[index]) for index in inner))
        return tuple(first + sum(strides[i] * step for i, step in zip(inner, each, strict=True)) for each in steps)

    def _find_indices(self, name: str) -> tuple[int, ...]:
        wanted = {part.strip() for part in name.split("+")}
        indices = tuple(index for index, axis in enumerate(self.axes) if axis in wanted)
        if len(indices) < len(wanted):
            missing = ", ".join(repr(axis) for axis in sorted(wanted.difference(self.axes)))
            raise LookupError(
                f"the mesh {self} has no axis {missing}: its axes are {', '.join(self.axes)}; "
                "declare others with --mesh before the start"
            )
        declared = "+".join(self.axes[index] for index in indices)
        if declared not in self.group_names:
            raise LookupError(
                f"no group over {declared} was declared: the groups of mesh {self} are {', '.join(self.group_names)}; "
                f"declare another with --traffic {declared}=WEIGHT before the start"
            )
        return indices

    def __str__(self) -> str:
        return ",".join(f"{axis}={size}" for axis, size in zip(self.axes, self.shape, strict=True))


def mesh() -> WorkerMesh:
    """Return the mesh of this round, read from the variables that the launcher has set.

    Under torchrun, which has no mesh, the mesh has one axis, dp. Raises RuntimeError if no launcher has set a rank, or
    if the variables contradict each other.
    """
    recorder.open_recorder()
    return read(os.environ)


def read(environ: Mapping[str, str]) -> WorkerMesh:
    """Return the mesh from `environ`, for tests and for tools that have a worker's environment. Raises like `mesh`."""
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        raise RuntimeError("this process has no rank: start the script with meshrun or torchrun")
    axes = environ.get("MESH_AXES", "dp")
    shape = environ.get("MESH_SHAPE", environ["WORLD_SIZE"])
    names = tuple(axes.split(","))
    try:
        found = WorkerMesh(
            names,
            tuple(int(size) for size in shape.split(",")),
            int(environ["RANK"]),
            tuple(environ.get("MESH_GROUPS", axes).split(",")),
        )
        is_sound = len(found.shape) == len(names) and 0 <= found.rank < found.world_size == int(environ["WORLD_SIZE"])
    except ValueError:
        is_sound = False
    if not is_sound:
        raise RuntimeError(
            f"these variables contradict each other: MESH_AXES={axes}, MESH_SHAPE={shape}, RANK={environ['RANK']}, "
            f"WORLD_SIZE={environ['WORLD_SIZE']}; they were changed between the launcher and this script"
        )
    return found
