"""Where a newcomer stands, by one loaded round with nodes whose domains are known.

Nodes of the run send to nodes of other domains, so the links of their domains fill. The newcomer sends nothing, so
that its own link stays empty, and asks them for echoes. An echo that waits has crossed a full link. One that does not
has met none: if the link of the domain that answers was full, the newcomer is inside. That it was full is seen in what
the members of the domain received from outside, and what arrived of theirs outside; the job's own traffic may have a
part of the link, so most of its known rate is enough. If nobody answers fast, the newcomer is in none of the domains.

All else is doubtful, and then there is no place: a wrong one misleads a plan for as long as the job runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from launcher.locality.measure.grouping import FLOOR_S, Groups, cut, find_median, order_groups
from launcher.locality.measure.procedure import PACE, RATIO_CLEAN_MIN, SLOWED, set_pace, set_window
from launcher.locality.measure.rates import SAME_MAX, find_exceptions, find_usual, measure_domains
from launcher.locality.measure.schedule import LoadRound, make_across_round, shuffle

Path = tuple[tuple[str, str], ...]  # levels and domains, outermost first

NEAR_MAX = 10.0
"""Times an idle round trip: what is near waits in no queue. Members of other domains wait 100 times as long."""
ASKED_MAX = 128
CONTRADICTING_MAX = 0.25  # of the members of a domain that answer unlike the others
OFFERED_MIN = 1.5  # times the rate of a link, to fill it
FILLED_MIN = 0.85
"""Of the known rate of a link: so much of it was carried for this round while it was full, with a job beside it."""


class Placement(Struct, frozen=True, kw_only=True):
    """`path`: of the newcomer, empty if it cannot be told. `rates`: of the uplinks at its levels, as far as known.

    `reason`: why it is this, in words that follow the name of the newcomer.
    """

    path: Path = ()
    rates: tuple[tuple[str, int], ...] = ()
    reason: str


class KnownNode(Struct, frozen=True, kw_only=True):
    """A node of the run that takes part. `rates`: of its uplinks at the levels of its path, and "host"."""

    path: Path
    rates: tuple[tuple[str, int], ...] = ()


class PlaceReports(Struct, frozen=True, kw_only=True):
    """`idle_s`, `loaded_s`: the newcomer's usual round trips to nodes that answered, by number.

    `received_bps`: what each node received in the loaded round.
    """

    asked: Sequence[int]
    idle_s: Mapping[int, float]
    loaded_s: Mapping[int, float]
    received_bps: Mapping[int, int]


def group_known(nodes: Sequence[KnownNode]) -> Groups:
    """Return the nodes of each innermost domain."""
    found: dict[Path, list[int]] = {}
    for number, node in enumerate(nodes):
        found.setdefault(node.path, []).append(number)
    return order_groups(found.values())


def make_round(nodes: Sequence[KnownNode], seed: int) -> LoadRound:
    """Return the round in which these nodes send, each to another domain, and the newcomer, the last number, does not.

    As many of each domain send, or a large one would keep the link of a small one from being full, and so would one
    with a slow link those of others: a domain with an unusual rate is silent, as is one of too few nodes to fill its
    link. They stay within their outer domains, whose links might be full first. No host's link may be full: each sends
    a little less than the slower one of two carries.
    """
    host_bps = [dict(node.rates).get("host", 0) for node in nodes]
    host_bps = [rate or find_usual(host_bps) for rate in host_bps]
    pace_bps = max(1.0, PACE * find_usual(host_bps))
    groups = group_known(nodes)
    link_bps = [_find_rate(nodes, group) for group in groups]
    unusual = find_exceptions(link_bps, SAME_MAX)
    loud = [
        group
        for index, (group, rate) in enumerate(zip(groups, link_bps, strict=True))
        if rate and len(group) * pace_bps >= OFFERED_MIN * rate and index not in unusual
    ]
    outer: dict[Path, list[Sequence[int]]] = {}
    for group in loud:
        members = shuffle(group, seed, 1)[: min(map(len, loud))]
        outer.setdefault(nodes[group[0]].path[:-1], []).append(members)
    round = make_across_round(len(nodes) + 1, list(outer.values()), seed, 2)
    paces = [PACE * min(host_bps[one], host_bps[to]) if to >= 0 else 0 for one, to in enumerate(round.targets)]
    return set_window(set_pace(round, paces))


def choose_asked(nodes: Sequence[KnownNode], seed: int) -> list[int]:
    """Choose whom the newcomer asks: everyone, or as many of each domain as there is time for."""
    turns = sorted(
        (turn, number) for group in group_known(nodes) for turn, number in enumerate(shuffle(group, seed, 3))
    )
    return sorted(number for _, number in turns[:ASKED_MAX])


def decide(nodes: Sequence[KnownNode], round: LoadRound, reports: PlaceReports, *, own_domain: str) -> Placement:
    """Return the newcomer's place. `own_domain`: the name of a domain that it is the first node of."""
    loaded = {one: max(FLOOR_S, value) for one, value in reports.loaded_s.items()}
    if 2 * min(len(reports.idle_s), len(loaded)) < len(reports.asked) or not loaded:
        answered = min(len(reports.idle_s), len(loaded))
        return Placement(reason=f"got UDP echoes from {answered} of {len(reports.asked)} nodes, which is too few")
    near_s = NEAR_MAX * max(FLOOR_S, find_median(list(reports.idle_s.values())))
    limit, distance = cut([math.log(value) for value in loaded.values()])
    lowest, highest = min(loaded.values()), max(loaded.values())
    times = f"{lowest * 1000:.2g} to {highest * 1000:.2g} ms"
    if math.exp(distance) < RATIO_CLEAN_MIN:
        if lowest > near_s:
            level = max(nodes, key=lambda node: len(node.path)).path[-1][0]
            # The links of outer domains are empty, so nothing tells which of them it is in.
            return Placement(path=((level, own_domain),), reason=f"is far from every node that answered, {times}")
        return Placement(reason=f"reaches all nodes alike, in {times}, so no link on the way was full")
    limit_s = min(near_s, math.exp(limit))
    near: list[Path] = []
    doubtful: list[Path] = []
    filled = _find_filled(nodes, round, reports.received_bps)
    for group in group_known(nodes):
        path = nodes[group[0]].path
        found = [loaded[one] <= limit_s for one in group if one in loaded]
        if sum(found) <= CONTRADICTING_MAX * len(found):  # also where none has answered
            continue
        is_near = sum(found) >= (1 - CONTRADICTING_MAX) * len(found) and path in filled
        (near if is_near else doubtful).append(path)
    if len(near) == 1:
        inside = nodes[next(one for one, node in enumerate(nodes) if node.path == near[0])]
        rates = tuple((level, rate) for level, rate in inside.rates if level in dict(near[0]))
        return Placement(path=near[0], rates=rates, reason=f"is near the nodes of {format_path(near[0])}, {times}")
    if near or not doubtful:
        which = " and ".join(map(format_path, near)) or "no domain"
        return Placement(reason=f"reaches the nodes of {which} in an idle network's time, and others not, {times}")
    which = " and ".join(map(format_path, doubtful))
    return Placement(reason=f"is near the nodes of {which}, whose link was not full for certain")


def format_path(path: Path) -> str:
    return ",".join(f"{level}={domain}" for level, domain in path)


def _find_filled(nodes: Sequence[KnownNode], round: LoadRound, received_bps: Mapping[int, int]) -> dict[Path, int]:
    """Return the domains whose links were full with what these nodes sent, and what they carried."""
    groups = group_known(nodes)
    offered = {to: round.paces_bps[one] for one, to in enumerate(round.targets) if to >= 0}
    carried_bps = measure_domains(groups, [(round, received_bps)])
    offered_bps = measure_domains(groups, [(round, offered)])
    filled = {}
    for group, carried, sent in zip(groups, carried_bps, offered_bps, strict=True):
        path = nodes[group[0]].path
        rate = _find_rate(nodes, group)
        if rate and carried >= FILLED_MIN * rate and carried < SLOWED * sent:
            filled[path] = carried
    return filled


def _find_rate(nodes: Sequence[KnownNode], group: Sequence[int]) -> int:
    """Return the rate of the domain's link, 0 if it is unknown."""
    level, _ = nodes[group[0]].path[-1]
    return find_usual([dict(nodes[one].rates).get(level, 0) for one in group])
