"""The mesh of a job: named axes from the outermost to the innermost, "pp=4,dp=*,tp=8".

A rank is the row-major index into the grid, so the last axis varies fastest. At most one axis is elastic
("*"): it gets the largest size that the present nodes can fill, so the world only has whole replicas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from launcher.model.errors import UsageError


class Axis(Struct, frozen=True, kw_only=True):
    """One dimension; `size` None is elastic."""

    name: str
    size: int | None


class Mesh(Struct, frozen=True, kw_only=True):
    axes: tuple[Axis, ...]

    @property
    def elastic_axis(self) -> Axis | None:
        return next((axis for axis in self.axes if axis.size is None), None)

    @property
    def given_name(self) -> str:
        """What a user calls it; "" without --mesh: nobody has named the axis of `DEFAULT_MESH`."""
        return "" if self is DEFAULT_MESH else str(self)

    @property
    def replica_size(self) -> int:
        """Ranks in one step of the elastic axis; the whole world when no axis is elastic."""
        return math.prod(axis.size for axis in self.axes if axis.size is not None)

    def resolve_shape(self, world_size: int) -> tuple[int, ...]:
        """Return the size of every axis in a world of `world_size` ranks. Raises ValueError if it does not divide."""
        elastic_size, rest = divmod(world_size, self.replica_size)
        if rest or elastic_size < 1 or (self.elastic_axis is None and elastic_size != 1):
            raise ValueError(f"mesh {self} does not have {world_size} ranks")
        return tuple(axis.size if axis.size is not None else elastic_size for axis in self.axes)

    def has_shape(self, shape: Sequence[int]) -> bool:
        """Whether a grid of this shape is this mesh with some size of its elastic axis."""
        return len(shape) == len(self.axes) and all(
            axis.size in (None, size) for axis, size in zip(self.axes, shape, strict=True)
        )

    def find_coordinates(self, rank: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the coordinates of `rank` in a grid of `shape`."""
        coordinates: list[int] = []
        for size in reversed(shape):
            rank, coordinate = divmod(rank, size)
            coordinates.append(coordinate)
        return tuple(reversed(coordinates))

    def __str__(self) -> str:
        return ",".join(f"{axis.name}={'*' if axis.size is None else axis.size}" for axis in self.axes)


_EXAMPLE = "use for example --mesh pp=4,dp=*,tp=8; * is as large as possible"
DEFAULT_MESH = Mesh(axes=(Axis(name="dp", size=None),))
"""The mesh without --mesh."""


def parse(text: str) -> Mesh:
    """Parse "pp=4,dp=*,tp=8". Raises UsageError with the reason."""
    axes: list[Axis] = []
    for part in text.split(","):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if not equals or not name.isidentifier() or not name.isascii():
            raise UsageError(f"mesh {text!r}: {part.strip()!r} is not NAME=SIZE", _EXAMPLE)
        # Workers read MESH_<AXIS>_RANK in capitals, so dp and DP would be one variable.
        if any(axis.name.upper() == name.upper() for axis in axes):
            raise UsageError(f"mesh {text!r} has two axes {name}")
        if size == "*":
            axes.append(Axis(name=name, size=None))
        elif size.isascii() and size.isdigit() and len(size) < 10 and int(size) > 0:
            axes.append(Axis(name=name, size=int(size)))
        else:
            raise UsageError(
                f"mesh {text!r}: the size of {name} is {size!r}, neither a positive number nor *", _EXAMPLE
            )
    stars = [axis.name for axis in axes if axis.size is None]
    if len(stars) > 1:
        raise UsageError(
            f"mesh {text!r} has {len(stars)} elastic axes ({', '.join(stars)}); at most one may be *",
            "give all but one a size",
        )
    return Mesh(axes=tuple(axes))


def require_fit(mesh: Mesh, worker_count: int) -> None:
    """Raise UsageError unless `worker_count` workers, on all nodes together, fill the grid exactly."""
    size = mesh.replica_size
    if mesh.elastic_axis is None and worker_count != size:
        raise UsageError(f"mesh {mesh} needs {size} workers, not {worker_count}", "use * for one axis")
    if worker_count % size:
        raise UsageError(f"mesh {mesh} needs a multiple of {size} workers, not {worker_count}")
