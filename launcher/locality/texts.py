"""A place in the network as people write it: `zone=a,spine=s1,leaf=l3`, outermost level first.

The same form serves an option, a line of a file and what a command prints. Names of levels are words like `leaf` or
`my-row`; the name of a domain is anything printable without a comma. Whoever writes a level twice, or two known ones
the wrong way round, has made a mistake that would cost them speed silently, so that is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from launcher.errors import UsageError
from launcher.locality import HOST, LEVELS, LEVELS_MAX, TEXT_MAX, is_text

EXAMPLE = "write it like zone=a,spine=s1,leaf=l3, outermost level first"

LevelPath = tuple[tuple[str, str], ...]


def parse_path(text: str, what: str) -> LevelPath:
    """The levels and domains that a text names. `what`: how messages call the text. Raises UsageError."""
    found: dict[str, str] = {}
    for part in text.split(","):
        level, equals, domain = (piece.strip() for piece in part.partition("="))
        if not (level and equals and domain):
            raise UsageError(f"{what}: {_shorten(part.strip())} is not LEVEL=DOMAIN", EXAMPLE)
        if not is_level_identifier(level):
            raise UsageError(f"{what}: {_shorten(level)} is no name of a level", "letters, digits, - and _")
        if level == HOST:
            raise UsageError(f"{what} names {HOST!r}, which is the node itself", "leave it out")
        if not is_text(domain):
            raise UsageError(
                f"{what}: the domain {_shorten(domain)} has more than {TEXT_MAX} or unprintable characters"
            )
        if level in found:
            raise UsageError(
                f"{what} names the level {level} twice, as {_shorten(found[level])} and {_shorten(domain)}"
            )
        found[level] = domain
    if len(found) > LEVELS_MAX:
        raise UsageError(f"{what} has {len(found)} levels, {LEVELS_MAX} are the most")
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
                f"{what}: {name} stands before {right}, which is around it", f"outermost first: {', '.join(usual)}"
            )


def _shorten(text: str) -> str:
    short = text if len(text) <= 40 else f"{text[:37]}..."
    return repr(short)
