"""How much the ranks along each axis of the mesh talk, and in which pattern.

A communicator is one axis, or several as one ring over their product, with a kind and a weight: the bytes that
a rank sends in a step, or any numbers in the same proportion. Only proportions matter.

    ring    i to i+1 and the last to the first: all-reduce, all-gather (tp, cp, dp)
    line    i to i+1: the stages of a pipeline (pp)
    all     everybody to everybody, 1 in all from each: the all-to-all of experts (ep)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from launcher.errors import UsageError
from launcher.mesh import Mesh

Kind = Literal["ring", "line", "all"]
KINDS: tuple[Kind, ...] = get_args(Kind)

DECIMALS_MAX = 6
NUMBER_MAX = 10**9


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """Groups of ranks that talk to each other: those that differ only along `axes`, in the mesh's order."""

    axes: tuple[str, ...]
    kind: Kind
    weight: int | float

    @property
    def name(self) -> str:
        return "+".join(self.axes)


class Usual(NamedTuple):
    kind: Kind
    weight: int


# What axes of these names usually carry, relative to each other, and other frameworks' names for the same:
# Megatron-LM, torchtitan, DeepSpeed, accelerate, MaxText.
_TP, _CP, _EP, _DP, _PP = Usual("ring", 100), Usual("ring", 30), Usual("all", 20), Usual("ring", 10), Usual("line", 3)
USUAL: dict[str, Usual] = {
    **dict.fromkeys(("tp", "etp", "model", "tensor", "tensor_sequence"), _TP),
    **dict.fromkeys(("cp", "sp", "context", "sequence"), _CP),
    **dict.fromkeys(("ep", "expert"), _EP),
    **dict.fromkeys(("dp", "edp", "data", "fsdp", "dp_shard", "dp_replicate", "diloco"), _DP),
    **dict.fromkeys(("pp", "pipe", "stage"), _PP),
}


def usual(mesh: Mesh) -> tuple[Communicator, ...]:
    """One communicator per axis; an axis of an unknown name talks like dp."""
    rules = ((axis.name, USUAL.get(axis.name.lower(), _DP)) for axis in mesh.axes)
    return tuple(Communicator(axes=(name,), kind=rule.kind, weight=rule.weight) for name, rule in rules)


def parse(text: str, mesh: Mesh) -> tuple[Communicator, ...]:
    """Read "tp=100,dp+cp=10:ring,pp=3"; axes that are not named in it keep what is usual for them.

    Raises UsageError for an axis the mesh lacks, a weight that is no number from 0 to 1e9, or an unknown kind.
    """
    given: list[Communicator] = []
    for part in text.split(","):
        name, equals, rest = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UsageError(f"traffic {text!r}: {part.strip()!r} is not AXIS=WEIGHT", "--traffic tp=100,dp=10,pp=3")
        weight, _, kind = (piece.strip() for piece in rest.partition(":"))
        axes = tuple(piece.strip() for piece in name.split("+"))
        given.append(communicator(axes, kind or None, number(weight, f"traffic {text!r}: the weight of {name}"), mesh))
    return complete(given, mesh)


def communicator(axes: Sequence[str], kind: str | None, weight: int | float, mesh: Mesh) -> Communicator:
    """A communicator of this mesh; without `kind` what is usual for its last axis. Raises UsageError."""
    order = [axis.name for axis in mesh.axes]
    for axis in axes:
        if axis not in order:
            raise UsageError(f"traffic: mesh {mesh} has no axis {axis!r}", f"its axes are {', '.join(order)}")
    if not axes or len(set(axes)) < len(axes):
        raise UsageError(f"traffic: {'+'.join(axes)!r} names no axis or one twice")
    kind = kind or USUAL.get(axes[-1].lower(), _DP).kind
    if kind not in KINDS:
        raise UsageError(f"traffic: {kind!r} is no kind of traffic", f"the kinds are {', '.join(KINDS)}")
    return Communicator(axes=tuple(sorted(axes, key=order.index)), kind=kind, weight=weight)


def complete(given: Sequence[Communicator], mesh: Mesh) -> tuple[Communicator, ...]:
    """`given`, and the usual for every axis that is not named there. Raises UsageError for a repeat."""
    seen: set[tuple[tuple[str, ...], Kind]] = set()
    for one in given:
        if (one.axes, one.kind) in seen:
            raise UsageError(f"traffic names {one.name} twice")
        seen.add((one.axes, one.kind))
    named = {axis for one in given for axis in one.axes}
    return (*given, *(one for one in usual(mesh) if one.axes[0] not in named))


def number(value: object, what: str) -> int | float:
    """A weight, toll or cost: 0 to 1e9 with at most 6 decimals, from text or a number. Raises UsageError."""
    try:
        found = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not 0 <= found <= NUMBER_MAX:  # false for NaN
        raise UsageError(f"{what} is {value!r}, not a number from 0 to 1e9")
    if round(found, DECIMALS_MAX) != found:
        raise UsageError(f"{what} is {value!r}, more than {DECIMALS_MAX} decimals", "only proportions matter")
    return int(found) if found == int(found) else found


def in_integers(numbers: Sequence[int | float]) -> tuple[tuple[int, ...], int]:
    """The numbers times the smallest power of ten that makes integers of all of them, and that power."""
    scale = 1
    while scale < 10**DECIMALS_MAX and any(round(each * scale, DECIMALS_MAX) % 1 for each in numbers):
        scale *= 10
    return tuple(round(each * scale) for each in numbers), scale
