"""The topology of a job's members: the levels of the network, and a path through them for each node.

Each member's description names its domains, level by level: `zone=a,leaf=l3`. This module computes what the planner
needs: one list of levels for all, and for each node the domains at these levels, unknown ones as None. Such a node is
a domain of its own there, if no node near it knows. Two things are added that no description contains. Nodes of one
kernel share a machine, which counts as a level where some do and others do not. And hosts of TPU slices are used by
whole slices, because a part of one cannot compute.

A description may contain anything, so the number of levels is limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from launcher.locality.merge import order_levels
from launcher.model.locality_path import LEVELS
from launcher.model.topology import HOST, make_natural_key
from launcher.placement.adapter.description import Description
from launcher.placement.limits import AllOrNothing, Costs, Limits, name_some
from rendezvous.reasons import Reason

LEVELS_MAX = 24  # of all nodes together
MACHINE, SLICE = "machine", "slice"
_UNIQUE_LEVELS = ("nvl", SLICE)  # names of their domains are unique, and nodes inside are always nearer
_OPTIONAL_LEVELS = (*_UNIQUE_LEVELS, MACHINE)  # a node without one is no mistake
_MACHINE_LETTERS = 13  # of the kernel's id: more than enough to tell machines apart

NodePath = tuple[str | None, ...]


class Topology(Struct, frozen=True):
    """The levels of the network as the leader has merged them."""

    levels: tuple[str, ...]
    """Outermost first."""
    paths: Mapping[str, NodePath]
    """Node to its domain at each level."""
    remarks: tuple[Reason, ...] = ()
    """For the user."""


# docs/internals/decisions/0029-named-locality-levels.md
def build_topology(known: Mapping[str, Description], named: Iterable[str] = ()) -> Topology:
    """The levels and paths of these nodes. `known`: name -> its description; `named`: levels that options name."""
    kept, remarks = _select_levels(
        Counter(tuple(level for level, _ in description.locality) for description in known.values())
    )
    ordered, contradictions = order_levels(kept)
    levels = list(ordered)
    remarks += [Reason.of("placement/remark", text=remark) for remark in contradictions]
    places = {name: dict(description.locality) for name, description in known.items()}
    _add_machines(places, known, levels, named)
    for level in _UNIQUE_LEVELS:
        if level in levels:
            remarks += _join(level, levels, places)
    _fill(levels, places)
    if idle := _find_unshared_levels(levels, places, named):
        remarks += _explain_unshared_levels(idle)
        levels = [level for level in levels if level not in idle]
    paths = {name: tuple(place.get(level) for level in levels) for name, place in places.items()}
    return Topology(tuple(levels), paths, (*remarks, *_explain_missing(levels, places)))


def resolve_limits(
    limits: Limits, topology: Topology, known: Iterable[Description]
) -> tuple[Limits, tuple[Reason, ...]]:
    """Return the limits with the existing levels, slices whole where no option names other domains; and remarks."""
    limits = replace(limits, levels=topology.levels)
    slices = Counter((description.slice_hosts, dict(description.locality).get(SLICE)) for description in known)
    hosts: Counter[int] = Counter()  # by the hosts of a slice
    ready: Counter[int] = Counter()  # in complete slices
    for (size, domain), count in slices.items():
        if size > 1:
            hosts[size] += count
            ready[size] += count if domain is not None and count >= size else 0
    if limits.all_or_nothing is not None or not hosts or SLICE not in topology.levels:
        return limits, ()
    usual = max(hosts, key=lambda size: (ready[size], hosts[size], size))
    others = tuple(str(size) for size in sorted(hosts) if size != usual)
    remarks = (Reason.of("placement/slices-differ", others=others, usual=usual),) if others else ()
    return replace(limits, all_or_nothing=AllOrNothing(level=SLICE, hosts=usual)), remarks


def check_level_costs(costs: Costs, topology: Topology) -> tuple[Reason, ...]:
    """Return a remark on level costs of levels that no node has."""
    absent = [level for level in costs.level_costs if level not in (*topology.levels, HOST)]
    return (Reason.of("placement/level-costs-unused", levels=name_some(absent)),) if absent else ()


def _select_levels(lists: Mapping[tuple[str, ...], int]) -> tuple[dict[tuple[str, ...], int], list[Reason]]:
    """Select the lists whose names stay within LEVELS_MAX: known levels, and those that most nodes have."""
    counts: Counter[str] = Counter()
    for names, count in lists.items():
        counts.update(dict.fromkeys(names, count))
    ranked = sorted(counts, key=lambda name: (name not in LEVELS, -counts[name], name))
    kept, left_out = frozenset(ranked[:LEVELS_MAX]), ranked[LEVELS_MAX:]
    shorter: Counter[tuple[str, ...]] = Counter()
    for names, count in lists.items():
        shorter[tuple(name for name in names if name in kept)] += count
    if not left_out:
        return shorter, []
    return shorter, [Reason.of("placement/too-many-levels", most=LEVELS_MAX, levels=name_some(left_out))]


def _add_machines(
    domains_by_node: Mapping[str, dict[str, str]],
    known: Mapping[str, Description],
    levels: list[str],
    named: Iterable[str],
) -> None:
    """Set each node's machine to its kernel's id, if some nodes share one and not all do."""
    machines = Counter(description.machine for description in known.values() if description.machine)
    if MACHINE not in levels:
        if not (1 < len(machines) < machines.total()) and MACHINE not in named:
            return
        levels.append(MACHINE)
    for name, place in domains_by_node.items():
        if machine := known[name].machine:
            place.setdefault(MACHINE, machine[:_MACHINE_LETTERS])


def _join(level: str, levels: list[str], domains_by_node: Mapping[str, dict[str, str]]) -> list[Reason]:
    """Make each domain of the level one piece, even if its nodes name different outer domains; return remarks on that.

    Where a domain is as wide as several others, as a slice of a thousand hosts is wider than a leaf, the level is put
    outside. A single node that contradicts its neighbours, or does not know, gets their domain.
    """
    at = levels.index(level)
    remarks: list[Reason] = []
    for index, outer in enumerate(levels[:at]):
        around: dict[str, Counter[str]] = {}  # domain of the level -> outer domains that its nodes name
        for place in domains_by_node.values():
            if level in place and outer in place:
                around.setdefault(place[level], Counter())[place[outer]] += 1
        torn = sorted(domain for domain, found in around.items() if len(found) > 1)
        is_usual = 2 * len(torn) > sum(found.total() > 1 for found in around.values())
        if torn and (is_usual or any(2 * max(around[one].values()) <= around[one].total() for one in torn)):
            levels.insert(index, levels.pop(at))
            domains = name_some(sorted(around[torn[0]]))
            remark = Reason.of("placement/level-around", level=level, domain=torn[0], outer=outer, domains=domains)
            return [*remarks, remark]
        usual = {domain: max(found, key=lambda one: (found[one], one)) for domain, found in around.items()}
        for domain in torn:
            strays = _sort_names(
                name
                for name, place in domains_by_node.items()
                if place.get(level) == domain and place.get(outer, usual[domain]) != usual[domain]
            )
            remark = Reason.of(
                "placement/level-strays",
                level=level,
                domain=domain,
                outer=outer,
                usual=usual[domain],
                nodes=name_some(strays),
            )
            remarks.append(remark)
        for place in domains_by_node.values():
            if place.get(level) in usual:
                place[outer] = usual[place[level]]
    return remarks


def _fill(levels: Sequence[str], domains_by_node: Mapping[str, dict[str, str]]) -> None:
    """Give a node that does not know a level the domain of its neighbours, if all that know it agree.

    Neighbours share the next inner level that it knows. Else a leaf of which some nodes know the zone would be two.
    """
    for at in range(len(levels) - 2, -1, -1):
        outer = levels[at]
        around: dict[tuple[str, str], set[str]] = {}
        for place in domains_by_node.values():
            if outer in place:
                for level in levels[at + 1 :]:
                    if level in place:
                        around.setdefault((level, place[level]), set()).add(place[outer])
        for place in domains_by_node.values():
            inner = next((level for level in levels[at + 1 :] if level in place), None)
            if inner is not None and outer not in place:
                found = around.get((inner, place[inner]), ())
                if len(found) == 1:
                    (place[outer],) = found


def _find_unshared_levels(
    levels: Iterable[str], domains_by_node: Mapping[str, Mapping[str, str]], named: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Return the levels that few nodes know and no two share, with those nodes: they have no effect on a plan.

    So a level that only one node names costs the others no time, and excludes no better place.
    """
    found = {}
    for level in set(levels).difference(named, _OPTIONAL_LEVELS):
        here = {name: place[level] for name, place in domains_by_node.items() if level in place}
        if 2 * len(here) < len(domains_by_node) and len(set(here.values())) == len(here):
            found[level] = _sort_names(here)
    return found


def _sort_names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=make_natural_key))


def _explain_unshared_levels(idle: Mapping[str, tuple[str, ...]]) -> list[Reason]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for level in _sort_names(idle):
        groups.setdefault(idle[level], []).append(level)
    return [
        Reason.of("placement/level-unshared", nodes=name_some(names), levels=name_some(levels))
        for names, levels in groups.items()
    ]


def _explain_missing(levels: Iterable[str], domains_by_node: Mapping[str, Mapping[str, str]]) -> list[Reason]:
    """Return the nodes that do not name a level that others name."""
    found = []
    for level in levels:
        if level in _OPTIONAL_LEVELS:
            continue
        absent = _sort_names(name for name, place in domains_by_node.items() if level not in place)
        if absent:
            found.append(Reason.of("placement/level-unknown", level=level, nodes=name_some(absent)))
    return found
