"""Slurm's compact lists of host names: `gpu[001-003,007]`, `rack[0-1]n[00-15]-ib,login1`.

Commas outside brackets separate the list. A bracket expands to each of its numbers or ranges; the number before the
dash sets the width. With several brackets the last one varies fastest.
"""

from __future__ import annotations

from collections.abc import Iterator

_WIDTH_MAX = 18  # digits of a number; no host number has more


def expand_hostlist(text: str) -> Iterator[str]:
    """Yield the names in order, as they may be very many. Raises ValueError when it reaches an invalid one."""
    for part in _split_parts(text):
        yield from _expand_part(part)


def _split_parts(text: str) -> Iterator[str]:
    """Split at the commas outside brackets."""
    start, is_inside = 0, False
    for at, letter in enumerate(text):
        if letter in "[]":
            if is_inside == (letter == "["):
                raise ValueError(f"{text!r}: a bracket inside a bracket, or one that was never opened")
            is_inside = letter == "["
        elif letter == "," and not is_inside:
            yield text[start:at]
            start = at + 1
    if is_inside:
        raise ValueError(f"{text!r}: a bracket that is never closed")
    yield text[start:]


def _expand_part(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        if not head.strip() or not head.isprintable():
            raise ValueError(f"{part!r} is no name of a host")
        yield head.strip()
        return
    numbers, _, tail = rest.partition("]")
    for number in _expand_numbers(numbers):
        if "[" in tail:
            yield from (f"{head}{number}{end}" for end in _expand_part(tail))
        else:
            yield f"{head}{number}{tail}".strip()


def _expand_numbers(text: str) -> Iterator[str]:
    """Expand a bracket: "08-10,12" is 08, 09, 10, 12."""
    for item in text.split(","):
        low, dash, high = item.partition("-")
        if not all(end.isascii() and end.isdigit() and len(end) <= _WIDTH_MAX for end in (low, high if dash else low)):
            raise ValueError(f"[{text}]: {item!r} is neither a number nor a range")
        if dash and int(low) > int(high):
            raise ValueError(f"[{text}]: {item} runs backwards")
        for number in range(int(low), int(high if dash else low) + 1):
            yield f"{number:0{len(low)}}"
