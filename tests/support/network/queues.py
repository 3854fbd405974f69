"""A network of queues, as far as a measurement sees it: full links hold packets back, and what fills them is shared.

A tree of hosts with paths, a link of a rate above each domain and each host, full duplex. The flows of a round share
the links by max-min fairness, as TCP does in the mean; a link that they fill has a queue, of a length that is drawn
anew for every round. An echo waits in each queue on its way there and back. No packet is simulated: a thousand
measurements take a minute.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from launcher.extensions.measure.procedure import Reports, RoundReport, Steps, TreeFinding
from launcher.extensions.measure.schedule import NOBODY, LoadRound, list_asked

Link = tuple[str, bool]  # domain or host, whether it leads upwards
PROBES = 5
EVERYBODY = -2
SLOW_BPS = 5_000_000


class QueueTree(NamedTuple):
    """`paths`: of each host, outermost domain first, each domain's name unlike all others; `rates_bps` by name, with
    host number 3 as "host:3", and the name of its level ("host", "leaf") for the rest. `loss`: of the packets of one
    host, or of all. `are_hosts_slow`: none of them sends as fast as a link carries.
    `idle_s`: of a round trip without any queue. `pair`: two hosts with a way of their own, of the rate "host:pair".
    """

    paths: Sequence[tuple[str, ...]]
    levels: tuple[str, ...]
    rates_bps: Mapping[str, int]
    loss: float = 0.0
    lossy_host: int = NOBODY
    are_hosts_slow: bool = False
    idle_s: float = 0.00008
    pair: tuple[int, ...] = ()

    def rate(self, link: Link) -> int:
        name = link[0]
        if name.startswith("host:"):
            return self.rates_bps.get(name, self.rates_bps["host"])
        level = next(level for path in self.paths for level, one in zip(self.levels, path, strict=True) if one == name)
        return self.rates_bps.get(name, self.rates_bps[level])

    def way(self, one: int, other: int) -> list[Link]:
        """The links from one host to another, in order."""
        if {one, other} == set(self.pair):
            return [("host:pair", one < other)]
        shared = 0
        for a, b in zip(self.paths[one], self.paths[other], strict=True):
            if a != b:
                break
            shared += 1
        up: list[Link] = [(f"host:{one}", True), *((name, True) for name in reversed(self.paths[one][shared:]))]
        down: list[Link] = [*((name, False) for name in self.paths[other][shared:]), (f"host:{other}", False)]
        return up + down

    def measure(self, steps: Steps, seed: int, dead: Mapping[int, int] | None = None) -> tuple[TreeFinding, float, int]:
        """The finding, its seconds, and its steps. `dead`: host -> step from which it does not report any more."""
        rng = random.Random(seed)
        reports: Reports | None = None
        seconds, turn = 0.0, 0
        try:
            while True:
                rounds = steps.send(reports) if reports is not None else next(steps)
                seconds += sum(round.duration_s for round in rounds)
                played = [self.play(round, rng) for round in rounds]
                reports = {
                    host: tuple(one[host] for one in played)
                    for host in range(len(self.paths))
                    if (dead or {}).get(host, 1 << 30) > turn
                }
                turn += 1
        except StopIteration as end:
            return end.value, seconds, turn

    def play(self, round: LoadRound, rng: random.Random) -> list[RoundReport]:
        hosts = len(self.paths)
        flows = {sender: self.way(sender, target) for sender, target in enumerate(round.targets) if target >= 0}
        paces = {sender: pace for sender, pace in enumerate(round.paces_bps) if sender in flows}
        if self.are_hosts_slow:
            paces = {sender: min(SLOW_BPS, paces.get(sender, SLOW_BPS)) for sender in flows}
        rates, full = self._share(flows, paces)
        delays: dict[Link, float] = {}
        for link in sorted(full):
            # A sender's own queue is short: its kernel holds back what the link does not take.
            is_own = link[0].startswith("host:") and link[1]
            delays[link] = rng.uniform(0.0003, 0.004) if is_own else rng.uniform(0.005, 0.014)
        received = [0] * hosts
        for sender, target in enumerate(round.targets):
            if target >= 0:
                received[target] += int(rates[sender] * rng.uniform(0.96, 1.01))
        found = []
        for asker in range(hosts):
            answers = []
            for asked in list_asked(asker, hosts):
                way = [*self.way(asker, asked), *self.way(asked, asker)]
                base = sum(delays.get(link, 0.0) for link in way)
                is_lossy = self.lossy_host in (asker, asked, EVERYBODY)
                lost = 1 - (1 - self.loss) ** 2 if is_lossy else 0.0
                times = [
                    (base * rng.uniform(0.5, 1.1) + self.idle_s * rng.lognormvariate(0, 0.5))
                    for _ in range(PROBES)
                    if rng.random() >= lost + 0.05 * (base > 0.01)
                ]
                answers.append(int(sorted(times)[(len(times) - 1) // 2] * 1e6) if times else 0)
            found.append(RoundReport(tuple(answers), received[asker]))
        return found

    def _share(self, flows: Mapping[int, list[Link]], paces: Mapping[int, int]) -> tuple[dict[int, float], set[Link]]:
        """Rates by max-min fairness, and the links with a queue: of those that are full, each flow's first one."""
        left = {link: float(self.rate(link)) for way in flows.values() for link in way}
        rates: dict[int, float] = {}
        open_flows = dict(flows)
        while open_flows:
            users: defaultdict[Link, int] = defaultdict(int)
            for way in open_flows.values():
                for link in way:
                    users[link] += 1
            level, narrow = min((left[link] / count, link) for link, count in users.items())
            slow = [one for one in open_flows if one in paces and paces[one] <= level]
            for one in slow or [one for one, way in open_flows.items() if narrow in way]:
                rates[one] = float(paces[one]) if slow else level
                for link in open_flows.pop(one):
                    left[link] -= rates[one]
        full = {link for link, rest in left.items() if rest < 0.01 * self.rate(link)}
        firsts = (next((link for link in way if link in full), None) for way in flows.values())
        return rates, {link for link in firsts if link is not None}
