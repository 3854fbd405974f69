"""Generates clusters from a short form, without a file: "dgx:4x8x8" is 4 leaves of 8 nodes with 8 GPUs each.

Nodes are named h0, h1, ... along the tree, and so are domains, each within the one above. Two things are as
unhelpful as in reality: nodes join in shuffled order, always the same, and addresses count up along the tree, so that
sorted as text 10.0.0.10 comes before 10.0.0.2.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Sequence

from launcher.hardware import slice_types
from launcher.meshctl.plan.cluster import DEVICES_MAX, ClusterSpec, require_size
from launcher.model.errors import UsageError
from launcher.model.node import Node

FORMS = {
    "dgx": "dgx:[[[ZONESx]PODSx]LEAVESx]NODESxGPUS",
    "nvl72": "nvl72:[PODSx]RACKS",
    "tpu": "tpu:TYPE:SLICES",
}
"""Kind -> its form. dgx:4x8 are 4 nodes without levels of the network."""
_EXAMPLES = {"dgx": "dgx:4x8x8", "nvl72": "nvl72:8", "tpu": "tpu:v5e-16:6"}

_NVL72 = (18, 4)  # an NVLink domain of 72 GPUs: 18 hosts with 4
_SUBNET_HOSTS = 250


def is_form(text: str) -> bool:
    """Whether it names a generator, not a file."""
    return text.partition(":")[0] in FORMS and ":" in text


def suggest_form(text: str) -> str:
    """Return the next step for a text that is no file and nearly a form; "" for any other."""
    if numbers := re.search(r"(?:^|[:=_ -])(\d+(?:x\d+)+)$", text.lower()):
        return f"did you mean dgx:{numbers[1]}?"
    kind = next((kind for kind in FORMS if text.lower().startswith(kind)), "dgx")
    return f"write for example {_EXAMPLES[kind]}" if text.isdecimal() or text.lower().startswith(kind) else ""


def generate(text: str) -> ClusterSpec:
    """Generate the cluster of `text`, one of FORMS. Raises UsageError."""
    kind, _, rest = text.partition(":")
    if kind == "nvl72":
        counts = _parse_counts(rest, text, kind, 1, 2)
        return _make_cluster(text, ("pod", "nvl")[-len(counts) :], (*counts, *_NVL72))
    if kind == "tpu":
        return _generate_tpu(rest, text)
    counts = _parse_counts(rest, text, kind, 2, 5)
    return _make_cluster(text, ("zone", "pod", "leaf")[5 - len(counts) :], counts)


def _generate_tpu(rest: str, text: str) -> ClusterSpec:
    name, _, slice_count = rest.partition(":")
    try:
        slice = slice_types.parse(name)
    except UsageError as error:
        raise UsageError(f"cluster {text!r}: {error}", error.hint) from None
    counts = _parse_counts(slice_count, text, "tpu", 1, 1)
    if slice.hosts == 1:
        hint = f"use dgx:{counts[0]}x{slice.chips} for single hosts"
        raise UsageError(f"cluster {text!r}: {slice.description}", hint)
    return _make_cluster(text, ("slice",), (*counts, slice.hosts, slice.chips_per_host), whole=f"slice:{slice.hosts}")


def _parse_counts(text: str, spec: str, kind: str, least: int, most: int) -> tuple[int, ...]:
    pieces = text.split("x")
    if not least <= len(pieces) <= most or not all(piece.isascii() and piece.isdigit() for piece in pieces):
        raise UsageError(
            f"cluster {spec!r} is not of the form {FORMS[kind]}", "separate numbers with x, e.g. dgx:4x8x8"
        )
    if not all(0 < len(piece) < 10 and int(piece) for piece in pieces):
        raise UsageError(f"cluster {spec!r} has a number outside 1 to 999999999")
    return tuple(int(piece) for piece in pieces)


def _make_cluster(name: str, levels: tuple[str, ...], counts: Sequence[int], whole: str = "") -> ClusterSpec:
    """`counts`: domains of the outermost level, of the next in each, ..., nodes in each, devices of each."""
    *domains, devices = counts
    node_count = math.prod(domains)
    require_size(node_count, 0, name)
    if devices > DEVICES_MAX:
        raise UsageError(f"{name}: {devices} devices per node; the limit is {DEVICES_MAX}")
    require_size(node_count, node_count * devices, name)
    places = itertools.product(*(range(count) for count in domains))
    arrival = sorted(range(node_count), key=_make_shuffle_key)
    order = {number: position for position, number in enumerate(arrival)}
    nodes = [
        Node(
            id=f"h{number}",
            slot_count=devices,
            path=tuple(f"{level[0]}{place[depth]}" for depth, level in enumerate(levels)),
            address=make_address(number),
            order=order[number],
            index=place[-1] if whole else None,
        )
        for number, place in enumerate(places)
    ]
    nodes.sort(key=lambda node: node.order)
    options = {"whole": whole} if whole else {}
    return ClusterSpec(name=name, levels=levels, nodes=tuple(nodes), options=options, is_generated=True)


def make_address(number: int) -> str:
    """Return the address of node `number`, counted from 0."""
    subnet, host = divmod(number, _SUBNET_HOSTS)
    return f"10.{subnet // 256}.{subnet % 256}.{host + 1}"


def _make_shuffle_key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=8).digest()
