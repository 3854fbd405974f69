"""Merges the results of several sources for one node: a domain for each level, outermost first.

The results are in order of trust. For each level the first that knows it counts; a later one with another domain is a
conflict, which is reported: one of the two is wrong, or has another name for the same switch, and then nodes with
different sources seem to be apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.locality.contract import Level
from launcher.locality.order import order_levels
from launcher.model.locality_path import LEVELS_MAX, is_level_name, is_text
from rendezvous.values import NamedTuple

_OWN_NAME = ("slice", "slice")
"""A TPU slice is named after its first host; GKE names it after its node pool, which is no conflict."""


class SourceResult(NamedTuple):
    """The result of querying one source: its levels, and the reason for these or none."""

    source: str
    levels: tuple[Level, ...]
    reason: str


class MergedLevels(NamedTuple):
    """`remarks` are sentences for the user."""

    levels: tuple[Level, ...]
    remarks: tuple[str, ...]


def merge(results: Sequence[SourceResult]) -> MergedLevels:
    """Return one domain for each level. `results`: in order of trust, the most trusted first."""
    chosen: dict[str, tuple[str, Level]] = {}
    remarks: list[str] = []
    lists: dict[tuple[str, ...], int] = {}
    for source, levels, _ in results:
        for level in levels:
            first_source, first = chosen.setdefault(level.name, (source, level))
            if first.domain != level.domain and (first_source, level.name) != _OWN_NAME:
                remarks.append(
                    f"{level.name} is {first.domain} by {format_provenance(first_source, first)}, which counts, and "
                    f"{level.domain} by {format_provenance(source, level)}"
                )
        names = tuple(level.name for level in levels)
        lists[names] = lists.get(names, 0) + 1
    ordered = order_levels(lists)
    return MergedLevels(
        tuple(chosen[name][1] for name in ordered.levels[:LEVELS_MAX]),
        (*remarks, *ordered.remarks, *_describe_excess(ordered.levels)),
    )


def format_provenance(source: str, level: Level) -> str:
    """Format the origin: "slurm (SLURM_TOPOLOGY_ADDR)"."""
    return source if level.origin == source or not level.origin else f"{source} ({level.origin})"


def keep_usable_levels(result: SourceResult) -> SourceResult:
    """Remove levels that cannot be sent to other nodes: a plug-in or a metadata server may return anything."""
    kept: list[Level] = []
    for level in result.levels:
        if is_level_name(level.name) and is_text(level.domain) and level.name not in (one.name for one in kept):
            kept.append(level)
    left_out = len(result.levels) - len(kept[:LEVELS_MAX])
    if not left_out:
        return result
    reason = f"{result.reason}; {left_out} of its levels cannot be used, being double or no names"
    return result._replace(levels=tuple(kept[:LEVELS_MAX]), reason=reason)


def _describe_excess(names: Sequence[str]) -> list[str]:
    left_out = names[LEVELS_MAX:]
    return [f"{LEVELS_MAX} levels are the most that are used; left out: {', '.join(left_out)}"] if left_out else []
