"""Predicts how long the communication of a training step takes, from the rates of the links.

J adds up all traffic; a step waits for the slowest link. Each domain has one uplink, full duplex. A communicator's
groups all communicate at once, and their time is the load of the fullest directed link over its rate. Communicators
follow each other in a step, so their times add up: forward and backward of a pipeline, then the gradients. A line
carries half of its weight forward, then half of it back over the same links, so it takes as long as all of it one way,
and links are busy with the mean of both directions.

Where communicators wait for different links, or directions of one, who is done with one begins the next while others
are still busy, and the step becomes shorter. If all overlapped fully, it would take as long as the fullest link needs
for all of its traffic, or as the longest communicator alone; `OVERLAP` says how much of that difference is gained.

Two rings over different uplinks cost no more time than one, which J cannot see. So J finds layouts and seconds choose
among them: seconds alone are no guide for a search, because most changes of a layout leave the fullest link as it is.

Times are floats. Every machine computes the same: counts are integers, and what follows are single multiplications,
maxima, and sums in one order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from launcher.model.mesh import Mesh
from launcher.model.rates import resolve_rates
from launcher.model.topology import HOST, Tree
from launcher.model.traffic import Communicator, make_default_traffic
from launcher.placement.limits import Costs, PartTime, StepTime
from launcher.placement.problem.hops import Exchange, Hops, Ints
from launcher.placement.problem.problem import Layout, Problem

Seconds = NDArray[np.float64]

OVERLAP = 0.2
"""Fitted to real steps: with 0.1 to 0.4 the predictions rank them alike (benchmarks/records/truth.jsonl)."""

_BITS = 8e6  # of a megabyte


class _Part(NamedTuple):
    """A communicator, its traffic between units, if any, and the least time that it takes in any layout."""

    communicator: Communicator
    outside: Hops | Exchange | None
    least: float


class _Link(NamedTuple):
    """The links of one kind: what leaves the domains of `level`, carried by each domain of `holder`, the same level or
    the hosts."""

    level: int
    holder: int
    rates: NDArray[np.int64]
    """By domain, in bits per second."""
    slowness: Seconds
    """By domain: seconds for a scaled unit of weight."""


class HostMap(NamedTuple):
    """How the items of layouts spread over hosts, where an item is a domain that is used as a whole."""

    hosts: int = 1
    """Of an item."""
    group_size: int = 1
    """Units of a layout that together fill an item."""
    repeats: int = 1
    """Units of a host in the problem whose items are hosts."""

    def find_hosts(self, layouts: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the hosts of every group, in order, a row per layout."""
        items = layouts[:, :: self.group_size]
        places: NDArray[np.int32] = (items[:, :, None] * self.hosts + np.arange(self.hosts)).astype(np.int32)
        return places.reshape(len(layouts), -1)

    def expand(self, layouts: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the same layouts with hosts as items, a row per layout."""
        return np.repeat(self.find_hosts(layouts), self.repeats, axis=1)


# docs/internals/decisions/0046-seconds-beside-the-cost.md
class StepTimer:
    """Computes the time of layouts.

    `problem`: its items are hosts, or those into which `spread` expands the items of a layout. `members[item]`: the
    position of a host in `tree.nodes`. `shape`: of the mesh, in ranks. `assumed`: levels of which no rate is told.
    `are_told`: whether any rate is.
    """

    def __init__(
        self,
        problem: Problem,
        tree: Tree,
        members: Sequence[int],
        mesh: Mesh,
        shape: Sequence[int],
        costs: Costs,
        spread: HostMap = HostMap(),  # noqa: B008 - an immutable value
    ) -> None:
        self._traffic, self._labels = problem.traffic, problem.labels
        self._spread = spread
        self._tree = tree
        self._rates = resolve_rates(costs.rates, tree, costs.level_costs)
        sizes = {axis.name: size for axis, size in zip(mesh.axes, shape, strict=True)}
        communicators = [
            one
            for one in costs.traffic or make_default_traffic(mesh)
            if one.weight > 0 and any(sizes[axis] > 1 for axis in one.axes)
        ]
        outside = {part.communicator: part for part in problem.traffic.parts}
        # For so long a rank's own device sends, in any layout.
        slowness = _BITS / self._rates.device if self._rates.device else 0.0
        self._parts = [_Part(one, outside.get(one), one.weight * slowness) for one in communicators]
        positions = np.array(members, dtype=np.int64)
        above = [np.array(level, dtype=np.int64)[positions] for level in tree.domains]
        self._domains = [*(np.unique(level) for level in above), positions]  # number in the problem -> in the tree
        self._links = self._make_links()
        levels = zip((*tree.levels, HOST), self._rates.levels, strict=True)
        self.assumed = tuple(name for name, level in levels if level.is_assumed)
        self.are_told = self._rates.are_told
        self._is_absolute = not self.assumed and all(one.is_bytes for one in communicators)

    def _make_links(self) -> list[_Link]:
        unit = _BITS / self._traffic.weight_scale
        host = len(self._labels) - 1
        links = []
        for level, known in enumerate(self._rates.levels):
            if len(self._domains[level]) == 1:
                continue
            per_host = None if known.per_host is None else np.full(len(self._domains[host]), known.per_host)
            uplinks = None if known.domains is None else np.array(known.domains)[self._domains[level]]
            for holder, rates in ((level, uplinks), (host, per_host)):
                if rates is not None:
                    links.append(_Link(level, holder, rates, unit / rates))
        return links

    def compute(self, layout: Layout) -> float:
        """Return the time of a layout."""
        return float(self.compute_all(layout[None])[0][0])

    def compute_all(self, layouts: NDArray[np.int32]) -> tuple[Seconds, Seconds]:
        """Return the time of each of several layouts, one per row, and its crowding: how many links are nearly full.

        In each part a link counts by the fourth power of its time over the slowest one's; parts are multiplied, so a
        part in which few links are full counts as much as one in which many are.
        """
        total, crowding = np.zeros(len(layouts)), np.ones(len(layouts))
        longest, busy = np.zeros(len(layouts)), self._make_busy(len(layouts))
        for part, times in self._list_times(self._spread.expand(layouts), busy):
            together = np.concatenate([np.zeros((len(layouts), 1)), *times], axis=1)
            slowest = together.max(axis=1)
            sixteenths = (together * (16 / np.where(slowest > 0, slowest, 1.0))[:, None]).astype(np.int64)
            crowding = crowding * (1 + (sixteenths**4).sum(axis=1))
            slowest = np.maximum(slowest, part.least)
            total, longest = total + slowest, np.maximum(longest, slowest)
        fullest = np.maximum(longest, np.max([link.max(axis=(0, 2)) for link in busy], axis=0))
        return total - OVERLAP * (total - fullest), crowding

    def add_up_slowness(self) -> Seconds:
        """Return of each item how slow the links around its slowest host are."""
        every: Seconds = np.zeros(len(self._labels[-1]))
        for link in self._links:
            every += link.slowness[self._labels[link.holder]]
        return np.asarray(every.reshape(-1, self._spread.hosts).max(axis=1), dtype=np.float64)

    def find_crowded(self, layout: Layout) -> Ints:
        """Return the items inside the domains whose links are the fullest, of each communicator and of all together."""
        found: set[int] = set()
        busy = self._make_busy(1)
        every = [times for _, times in self._list_times(self._spread.expand(layout[None]), busy)]
        for times in (*filter(None, every), [both.max(axis=0) for both in busy[1:]]):
            link, domain = _find_slowest(times)
            if times[link][0, domain] > 0:
                hosts = np.flatnonzero(self._labels[self._links[link].holder] == domain)
                found.update((hosts // self._spread.hosts).tolist())
        return np.array(sorted(found), dtype=np.int64)

    def explain(self, layout: Layout) -> StepTime | None:
        """Return the time of every communicator, and the link for which it waits; None where no rate applies."""
        if not self._links and not self._rates.device:
            return None
        found = []
        for part, times in self._list_times(self._spread.expand(layout[None]), self._make_busy(1)):
            one, link, domain = part.communicator, *(_find_slowest(times) if times else (0, 0))
            seconds, amount, rate, name = part.least, 0.0, 0, ""
            if times and times[link][0, domain] > part.least:
                seconds, kind = float(times[link][0, domain]), self._links[link]
                rate, name = int(kind.rates[domain]), self._name_link(kind, domain)
                amount = seconds * rate / _BITS
                rate = 0 if self._rates.levels[kind.level].is_assumed else rate
            elif part.least:
                amount, rate, name = one.weight, self._rates.device or 0, "each device's own link"
            found.append(PartTime(communicator=one, seconds=seconds, link=name, amount=amount, rate=rate))
        return StepTime(
            parts=tuple(found), seconds=self.compute(layout), is_absolute=self._is_absolute, assumed=self.assumed
        )

    def _make_busy(self, count: int) -> list[Seconds]:
        """Return no time yet for the devices' own links and all others, each out and in, for so many layouts."""
        return [np.zeros((2, count, columns)) for columns in (1, *(len(link.slowness) for link in self._links))]

    def _list_times(self, hosts: NDArray[np.int32], busy: Sequence[Seconds]) -> Iterator[tuple[_Part, list[Seconds]]]:
        """Yield every part, and for every kind of links their times, a row per layout; add to `busy` as well."""
        for part in self._parts:
            times = []
            busy[0] += part.least
            for link, sums in zip(self._links, busy[1:], strict=True):
                if part.outside is not None:
                    directed = self._count_loads(part.outside, link, hosts) * link.slowness
                    times.append(directed.max(axis=0))
                    sums += directed.mean(axis=0) if part.communicator.kind == "line" else directed
            yield part, times

    def _name_link(self, link: _Link, domain: int) -> str:
        names = (*self._tree.names, [node.id for node in self._tree.nodes])
        levels = (*self._tree.levels, HOST)
        name = names[link.holder][int(self._domains[link.holder][domain])]
        if link.level != link.holder:
            return f"{levels[link.holder]} {name}'s link out of its {levels[link.level]}"
        return f"{levels[link.level]} {name}'s uplink"

    def _count_loads(self, part: Hops | Exchange, link: _Link, layouts: NDArray[np.int32]) -> Seconds:
        """Return the scaled weight that each link of a kind carries out and in, a row per layout."""
        domain, holder = self._labels[link.level][layouts], self._labels[link.holder][layouts]
        count = len(link.slowness)
        row = (np.arange(len(layouts)) * count)[:, None]
        if isinstance(part, Exchange):
            return _count_exchanged(part, domain, holder + row, (len(layouts), count))[None]
        upwards = len(part.low) - part.closing
        source = np.concatenate((part.low[:upwards], part.high[upwards:]))
        target = np.concatenate((part.high[:upwards], part.low[upwards:]))
        leaving = domain[:, source] != domain[:, target]
        counts = [
            np.bincount((holder[:, ends] + row)[leaving], minlength=len(layouts) * count).reshape(-1, count)
            for ends in (source, target)
        ]
        return np.array(counts, dtype=np.float64) * float(part.weight)


def _count_exchanged(
    part: Exchange, domain: NDArray[np.int32], holder: NDArray[np.integer], shape: tuple[int, int]
) -> Seconds:
    """Return what the members of each holder send to units of their class in other domains."""
    classes = int(part.class_of.max()) + 1
    places = int(domain.max()) + 1
    keys = (np.arange(len(domain))[:, None] * classes + part.class_of) * places + domain
    _, spot, together = np.unique(keys, return_inverse=True, return_counts=True)
    outside = part.size - together[spot.reshape(keys.shape)]
    sent = np.bincount(holder.ravel(), weights=outside.ravel(), minlength=shape[0] * shape[1])
    return np.asarray(sent.reshape(shape) * (part.weight / 2), dtype=np.float64)


def _find_slowest(times: Sequence[Seconds]) -> tuple[int, int]:
    """Return the kind of link and the domain with the largest time of a single layout, the first of equals."""
    link = max(range(len(times)), key=lambda index: (float(times[index].max()), -index))
    return link, int(np.argmax(times[link][0]))
