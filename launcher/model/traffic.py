"""How much the ranks along each axis of the mesh talk, and in which pattern.

A communicator is one axis, or several as one ring over their product, with a kind and a weight: the bytes that
a rank sends in a step, or any numbers in the same proportion. Proportions are enough to compare plans; a step's time
in seconds needs bytes.

    ring    i to i+1 and the last to the first: all-reduce, all-gather (tp, cp, dp)
    line    i to i+1 and back, half of the weight each way: the stages of a pipeline (pp), forward and backward
    all     everybody to everybody, 1 in all from each: the all-to-all of experts (ep)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from launcher.model.errors import UsageError
from launcher.model.mesh import Mesh

Kind = Literal["ring", "line", "all"]

KINDS: tuple[Kind, ...] = ("ring", "line", "all")

DECIMALS_MAX = 6
NUMBER_MAX = 10**9

_BYTES = r"(\d{1,15}(?:\.\d{1,9})?(?:e-?\d{1,2})?) ?([kMGT]?)B"
_BYTES_EXAMPLE = "use for example 1.2GB or 300MB; k, M, G and T are powers of 1000"
_MEGABYTES = {"": 1e-6, "k": 1e-3, "M": 1, "G": 10**3, "T": 10**6}


class Communicator(Struct, frozen=True, kw_only=True):
    """Groups of ranks that communicate: ranks that differ only along `axes`, in the mesh's order."""

    axes: tuple[str, ...]
    kind: Kind
    weight: int | float
    """A proportion, or with `is_bytes` the megabytes (10^6 bytes) that a rank sends in a step."""
    is_bytes: bool = False

    @property
    def name(self) -> str:
        return "+".join(self.axes)

    def __str__(self) -> str:
        return f"{self.name}={self.weight}{'MB' * self.is_bytes}:{self.kind}"


class DefaultTraffic(Struct, frozen=True):
    kind: Kind
    weight: int


# What axes of these names usually carry, relative to each other, and other frameworks' names for the same:
# Megatron-LM, torchtitan, DeepSpeed, accelerate, MaxText.
_TP = DefaultTraffic("ring", 100)
_CP = DefaultTraffic("ring", 30)
_EP = DefaultTraffic("all", 20)
_DP = DefaultTraffic("ring", 10)
_PP = DefaultTraffic("line", 3)
DEFAULTS: dict[str, DefaultTraffic] = {
    **dict.fromkeys(("tp", "etp", "model", "tensor", "tensor_sequence"), _TP),
    **dict.fromkeys(("cp", "sp", "context", "sequence"), _CP),
    **dict.fromkeys(("ep", "expert"), _EP),
    **dict.fromkeys(("dp", "edp", "data", "fsdp", "dp_shard", "dp_replicate", "diloco"), _DP),
    **dict.fromkeys(("pp", "pipe", "stage"), _PP),
}


def make_default_traffic(mesh: Mesh) -> tuple[Communicator, ...]:
    """One communicator per axis; an axis of an unknown name talks like dp."""
    rules = ((axis.name, _find_default(axis.name)) for axis in mesh.axes)
    return tuple(Communicator(axes=(name,), kind=rule.kind, weight=rule.weight) for name, rule in rules)


def _find_default(axis: str) -> DefaultTraffic:
    return DEFAULTS.get(axis.lower(), _DP)


def parse(text: str, mesh: Mesh, what: str = "--traffic") -> tuple[Communicator, ...]:
    """Read "tp=100,dp+cp=10:ring,pp=3"; axes that are not named in it keep what is usual for them.

    Without a kind, what is usual for the last of the axes. The answer is in the mesh's order whatever the order of
    the text. Raises UsageError for an axis the mesh lacks, a weight that is no number from 0 to 1e9, an unknown
    kind, and bytes for some axes beside proportions for others: "tp=20GB,dp=1.2GB,pp=300MB" gives bytes for all.
    `what` names the text in errors.
    """
    place = {axis.name: index for index, axis in enumerate(mesh.axes)}
    found: dict[tuple[tuple[int, ...], int], Communicator] = {}
    for part in text.split(","):
        name, equals, rest = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UsageError(
                f"{what}: {part.strip()!r} is not AXIS=WEIGHT", "use for example --traffic tp=100,dp=10,pp=3"
            )
        axes = [piece.strip() for piece in name.split("+")]
        for axis in axes:
            if axis not in place:
                raise UsageError(f"{what}: mesh {mesh} has no axis {axis!r}", f"use its axes: {', '.join(place)}")
        if len(set(axes)) < len(axes):
            raise UsageError(f"{what}: {name!r} names an axis twice")
        weight, colon, word = (piece.strip() for piece in rest.partition(":"))
        kind = next((kind for kind in KINDS if kind == word), None) if colon else _find_default(axes[-1]).kind
        if kind is None:
            raise UsageError(f"{what}: {word!r} is not a kind of traffic", f"use {', '.join(KINDS)}")
        key = tuple(sorted(place[axis] for axis in axes)), KINDS.index(kind)
        if key in found:
            raise UsageError(f"{what} names {name} twice")
        amount, is_bytes = _parse_weight(weight, f"{what}: the weight of {name}")
        ordered = tuple(sorted(axes, key=place.__getitem__))
        found[key] = Communicator(axes=ordered, kind=kind, weight=amount, is_bytes=is_bytes)
    named = {axis for one in found.values() for axis in one.axes}
    for one in make_default_traffic(mesh):
        if one.axes[0] not in named:
            found[(place[one.axes[0]],), KINDS.index(one.kind)] = one
    ordered_found = tuple(found[key] for key in sorted(found))
    _require_one_unit(ordered_found, mesh, what)
    return ordered_found


def _parse_weight(text: str, what: str) -> tuple[int | float, bool]:
    """Return a proportion, or megabytes, to the byte; and whether it is megabytes."""
    match = re.fullmatch(_BYTES, text)
    if match is None:
        if text[-1:].isalpha() and text[:1].isdigit():
            raise UsageError(f"{what} is {text!r}, neither a number nor bytes", _BYTES_EXAMPLE)
        return parse_number(text, what), False
    megabytes = round(float(match[1]) * _MEGABYTES[match[2]], DECIMALS_MAX)
    if megabytes > NUMBER_MAX:
        raise UsageError(f"{what} is {text!r}, more than 1e9 MB")
    return int(megabytes) if megabytes == int(megabytes) else megabytes, True


def _require_one_unit(communicators: Iterable[Communicator], mesh: Mesh, what: str) -> None:
    lone = {axis.name for axis in mesh.axes if axis.size == 1}
    talking = [one for one in communicators if one.weight > 0 and not lone.issuperset(one.axes)]
    proportions = [one.name for one in talking if not one.is_bytes]
    if proportions and len(proportions) < len(talking):
        raise UsageError(
            f"{what} gives bytes for some axes, and {', '.join(proportions)} has a weight without a unit",
            f"set {proportions[0]}=300MB, or {proportions[0]}=0 if it has no traffic",
        )


def parse_number(text: str, what: str) -> int | float:
    """A weight, level cost or cost: 0 to 1e9 with at most 6 decimals. Raises UsageError, calling it `what`."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 <= found <= NUMBER_MAX:  # false for NaN
        raise UsageError(f"{what} is {text!r}, not a number from 0 to 1e9")
    if round(found, DECIMALS_MAX) != found:
        raise UsageError(f"{what} is {text!r}, more than {DECIMALS_MAX} decimals", "round it: only proportions matter")
    return int(found) if found == int(found) else found


def scale_to_integers(numbers: Sequence[int | float]) -> tuple[tuple[int, ...], int]:
    """The numbers times the smallest power of ten that makes integers of all of them, and that power."""
    finest = 10**DECIMALS_MAX
    parts = [round(each * finest) for each in numbers]  # integers from here on: what rounding left would count
    scale = 1
    while any(each * scale % finest for each in parts):
        scale *= 10
    return tuple(each * scale // finest for each in parts), scale
