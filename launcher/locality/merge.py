"""What several sources say of one node, made one: a domain for each level, outermost first.

The answers come in order of trust. For each level the first that knows it counts; where a later one names another
domain, that is a conflict, and people are told of it: one of the two is wrong, or calls the same switch by another
name, and then nodes that were told by different sources seem to be apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.locality import LEVELS_MAX, Level, is_own, is_text
from launcher.locality.order import order
from rendezvous.values import NamedTuple

_OWN_NAME = ("slice", "slice")
"""A TPU slice is called by its first host; GKE calls it by its node pool, which is no contradiction."""


class Looked(NamedTuple):
    """What came of asking one source: the levels it knows, and why these or none."""

    source: str
    levels: tuple[Level, ...]
    reason: str


class Merged(NamedTuple):
    """`remarks` are sentences for people."""

    levels: tuple[Level, ...]
    remarks: tuple[str, ...]


def merge(answers: Sequence[Looked]) -> Merged:
    """One domain for each level. `answers`: in order of trust, the most trusted first."""
    chosen: dict[str, tuple[str, Level]] = {}
    remarks: list[str] = []
    lists: dict[tuple[str, ...], int] = {}
    for source, levels, _ in answers:
        for level in levels:
            first_source, first = chosen.setdefault(level.name, (source, level))
            if first.domain != level.domain and (first_source, level.name) != _OWN_NAME:
                remarks.append(
                    f"{level.name} is {first.domain} by {told_by(first_source, first)}, which counts, and "
                    f"{level.domain} by {told_by(source, level)}"
                )
        names = tuple(level.name for level in levels)
        lists[names] = lists.get(names, 0) + 1
    ordered = order(lists)
    return Merged(
        tuple(chosen[name][1] for name in ordered.levels[:LEVELS_MAX]),
        (*remarks, *ordered.remarks, *_too_many(ordered.levels)),
    )


def told_by(source: str, level: Level) -> str:
    """Who says so: "slurm (SLURM_TOPOLOGY_ADDR)"."""
    return source if level.origin == source or not level.origin else f"{source} ({level.origin})"


def usable(answer: Looked) -> Looked:
    """The answer without what cannot be told to other nodes: a plug-in or a metadata server may say anything."""
    kept: list[Level] = []
    for level in answer.levels:
        if is_own(level.name) and is_text(level.domain) and level.name not in (one.name for one in kept):
            kept.append(level)
    left_out = len(answer.levels) - len(kept[:LEVELS_MAX])
    if not left_out:
        return answer
    reason = f"{answer.reason}; {left_out} of its levels cannot be used, being double or no names"
    return answer._replace(levels=tuple(kept[:LEVELS_MAX]), reason=reason)


def _too_many(names: Sequence[str]) -> list[str]:
    left_out = names[LEVELS_MAX:]
    return [f"{LEVELS_MAX} levels are the most that are used; left out: {', '.join(left_out)}"] if left_out else []
