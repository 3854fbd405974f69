"""The steps of a measurement: which rounds come next, and what all of them say in the end.

`find_tree` is a generator: it yields the rounds of a step, is sent what the nodes report of them, and returns its
finding. Who plays the rounds, nodes of a network or a model of one, it does not know.

1. An idle round shows who can be reached; one in which each sends to a random other as fast as it can, what a host's
   link carries. If few flows were much faster than others, another one shows whether that is so for most.
2. Rounds in which each sends to a random other, a little slower than that: no host's link is full, so an echo that
   waits has crossed a full uplink. Which uplinks fill differs from round to round; the longest wait counts.
3. Everyone sends to another group, and every uplink is full: the same groups must come out, or it starts again. Then
   everyone sends inside its group, and a group that is two falls apart.
4. Flows that just do not fill the groups' uplinks fill only what lies above them: groups of groups.
5. A round for each level gives the rates of its links.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from launcher.extensions.measure import rates
from launcher.extensions.measure.grouping import (
    FLOOR_S,
    Grouping,
    Groups,
    Pair,
    find_groups,
    make_pair,
    order_groups,
)
from launcher.extensions.measure.schedule import (
    RATE_WINDOW_S,
    LoadRound,
    list_asked,
    make_across_round,
    make_inside_round,
    shuffle,
)

RANDOM_ROUNDS = 3
RANDOM_STEPS = 3  # of that many rounds, before a network is called flat
RANKS = 3  # if the longest wait of each pair makes no sense, the second longest: a busy machine delays some
INSIDE_ROUNDS = 2
ABOVE_ROUNDS = 3
FAST_PART = 16  # one in so many nodes may have a much faster way to some other
RATIO_CLEAN_MIN = 10.0
"""Where some links of a level may be full and others not, what is near must be nearly as near as when it is idle."""
PACE_ABOVE = 0.95  # of the rate of an uplink that was measured
ATTEMPTS = 2
SLOWED = 0.85  # of its pace: a flow that gets less has met a full link
PACE = 0.85
"""Of a link's rate: it stays empty, and what joins two or more of them fills if it is narrower than their sum."""
RISE_MIN = 2.0
"""Loaded round trips over idle ones: with less, the hosts have filled no link."""
BUSY_S = 0.002  # a round trip in an idle network is shorter, in one data centre
OTHERS_ENDED = "the other nodes have ended, or answered too late"


class RoundReport(Struct, frozen=True):
    """What a node saw in a round: the usual round trip to each of those it asked, in microseconds, 0 for no answer;
    and the bits per second that it received, as the link carries them.
    """

    round_trips_us: tuple[int, ...]
    received_bps: int = 0


Reports = Mapping[int, tuple[RoundReport, ...]]
"""Of each participant that has reported, in the order of the rounds."""


class TreeFinding(Struct, frozen=True, kw_only=True):
    """The tree of the network, as measured."""

    kind: Literal["tree", "flat", "unknown"]
    reason: str = ""
    levels: tuple[Groups, ...] = ()
    """The groups of each level, outermost first."""
    rates_bps: tuple[tuple[int, ...], ...] = ()
    """Of their uplinks, 0 if unknown."""
    host_rates_bps: tuple[int, ...] = ()
    left_out: tuple[tuple[int, str], ...] = ()
    """Participants that were left out, with the reason."""
    blocked: tuple[Pair, ...] = ()
    """Pairs between which no echo passed."""
    flow_bps: int = 0
    """What one flow reached."""


RoundRates = list[tuple[LoadRound, dict[int, int]]]
"""Rounds, each with what every participant received in bits per second."""
_Found = TypeVar("_Found")
Steps: TypeAlias = Generator[tuple[LoadRound, ...], Reports, _Found]
"""Rounds to play, what is reported of them, and what they say in the end."""


def find_tree(count: int, seed: int, *, depth: int = 2) -> Steps[TreeFinding]:
    """Yield rounds for `count` participants, receive reports, return the finding.

    `depth`: the most levels to look for.
    """
    return (yield from _TreeSearch(count, seed, depth).run())


class _TreeSearch:
    def __init__(self, count: int, seed: int, depth: int) -> None:
        self._count = count
        self._seed = seed
        self._depth = depth
        self._turn = 0
        self._members = list(range(count))
        self._left_out: dict[int, str] = {}
        self._blocked: tuple[Pair, ...] = ()
        self._reports: Reports = {}
        self._rounds: tuple[LoadRound, ...] = ()
        self._rises = False
        self._seen: defaultdict[Pair, list[float]] = defaultdict(list)
        self._rank = 0
        self._random_rates: RoundRates = []
        self._idle_s = 0.0
        self._flow_bps = 0
        self._best_bps: defaultdict[int, int] = defaultdict(int)  # of one flow to or from a participant

    def run(self) -> Steps[TreeFinding]:
        yield from self._play(LoadRound(), make_inside_round(self._count, [self._members], self._seed, 0))
        self._drop_unreachable()
        idle, loaded = (self._find_usual(index) for index in (0, 1))
        if len(self._members) < 2:
            return self._make_unknown(OTHERS_ENDED)
        if not idle:
            return self._make_unknown("no echo was answered: UDP does not pass between these nodes")
        self._rises = _measure_rise(idle, loaded) >= RISE_MIN
        self._idle_s = statistics.mean(idle.values())
        self._flow_bps = self._find_flow()
        if self._flow_bps < SLOWED * max(self._best_bps.values(), default=0):
            yield from self._play(make_inside_round(self._count, [self._members], self._seed, -1))
            self._flow_bps = self._find_flow()
        if len(self._members) < min(3, self._count):
            return self._make_unknown(OTHERS_ENDED)
        if self._count == 2:
            return self._conclude_flat("two nodes have one way between them")
        for _ in range(ATTEMPTS):
            grouping = yield from self._group_at_random()
            if len(self._members) < 3:
                return self._make_unknown(OTHERS_ENDED)
            if len(grouping.groups) == 1 and not grouping.is_consistent:
                return self._make_unknown(grouping.reason)
            if len(grouping.groups) == 1:
                return self._conclude_flat(grouping.reason)
            confirmed = yield from self._confirm(grouping.groups)
            if confirmed:
                return (yield from self._finish(*confirmed))
        return self._make_unknown("two measurements disagree: others use the network, or its paths change")

    def _play(self, *rounds: LoadRound) -> Steps[None]:
        """Have rounds played; participants that do not report are left out from then on."""
        self._rounds = rounds
        self._reports = yield rounds
        for member in [one for one in self._members if len(self._reports.get(one, ())) != len(rounds)]:
            self._drop(member, "it has not answered in time")
        for round, received_bps in self._list_rates(rounds):
            for sender, receiver in enumerate(round.targets):
                for one in (sender, receiver):
                    self._best_bps[one] = max(self._best_bps[one], received_bps.get(receiver, 0))

    def _drop(self, member: int, reason: str) -> None:
        self._members.remove(member)
        self._left_out[member] = reason

    # --- what the reports say ---

    def _find_flow(self) -> int:
        """Return what one flow reached that was not one of a few much faster ones, as between two nodes of one host.

        A fast flow counts for both of its ends, so the two best say nothing; nor do the best of very many.
        """
        best = sorted((self._best_bps[one] for one in self._members), reverse=True)
        return best[min(len(best) - 1, max(2, len(best) // FAST_PART))] if best else 0

    def _list_rates(self, rounds: Iterable[LoadRound]) -> RoundRates:
        """These rounds of the last step, each with what every participant received."""
        wanted = list(rounds)
        return [
            (round, {one: self._reports[one][index].received_bps for one in self._members})
            for index, round in enumerate(self._rounds)
            if round in wanted and round.targets
        ]

    def _list_echoes(self, index: int) -> Iterator[tuple[int, int, int]]:
        """Yield who asked whom in a round of the last step, and the usual round trip in microseconds, 0 for none."""
        present = frozenset(self._members)
        for asker in self._members:
            answers = self._reports[asker][index].round_trips_us
            for asked, micros in zip(list_asked(asker, self._count), answers, strict=False):
                if asked in present:
                    yield asker, asked, micros

    def _find_usual(self, index: int) -> dict[Pair, float]:
        """Pair -> its usual round trip in one round of the last step, asked by either of them."""
        found: defaultdict[Pair, list[float]] = defaultdict(list)
        for asker, asked, micros in self._list_echoes(index):
            if micros:
                found[make_pair(asker, asked)].append(micros / 1e6)
        return {pair: statistics.median_low(values) for pair, values in found.items()}

    def _keep_members(self, groups: Groups) -> Groups:
        kept = (tuple(one for one in group if one in self._members) for group in groups)
        return order_groups(filter(None, kept))

    def _drop_unreachable(self) -> None:
        """Leave out those that nobody has an answer from, and note other pairs without one."""
        echoes = list(self._list_echoes(0))
        unreachable = set(self._members) - {one for *pair, micros in echoes if micros for one in pair}
        if len(unreachable) == len(self._members):
            return
        for member in sorted(unreachable):
            silent_udp = "TCP passes between it and other nodes, UDP does not"
            has_streams = self._reports[member][1].received_bps > 0
            self._drop(member, silent_udp if has_streams else "no other node reaches its address")
        silent = {make_pair(asker, asked) for asker, asked, micros in echoes if not micros}
        self._blocked = tuple(sorted(pair for pair in silent if not {*pair} & unreachable))

    # --- steps ---

    def _group_at_random(self) -> Steps[Grouping]:
        """Group by paced rounds in which everybody sends to a random other; more of them before it is called flat."""
        self._seen.clear()
        for step in range(RANDOM_STEPS):  # all flows may have been slow by chance: the second step is faster
            rounds = self._load_inside([self._members], RANDOM_ROUNDS, 2 if step == 1 else 1)
            yield from self._play(*rounds)
            self._collect(range(RANDOM_ROUNDS))
            self._random_rates = self._list_rates(rounds)
            found = []
            for self._rank in range(RANKS):
                grouping = self._group_seen()
                if len(grouping.groups) > 1 and self._is_slowed(grouping.groups, rounds):
                    singles = sum(len(group) == 1 for group in grouping.groups)  # seldom true, often delayed
                    found.append((not grouping.is_consistent, singles, self._rank, grouping))
            *_, self._rank, grouping = min(found, key=lambda one: one[:3], default=(self._rank, grouping))
            if found and grouping.is_consistent:
                return grouping
        # Groups that contradict themselves are none, but where their flows were slowed, the network is not flat either.
        return Grouping(groups=(tuple(self._members),), reason=grouping.reason, is_consistent=not found)

    def _collect(self, indexes: Iterable[int]) -> None:
        """Note each pair's usual round trip in these rounds of the last step."""
        for index in indexes:
            for pair, value in self._find_usual(index).items():
                self._seen[pair].append(value)

    def _group_seen(self) -> Grouping:
        """Group by each pair's longest round trip of all rounds; or the second or third longest, by the rank."""
        ranked = {pair: sorted(values)[-1 - min(self._rank, len(values) - 1)] for pair, values in self._seen.items()}
        return find_groups(self._members, ranked)

    def _confirm(self, groups: Groups) -> Steps[tuple[Groups, Groups, RoundRates] | None]:
        """Load all uplinks at once, then the groups inside; return the groups, what they fall into, and the rates.

        None: other groups come out each time.
        """
        quiet: set[int] = set()
        for _ in range(ATTEMPTS):
            # Who is alone may be a host with a slow link, in a group: while it is silent, its link is empty.
            quiet |= {group[0] for group in groups if len(group) == 1}
            loud = (tuple(one for one in group if one not in quiet) for group in groups)
            loud_groups = list(filter(None, loud))
            across = [self._load_across([loud_groups]) for _ in range(1 + bool(quiet))]
            inside = self._load_inside(groups, INSIDE_ROUNDS)
            yield from self._play(*across, *inside)
            groups = self._keep_members(groups)
            self._collect([0])
            again_usual = self._find_usual(len(across) - 1)
            for pair, values in self._seen.items():
                if quiet & {*pair}:
                    values[:] = [min(values[-1], again_usual.get(pair, values[-1]))]
            again = self._group_seen()
            if again.groups == groups and again.is_consistent and self._is_slowed(groups, across):
                return groups, self._split(groups, inside), self._list_rates(across)
            if len(again.groups) == 1:
                return None
            groups = again.groups
        return None

    def _split(self, groups: Groups, inside: Sequence[LoadRound]) -> Groups:
        """Return what the groups fall into under their own load, in the last rounds of the last step."""
        rounds = [self._find_usual(index) for index in range(len(self._rounds) - len(inside), len(self._rounds))]
        parts: list[tuple[int, ...]] = []
        for group in groups:
            longest = {
                pair: max(values)
                for pair in combinations(group, 2)
                if (values := [found[pair] for found in rounds if pair in found])
            }
            grouping = find_groups(group, longest, ratio_min=RATIO_CLEAN_MIN)
            # A host that a busy machine delays stands alone, which no group inside a group does.
            is_split = (
                grouping.is_consistent
                and min(map(len, grouping.groups)) > 1
                and self._is_slowed(grouping.groups, inside)
            )
            parts += grouping.groups if is_split else (group,)
        return order_groups(parts)

    def _is_slowed(self, groups: Groups, rounds: Sequence[LoadRound]) -> bool:
        """Whether flows between these groups were slower than their pace in one of these rounds of the last step.

        Echoes alone may mislead: a busy machine delays them as well.
        """
        group_of = {member: index for index, group in enumerate(groups) for member in group}
        for round, received_bps in self._list_rates(rounds):
            crossing = [
                (received_bps.get(target, 0), min(self._flow_bps, round.paces_bps[sender]))
                for sender, target in enumerate(round.targets)
                if {sender, target} <= set(group_of) and group_of[sender] != group_of[target]
            ]
            if sum(received for received, _ in crossing) < SLOWED * sum(pace for _, pace in crossing):
                return True
        return False

    def _list_host_paces(self, factor: float = 1.0) -> list[float]:
        return [PACE * factor * self._flow_bps] * self._count

    def _load_inside(self, groups: Sequence[Sequence[int]], times: int, factor: float = 1.0) -> list[LoadRound]:
        """Return rounds in which everyone sends inside its group, none of which fills the links of hosts."""
        turns = range(self._turn + 1, self._turn + 1 + times)
        self._turn += times
        rounds = (make_inside_round(self._count, groups, self._seed, turn) for turn in turns)
        return [set_pace(round, self._list_host_paces(factor)) for round in rounds]

    def _load_across(self, parents: Sequence[Sequence[Sequence[int]]]) -> LoadRound:
        """Return a round that fills the links of groups, but not those of hosts, and measures rates."""
        return replace(self._pace_across(parents, self._list_host_paces()), window_s=RATE_WINDOW_S)

    def _finish(self, groups: Groups, parts: Groups, measured: RoundRates) -> Steps[TreeFinding]:
        """Find the levels above the smallest groups, and measure the rates of all."""
        levels = [parts]
        if self._depth > 1 and len(parts) > 2:
            if parts != groups:
                across = self._load_across([parts])
                yield from self._play(across)
                measured = self._list_rates([across])
            while len(levels) < self._depth and len(levels[0]) > 2:
                above = yield from self._group_above(self._keep_members(levels[0]), measured)
                if above is None:
                    break
                levels.insert(0, above)
        levels = [self._keep_members(level) for level in levels]
        inside = make_inside_round(self._count, levels[-1], self._seed, self._turn)
        rounds = [replace(inside, window_s=RATE_WINDOW_S)]
        least, most = min(map(len, levels[-1])), max(map(len, levels[-1]))
        if least < most:  # beside a large group a small one fills no link, so the large ones send no more than it
            alike = [shuffle(group, self._seed, self._turn)[:least] for group in levels[-1]]
            rounds.append(self._load_across([alike]))
        for outer, inner in zip(((tuple(self._members),), *levels[:-1]), levels, strict=True):
            parents = [[group for group in inner if set(group) <= set(parent)] for parent in outer]
            rounds.append(self._load_across(parents))
        yield from self._play(*rounds)
        levels = [self._keep_members(level) for level in levels]
        repeated = self._list_rates(rounds[1:])
        if len(levels) == 1:
            repeated += measured
        return self._make_finding(
            kind="tree",
            levels=tuple(levels),
            rates_bps=tuple(rates.measure_domains(level, repeated) for level in levels),
            host_rates_bps=self._list_host_rates(),
        )

    def _group_above(self, groups: Groups, measured: RoundRates) -> Steps[Groups | None]:
        """Group the groups by what fills above them.

        The last round of the last step, in which all sent to other groups, tells that where the links above are much
        narrower than those of the groups. Else flows that just do not fill the groups' links may fill those above.
        """
        longest: defaultdict[Pair, float] = defaultdict(float)
        self._compare(groups, longest, [0])
        above = yield from self._confirm_above(groups, longest, self._list_host_paces())
        if above is not None:
            return above
        paces = [0.0] * self._count
        seen = [*measured, *self._random_rates]  # what is above may have kept a link from being full in one of them
        for group, rate in zip(groups, rates.measure_domains(groups, seen), strict=True):
            for member in group:
                paces[member] = PACE_ABOVE * rate / len(group)
        rounds = [self._pace_across([groups], paces) for _ in range(ABOVE_ROUNDS)]
        yield from self._play(*rounds)
        longest.clear()
        self._compare(groups, longest, range(ABOVE_ROUNDS))
        return (yield from self._confirm_above(groups, longest, paces))

    def _confirm_above(
        self, groups: Groups, longest: defaultdict[Pair, float], paces_bps: Sequence[float]
    ) -> Steps[Groups | None]:
        """Load what seems to lie above the groups, all at once, until the same comes out again."""
        above = self._join_groups(groups, longest)
        for _ in range(ATTEMPTS):
            if above is None:
                break
            yield from self._play(self._pace_across([above], paces_bps))
            self._compare(groups, longest, [0])
            again = self._join_groups(groups, longest)
            if again == above:
                return None if set(above) & set(groups) else above  # one that stands alone may have been full itself
            above = again
        return None

    def _pace_across(self, parents: Sequence[Sequence[Sequence[int]]], paces_bps: Sequence[float]) -> LoadRound:
        self._turn += 1
        round = make_across_round(self._count, parents, self._seed, self._turn)
        targets = enumerate(round.targets)
        return set_pace(round, [min(paces_bps[one], paces_bps[other]) if other >= 0 else 0 for one, other in targets])

    def _compare(self, groups: Groups, longest: defaultdict[Pair, float], indexes: Iterable[int]) -> None:
        """Note for each two groups the usual round trip between them in these rounds, if it is longer than before."""
        group_of = {member: index for index, group in enumerate(groups) for member in group}
        for index in indexes:
            between: defaultdict[Pair, list[float]] = defaultdict(list)
            for (one, other), value in self._find_usual(index).items():
                if group_of.get(one) != group_of.get(other):
                    between[make_pair(group_of[one], group_of[other])].append(value)
            for pair, values in between.items():
                longest[pair] = max(longest[pair], statistics.median_low(values))

    def _join_groups(self, groups: Groups, longest: Mapping[Pair, float]) -> Groups | None:
        """Return groups of groups, if at least two have several: one that stands alone may just have a slow link."""
        above = find_groups(range(len(groups)), longest, ratio_min=RATIO_CLEAN_MIN)
        if len(above.groups) in (1, len(groups)) or not above.is_consistent:
            return None
        return order_groups(tuple(member for index in group for member in groups[index]) for group in above.groups)

    # --- conclusions ---

    def _conclude_flat(self, reason: str) -> TreeFinding:
        if self._rises:
            return self._make_finding(kind="flat", reason=reason, host_rates_bps=self._list_host_rates())
        busy = f"round trips take {self._idle_s * 1000:.0f} ms before any load, so others use the network"
        unfilled = "round trips under load are as short as idle ones, so the nodes have filled no link"
        return self._make_unknown(busy if self._idle_s > BUSY_S else unfilled)

    def _make_unknown(self, reason: str) -> TreeFinding:
        return self._make_finding(kind="unknown", reason=reason)

    def _make_finding(self, **own: Any) -> TreeFinding:
        return TreeFinding(
            left_out=tuple(self._left_out.items()),
            blocked=self._blocked,
            flow_bps=max(self._best_bps.values(), default=0),
            **own,
        )

    def _list_host_rates(self) -> tuple[int, ...]:
        return tuple(self._best_bps[one] if one in self._members else 0 for one in range(self._count))


def set_pace(round: LoadRound, paces_bps: Sequence[float]) -> LoadRound:
    """Return the round in which nobody sends faster than this, and never without a limit, which 0 would be."""
    return replace(round, paces_bps=tuple(max(1, int(pace)) for pace in paces_bps))


def _measure_rise(idle: Mapping[Pair, float], loaded: Mapping[Pair, float]) -> float:
    """Return how many times longer round trips are under load, in the mean."""
    before, after = ([max(FLOOR_S, value) for value in one.values()] for one in (idle, loaded))
    return statistics.mean(after) / statistics.mean(before) if before and after else 1.0
