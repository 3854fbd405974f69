"""The meaning of a TPU type's name: "v5e-16" is 16 chips on four hosts, "v4-16" is 8 chips on two.

A slice is a grid of chips that are wired to each other, on one host or on many, and its type is a model and a number.
For some models the number counts chips, for others TensorCores, of which a chip has two: this table resolves that.
A topology in place of the number ("v4-2x2x2") counts chips in every model. Sources are in docs/reference/devices.md.
None of it was tried on hardware.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from launcher.model.errors import UsageError

CHIPS_PER_HOST = 4  # in every slice of several hosts
_CUBE = 4  # 3-D slices of 64 chips and more are cubes of 4x4x4, put together
_SUGGESTIONS = 6


class TpuModel(Struct, frozen=True):
    """One version of the hardware."""

    name: str
    names: tuple[str, ...]
    """What the name of a type of it begins with, the vendor's own name first."""
    units_per_chip: int
    """In the number of a type: two TensorCores, or the chip itself."""
    host_chips: tuple[int, ...]
    """How many chips a machine with a slice of its own may have."""
    sides: tuple[tuple[int, int], ...]
    """The slices of a 2-D model, which are a list; empty for a 3-D model, whose slices follow a rule."""
    chips_max: int

    @property
    def counted_unit(self) -> str:
        return "TensorCores" if self.units_per_chip > 1 else "chips"


class SliceType(Struct, frozen=True):
    """The meaning of a type."""

    name: str
    model: TpuModel
    chips: int
    hosts: int
    chips_per_host: int
    topology: tuple[int, ...] | None
    """Chips along each dimension; None if several are offered under the name."""

    @property
    def description(self) -> str:
        """ "v4-16: 2 hosts of 4 chips, 2x2x2" """
        hosts = f"{self.hosts} host{'s' * (self.hosts > 1)}"
        chips = f"{self.chips_per_host} chip{'s' * (self.chips_per_host > 1)}"
        return f"{self.name}: {hosts} of {chips}" + (f", {format_grid(self.topology)}" if self.topology else "")


_V2_SIDES = ((2, 2), (4, 4), (8, 8), (8, 16), (16, 16))
_V3_SIDES = ((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32))
_E_SIDES = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))

MODELS = (
    TpuModel("v2", ("v2",), 2, (4,), _V2_SIDES, 256),
    TpuModel("v3", ("v3",), 2, (4,), _V3_SIDES, 1024),
    TpuModel("v4", ("v4",), 2, (4,), (), 4096),
    TpuModel("v5p", ("v5p",), 2, (4,), (), 8960),
    TpuModel("v5e", ("v5litepod", "v5e"), 1, (1, 4, 8), _E_SIDES, 256),
    TpuModel("v6e", ("v6e",), 1, (1, 4, 8), _E_SIDES, 256),
    TpuModel("tpu7x", ("tpu7x", "v7x"), 2, (1, 4), (), 9216),
)
"""Every model that Google offers or has offered, oldest first."""


def parse(text: str, host_chips: int | None = None) -> SliceType:
    """Parse a type. `host_chips`: the number of chips of this machine, if known.

    It matters where a slice of 8 chips may be one machine or two. Raises UsageError for a text that is no type.
    """
    prefix, dash, rest = text.strip().partition("-")
    model = next((model for model in MODELS if prefix in model.names), None)
    if model is None:
        known = ", ".join(_format_type(each, 16) for each in MODELS)
        raise UsageError(f"{text!r} does not begin with the name of a known TPU", f"use one of {known}")
    if not dash or not rest:
        raise UsageError(
            f"{text!r} has no number of {model.counted_unit}", f"write, for example, {_format_type(model, 16)}"
        )
    shape = parse_topology(rest)
    if shape is not None:
        chips = math.prod(shape)
        if shape not in _list_shapes(model, chips):
            raise UsageError(f"{text!r}: {rest} is not a topology of {model.name}", _suggest_slices(model, chips))
    elif not (rest.isascii() and rest.isdigit() and len(rest) <= 6 and int(rest)):
        example = f"write, for example, {_format_type(model, 16)}"
        raise UsageError(f"{text!r}: {rest!r} is neither a number of {model.counted_unit} nor a topology", example)
    else:
        number, each = int(rest), model.units_per_chip
        chips = number // each
        shapes = list(_list_shapes(model, chips)) if number % each == 0 else []
        if not shapes:
            counted = f"{number} {model.counted_unit}" + (f", {each} to a chip," if each > 1 else "")
            raise UsageError(
                f"{text!r}: {counted} make no {model.name} slice", _suggest_slices(model, max(1, number // each))
            )
        shape = shapes[0] if len(shapes) == 1 else None
    hosts, chips_per_host = _split_hosts(model, chips, host_chips)
    return SliceType(text.strip(), model, chips, hosts, chips_per_host, shape)


def format_grid(topology: Sequence[int]) -> str:
    """ "2x2x4" """
    return "x".join(map(str, topology))


def parse_topology(text: str) -> tuple[int, ...] | None:
    """Parse "4x4" or "2x2x4"; None for any other text."""
    return _parse_sides(text.split("x"), (2, 3))


def parse_bounds(text: str) -> tuple[int, ...] | None:
    """Parse a box as libtpu writes it, three numbers such as "4,4,1"; None for any other text."""
    return _parse_sides(text.split(","), (3,))


def _parse_sides(sides: Sequence[str], counts: tuple[int, ...]) -> tuple[int, ...] | None:
    if len(sides) not in counts or not all(side.isascii() and side.isdigit() and len(side) < 5 for side in sides):
        return None
    found = tuple(map(int, sides))
    return found if all(found) else None


def _split_hosts(model: TpuModel, chips: int, host_chips: int | None) -> tuple[int, int]:
    """Return the number of hosts and the chips of each. 8 chips are offered as one machine, or as two of 4 (on GKE)."""
    if chips in model.host_chips and (host_chips is None or host_chips >= chips or chips < CHIPS_PER_HOST):
        return 1, chips
    return max(1, chips // CHIPS_PER_HOST), min(chips, CHIPS_PER_HOST)


def _list_shapes(model: TpuModel, chips: int) -> Iterator[tuple[int, ...]]:
    """List the grids that are offered with that many chips, smaller sides first."""
    if model.sides:
        yield from (sides for sides in model.sides if math.prod(sides) == chips)
    elif chips <= model.chips_max:
        small = {4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4)}
        if chips == 1 and 1 in model.host_chips:
            yield (1, 1, 1)
        elif chips in small:
            yield small[chips]
        elif chips % _CUBE**3 == 0:
            cubes = chips // _CUBE**3
            for first in range(1, round(cubes ** (1 / 3)) + 1):
                for second in range(first, math.isqrt(cubes // first) + 1):
                    if cubes % (first * second) == 0:
                        yield first * _CUBE, second * _CUBE, cubes // (first * second) * _CUBE


def _list_chip_counts(model: TpuModel) -> Iterator[int]:
    """List the numbers of chips that slices of this model have."""
    sizes = (1, 4, 8, 16, 32, *range(64, model.chips_max + 1, 64))
    return (chips for chips in sizes if any(True for _ in _list_shapes(model, chips)))


def _suggest_slices(model: TpuModel, chips: int) -> str:
    nearest = sorted(sorted(_list_chip_counts(model), key=lambda each: abs(each - chips))[:_SUGGESTIONS])
    return f"use one of {', '.join(_format_type(model, each) for each in nearest)}"


def _format_type(model: TpuModel, chips: int) -> str:
    return f"{model.names[0]}-{chips * model.units_per_chip}"
