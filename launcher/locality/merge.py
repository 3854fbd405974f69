"""Merges the results of several sources for one node: a domain for each level, outermost first.

The results are in order of trust. For each level the first that knows it counts; a later one with another domain is a
conflict, which is reported: one of the two is wrong, or has another name for the same switch, and then nodes with
different sources seem to be apart.

The levels of `LEVELS` have a fixed order. Users may have levels of their own, `row` or `rack`, whose position follows
from the lists that contain them: `zone=a,row=r7,leaf=l3` puts rows inside zones and outside leaves. So each list orders
every two of its names, and the names are sorted such that all these orders hold. Where lists contradict each other, the
majority counts; between equals the name that sorts first is outside. A name without others in its list is assumed to be
inside a leaf. The result depends on the lists alone, not on their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise

from msgspec import Struct
from msgspec.structs import replace

from launcher.locality.contract import Level
from launcher.locality.keys import RemarkedLevels
from launcher.model.locality_path import LEVELS, LEVELS_MAX, LevelPath, is_level_name, is_text

_OWN_NAME = ("slice", "slice")
"""A TPU slice is named after its first host; GKE names it after its node pool, which is no conflict."""

_NAMES_MAX = 100  # names are foreign input
_RANKS = {name: rank for rank, name in enumerate(LEVELS)}
_OWN_RANK = _RANKS["leaf"] + 0.5  # the rank of a level of which nothing is known


class SourceResult(Struct, frozen=True):
    """The result of querying one source: its levels, and the reason for these or none."""

    source: str
    levels: tuple[Level, ...]
    reason: str


def merge(results: Sequence[SourceResult]) -> RemarkedLevels:
    """Return one domain for each level, and sentences. `results`: in order of trust, the most trusted first."""
    chosen: dict[str, tuple[str, Level]] = {}
    remarks: list[str] = []
    for result in results:
        source = result.source
        for level in result.levels:
            first_source, first = chosen.setdefault(level.name, (source, level))
            if first.domain != level.domain and (first_source, level.name) != _OWN_NAME:
                remarks.append(
                    f"{level.name} is {first.domain} by {format_provenance(first_source, first)}, which counts, and "
                    f"{level.domain} by {format_provenance(source, level)}"
                )
    lists = Counter(tuple(level.name for level in result.levels) for result in results)
    ordered, contradictions = order_levels(lists)
    left_out = ordered[LEVELS_MAX:]
    excess = f"at most {LEVELS_MAX} levels are used; left out: {', '.join(left_out)}"
    return RemarkedLevels(
        tuple(chosen[name][1] for name in ordered[:LEVELS_MAX]),
        (*remarks, *contradictions, *([excess] if left_out else ())),
    )


def format_provenance(source: str, level: Level) -> str:
    """Format the origin: "slurm (SLURM_TOPOLOGY_ADDR)"."""
    return source if level.origin == source or not level.origin else f"{source} ({level.origin})"


def keep_usable_levels(result: SourceResult) -> SourceResult:
    """Remove levels that cannot be sent to other nodes: a plug-in or a metadata server may return anything."""
    kept: dict[str, Level] = {}
    for level in result.levels:
        if is_level_name(level.name) and is_text(level.domain):
            kept.setdefault(level.name, level)
    levels = tuple(kept.values())[:LEVELS_MAX]
    left_out = len(result.levels) - len(levels)
    if not left_out:
        return result
    reason = f"{result.reason}; {left_out} of its levels are duplicate or invalid, and not used"
    return replace(result, levels=levels, reason=reason)


def order_levels(lists: Mapping[tuple[str, ...], int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """One order for the names of all lists; `lists`: a list of names, outermost first -> its number of occurrences."""
    inside: dict[str, set[str]] = {name: set() for one in lists for name in one}
    for outer, inner in pairwise(_sort_known(inside)):  # by `LEVELS`; only the next one, the others follow
        inside[outer].add(inner)
    votes: dict[tuple[str, str], int] = {}
    for one, count in lists.items():
        for pair in combinations(one, 2):
            if not _RANKS.keys() >= set(pair):
                votes[pair] = votes.get(pair, 0) + count
    contradictions = []
    for outer, inner in sorted(votes, key=lambda pair: (-votes[pair], pair)):
        if outer in _list_inside(inside, inner):
            count = votes[outer, inner]
            contradictions.append(
                f"{outer} is taken to be inside {inner}, though {count} ha{'s' if count == 1 else 've'} it the other "
                "way round"
            )
        else:
            inside[outer].add(inner)
    disordered = [
        f"levels were given as {', '.join(known)} and are used as {', '.join(_sort_known(known))}"
        for known in ([name for name in one if name in _RANKS] for one in sorted(lists))
        if known != _sort_known(known)
    ]
    return tuple(_sort_topologically(inside)), (*disordered, *contradictions)


def order_known_levels(paths: Iterable[LevelPath]) -> tuple[str, ...]:
    """Return the levels of many nodes' paths, outermost first; none where there are more than any network has."""
    lists = Counter(tuple(level for level, _ in path) for path in paths)
    return order_levels(lists)[0] if len({name for one in lists for name in one}) <= _NAMES_MAX else ()


def _sort_known(names: Iterable[str]) -> list[str]:
    """Return those of the names that are in `LEVELS`, in its order."""
    return sorted((name for name in names if name in _RANKS), key=_RANKS.__getitem__)


def _list_inside(inside: Mapping[str, set[str]], start: str) -> set[str]:
    """Return a name and all that are inside it."""
    found, left = {start}, [start]
    while left:
        new = inside[left.pop()] - found
        found |= new
        left += new
    return found


def _sort_topologically(inside: Mapping[str, set[str]]) -> list[str]:
    """Return every name before those inside it; of several candidates, the one that is usually outermost."""
    found: list[str] = []
    left = dict(inside)
    while left:
        ready = left.keys() - set().union(*left.values())
        found.append(min(ready, key=lambda name: (_find_rank(inside, name), name)))
        del left[found[-1]]
    return found


def _find_rank(inside: Mapping[str, set[str]], name: str) -> float:
    """Return the rank; a level of the user's that is outside a known one comes directly before that."""
    if name in _RANKS:
        return _RANKS[name]
    return min((_RANKS[each] for each in _list_inside(inside, name) if each in _RANKS), default=_OWN_RANK)
