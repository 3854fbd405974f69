"""Orders levels, outermost first, when several lists of them are merged.

The levels of `LEVELS` have a fixed order. Users may have levels of their own, `row` or `rack`, whose position follows
from the lists that contain them: `zone=a,row=r7,leaf=l3` puts rows inside zones and outside leaves. So each list orders
every two of its names, and the names are sorted such that all these orders hold. Where lists contradict each other, the
majority counts; between equals the name that sorts first is outside. A name without others in its list is assumed to be
inside a leaf.

The result depends on the lists alone, not on their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from launcher.model.locality_path import LEVELS
from rendezvous.values import NamedTuple

_RANKS = {name: rank for rank, name in enumerate(LEVELS)}
_OWN_RANK = _RANKS["leaf"] + 0.5  # the rank of a level of which nothing is known


class LevelOrder(NamedTuple):
    """`levels`: every name once, outermost first; `remarks`: where the lists contradict each other."""

    levels: tuple[str, ...]
    remarks: tuple[str, ...]


def order_levels(lists: Mapping[tuple[str, ...], int]) -> LevelOrder:
    """One order for the names of all lists; `lists`: a list of names, outermost first -> its number of occurrences."""
    names = {name for one in lists for name in one}
    if names <= _RANKS.keys():
        levels = tuple(sorted(names, key=_RANKS.__getitem__))
        return LevelOrder(
            levels,
            tuple(_describe_disorder(one) for one in sorted(lists) if _list_ranks(one) != sorted(_list_ranks(one))),
        )
    votes: dict[tuple[str, str], int] = {}
    for one, count in lists.items():
        for index, outer in enumerate(one):
            for inner in one[index + 1 :]:
                if not (outer in _RANKS and inner in _RANKS):
                    votes[outer, inner] = votes.get((outer, inner), 0) + count
    inside = _build_nesting(names)
    remarks: list[str] = []
    for outer, inner in sorted(votes, key=lambda pair: (-votes[pair], pair)):
        if _can_reach(inside, inner, outer):
            remarks.append(
                f"{outer} is taken to be inside {inner}, though {_format_votes(votes[outer, inner])} it the other "
                "way round"
            )
        else:
            inside[outer].add(inner)
    disordered = [_describe_disorder(one) for one in sorted(lists) if _list_ranks(one) != sorted(_list_ranks(one))]
    return LevelOrder(tuple(_sort_topologically(inside)), (*disordered, *remarks))


def _build_nesting(names: Iterable[str]) -> dict[str, set[str]]:
    """Return name -> the names that are inside it by `LEVELS`; only the next one, the others follow."""
    inside: dict[str, set[str]] = {name: set() for name in names}
    known = sorted((name for name in inside if name in _RANKS), key=_RANKS.__getitem__)
    for outer, inner in pairwise(known):
        inside[outer].add(inner)
    return inside


def _list_ranks(names: Iterable[str]) -> list[int]:
    return [_RANKS[name] for name in names if name in _RANKS]


def _describe_disorder(names: Iterable[str]) -> str:
    known = [name for name in names if name in _RANKS]
    usual = sorted(known, key=_RANKS.__getitem__)
    return f"levels are given as {', '.join(known)}, and taken as {', '.join(usual)}"


def _format_votes(votes: int) -> str:
    return "1 has" if votes == 1 else f"{votes} have"


def _can_reach(inside: Mapping[str, set[str]], start: str, goal: str) -> bool:
    seen, left = {start}, [start]
    while left:
        name = left.pop()
        if name == goal:
            return True
        left += inside[name] - seen
        seen |= inside[name]
    return False


def _sort_topologically(inside: Mapping[str, set[str]]) -> list[str]:
    """Return every name before those inside it; of several candidates, the one that is usually outermost."""
    outside = dict.fromkeys(inside, 0)
    for names in inside.values():
        for name in names:
            outside[name] += 1
    ready = [name for name, count in outside.items() if not count]
    found: list[str] = []
    while ready:
        ready.sort(key=lambda name: (_find_rank(inside, name), name), reverse=True)
        found.append(name := ready.pop())
        for inner in inside[name]:
            outside[inner] -= 1
            if not outside[inner]:
                ready.append(inner)
    return found


def _find_rank(inside: Mapping[str, set[str]], name: str) -> float:
    """Return the rank; a level of the user's that is outside a known one comes directly before that."""
    if name in _RANKS:
        return _RANKS[name]
    reached, left = {name}, [name]
    while left:
        for inner in inside[left.pop()] - reached:
            reached.add(inner)
            left.append(inner)
    return min([_RANKS[each] for each in reached if each in _RANKS], default=_OWN_RANK)
