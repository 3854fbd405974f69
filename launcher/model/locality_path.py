"""A locality as text: `zone=a,spine=s1,leaf=l3`, outermost level first.

An option, a line of a file and a command's output have the same form. Names of levels are words like `leaf` or
`my-row`; the name of a domain is anything printable without a comma. A level that occurs twice, or two known ones in
the wrong order, are mistakes that would silently reduce speed, so they are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

from launcher.model.errors import UsageError

EXAMPLE = "use for example zone=a,spine=s1,leaf=l3, outermost level first"

LevelPath = tuple[tuple[str, str], ...]


def parse_path(text: str, what: str) -> LevelPath:
    """Return the levels and domains in a text. `what`: the text's name in messages. Raises UsageError."""
    found: dict[str, str] = {}
    for part in text.split(","):
        level, equals, domain = (piece.strip() for piece in part.partition("="))
        if not (level and equals and domain):
            raise UsageError(f"{what}: {_shorten(part.strip())} is not LEVEL=DOMAIN", EXAMPLE)
        if not is_level_identifier(level):
            raise UsageError(f"{what}: {_shorten(level)} is not a level name", "use letters, digits, - and _")
        if level == HOST:
            raise UsageError(f"{what} names {HOST!r}, which is the node itself", "leave it out")
        if not is_text(domain):
            raise UsageError(
                f"{what}: the domain {_shorten(domain)} has more than {TEXT_MAX} or unprintable characters"
            )
        if level in found:
            raise UsageError(f"{what} sets the level {level} twice, to {_shorten(found[level])} and {_shorten(domain)}")
        found[level] = domain
    if len(found) > LEVELS_MAX:
        raise UsageError(f"{what} has {len(found)} levels; the limit is {LEVELS_MAX}")
    _require_order(found, what)
    return tuple(found.items())


def is_level_identifier(name: str) -> bool:
    """Whether it can stand in options such as --within tp=NAME."""
    return name.isascii() and name.replace("-", "").replace("_", "").isalnum() and name[0].isalnum() and len(name) <= 63


def _require_order(names: Iterable[str], what: str) -> None:
    known = [name for name in names if name in LEVELS]
    usual = sorted(known, key=LEVELS.index)
    for name, right in zip(known, usual, strict=True):
        if name != right:
            raise UsageError(
                f"{what}: {name} comes before {right}, which contains it",
                f"put the outermost level first: {', '.join(usual)}",
            )


def _shorten(text: str) -> str:
    short = text if len(text) <= 40 else f"{text[:37]}..."
    return repr(short)


LEVELS = (
    "region", "zone", "tier-9", "tier-8", "tier-7", "tier-6", "tier-5", "tier-4", "tier-3",
    "core", "spine", "leaf", "nvl", "slice", "machine",
)  # fmt: skip
"""The levels that sources may name, outermost first.

leaf: the switch or rack next to the node; spine: joins leaves; core: joins spines; tier-3 to tier-9: further
outwards in deeper trees, counted from the leaf, which is 0. nvl: an NVLink domain; slice: the TPU hosts that one
interconnect joins; machine: the host of nodes that are containers or virtual machines.
"""

HOST = "host"
"""launcher.model.topology's name for a node itself, the level below all others."""

LEVELS_MAX = 16  # of one node: no network is deeper

TEXT_MAX = 255  # characters of a name, of a level or a domain


def is_text(text: object) -> TypeGuard[str]:
    """Whether it can be the name of a level or a domain: printable, no blank at an end, and not too long."""
    return isinstance(text, str) and 0 < len(text) <= TEXT_MAX and text.isprintable() and text == text.strip()


def is_level_name(name: object) -> bool:
    """Whether it can be the name of a level, which "host" cannot: that is a node itself."""
    return is_text(name) and name != HOST
