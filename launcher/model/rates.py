"""The rates of a network's links: how many bits a second a domain's uplink carries, each way.

    leaf=400Gbit             the one uplink of every leaf
    leaf:p0/l3=100Gbit       that of this leaf, by its name or its path
    host=3200Gbit            of every host: all its ports together
    nvl/host=400Gbit         of each host, for what leaves its NVLink domain: there `host` is the port into NVLink
    device=450GB             of every device, towards all others

Two commas are one in a name.

A domain without a rate of its own has that of its level; if only some domains of a level have one, the others are
assumed to be as slow as the slowest, since traffic that is routed over an overrated link costs more than a detour
around an underrated one. For the same reason the links of a level of which nothing is told are assumed to be alike,
and no faster than those of the nearest level with a rate: a pod's one uplink like a leaf's, and like a host's. A level
whose cost is a multiple of the usual one is slower by that factor, and one that costs nothing is never full.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from launcher.model.errors import UsageError
from launcher.model.text import format_list
from launcher.model.topology import HOST, Tree, resolve_level_costs

DEVICE = "device"
"""The level below the host: a rank's own device."""

RATE_LIMIT = 2**53
"""Bits per second below which every number is exact as a float."""

HOST_LINKED = ("nvl", "slice")
"""Levels inside which hosts have links of their own kind; what leaves a domain leaves it by each host's own NIC."""

ALIKE = 10**9
"""Bits per second of all links where no rate is known at all: only their proportions count."""

_NAMES_MAX = 3
_EXAMPLE = "use for example --rates leaf=400Gbit,host=200Gbit"
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?([kMGT]?)(bit|b|B)(?:/s|ps)?")
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


class LinkName(NamedTuple):
    """A link of every domain of `level`, or of one `domain`; `member` "host": one of each host in it."""

    level: str
    domain: str = ""
    member: str = ""

    def __str__(self) -> str:
        return self.level + (f":{self.domain}" if self.domain else "") + (f"/{self.member}" if self.member else "")


class Rates(Struct, frozen=True):
    """`links`: the rate of each, in bits per second."""

    links: Mapping[LinkName, int]

    def __str__(self) -> str:
        found = sorted(self.links.items())
        return ",".join(f"{name}={format_rate(rate, exactly=True)}".replace(",", ",,") for name, rate in found)


class LevelRates(Struct, frozen=True, kw_only=True):
    """The link rates of one level's domains, in bits per second, None where nothing limits."""

    domains: tuple[int, ...] | None = None
    """Of each domain's uplink, by the number of the domain."""
    per_host: int | None = None
    """Of each host, for traffic that leaves its domain."""
    is_assumed: bool = False
    """Nothing is told of the links between several domains."""


class TreeRates(Struct, frozen=True, kw_only=True):
    """The rates for one tree: of its levels, outermost first, the host's last; and of a device."""

    levels: tuple[LevelRates, ...]
    device: int | None
    are_told: bool
    """Whether one of the rates that were given is that of a link of this tree."""
    remarks: tuple[str, ...]


def parse_rates(text: str, what: str = "--rates") -> Rates:
    """Parse "leaf=400Gbit,leaf:l3=100Gbit,nvl/host=200Gbit". Raises UsageError, calling it `what`."""
    found: dict[LinkName, int] = {}
    for part in text.replace(",,", "\0").split(","):
        # The name of a domain may contain colons, slashes and equals signs.
        name, equals, rate = (piece.strip().replace("\0", ",") for piece in part.rpartition("="))
        if not (name and equals and rate):
            raise UsageError(f"{what}: {part.strip()!r} is not LEVEL=RATE", _EXAMPLE)
        link = _parse_name(name, what)
        if link in found:
            raise UsageError(f"{what} names {name} twice")
        found[link] = parse_rate(rate, f"{what}: the rate of {name}")
    return Rates(found)


def _parse_name(name: str, what: str) -> LinkName:
    level, colon, domain = (piece.strip() for piece in name.partition(":"))
    if colon:
        if not (level and domain) or level == DEVICE:
            raise UsageError(f"{what}: {name!r} names no domain", "use for example leaf:l3=100Gbit")
        return LinkName(level, domain)
    level, slash, member = (piece.strip() for piece in name.partition("/"))
    if not level or "," in level or (slash and (member != HOST or level in (HOST, DEVICE))):
        raise UsageError(f"{what}: {name!r} is not a link", "use LEVEL, LEVEL:DOMAIN or LEVEL/host")
    return LinkName(level, member=member)


def parse_rate(text: str, what: str) -> int:
    """Return the bits per second of "400Gbit", "12.5GB" or "400Gb/s". Raises UsageError, calling it `what`."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{what} is {text!r}, not a rate with a unit",
            "use for example 400Gbit (bits per second) or 50GB (bytes per second)",
        )
    number, prefix, unit = match.groups()
    whole, _, decimals = number.partition(".")
    rate = int(whole + decimals.ljust(6, "0")) * _FACTORS[prefix] * (8 if unit == "B" else 1) // 10**6
    if rate <= 0:
        raise UsageError(f"{what} must be greater than 0", "leave out a link that never limits")
    if rate >= RATE_LIMIT:
        raise UsageError(f"{what} is {text!r}, more than any link carries", "leave out a link that never limits")
    return rate


def format_rate(rate: int, *, exactly: bool = False) -> str:
    """ "400Gbit", "19.9Mbit"; with at most three digits unless `exactly`."""
    if not exactly:
        rate = int(float(f"{rate:.3g}"))
    for prefix, factor in reversed(_FACTORS.items()):
        whole, rest = divmod(rate, factor)
        if whole and rest * 10**6 % factor == 0:
            decimals = f"{rest * 10**6 // factor:06d}".rstrip("0")
            return f"{whole}{'.' * bool(decimals)}{decimals}{prefix}bit"
    return f"{rate}bit"


def resolve_rates(rates: Rates | None, tree: Tree, level_costs: Mapping[str, int | float]) -> TreeRates:
    """Return the rates of this tree's links, with remarks on those that fit none of them or had to be assumed."""
    links = rates.links if rates else {}
    names = (*tree.names, tuple(node.id for node in tree.nodes))
    known = (*tree.levels, HOST)
    absent = dict.fromkeys(link.level for link in links if link.level not in (*known, DEVICE))
    remarks = [f"rates of {level} are not used: no node has a {level}" for level in absent]
    levels: list[LevelRates] = []
    told: list[int | None] = []
    for level, domains in zip(known, names, strict=True):
        own, wrong = _find_own_rates(links, level, domains)
        remarks += wrong
        rate = links.get(LinkName(level)) or min(own.values(), default=None)
        if rate and LinkName(level) not in links and len(own) < len(domains):
            shown = format_list([name for domain, name in enumerate(domains) if domain not in own], _NAMES_MAX)
            what = f"{format_rate(rate)} is assumed, the slowest of its level"
            remarks.append(f"no rate is known for {level} {shown}: {what}")
        rated = None if rate is None else tuple(own.get(domain, rate) for domain in range(len(domains)))
        levels.append(LevelRates(domains=rated, per_host=links.get(LinkName(level, member=HOST))))
        told.append(levels[-1].per_host or rate)
    for at, rate, is_known in _assume_rates(told, tree, level_costs):
        count = len(names[at])
        alike = None if known[at] in HOST_LINKED else (rate,) * count
        levels[at] = LevelRates(domains=alike, per_host=None if alike else rate, is_assumed=count > 1)
        if count > 1 and is_known:
            remarks.append(f"no rate is known for {known[at]}: {format_rate(rate)} is assumed of all its links")
    device = links.get(LinkName(DEVICE))
    return TreeRates(levels=tuple(levels), device=device, are_told=any((*told, device)), remarks=tuple(remarks))


# docs/internals/decisions/0046-seconds-beside-the-cost.md
def _assume_rates(
    told: Sequence[int | None], tree: Tree, level_costs: Mapping[str, int | float]
) -> Iterator[tuple[int, int, bool]]:
    """Yield the levels of which nothing is told and what costs something to leave, each with the rate of its links.

    That of the nearest level with a rate, of two the inner one; False behind it where none has one. Inside a
    `HOST_LINKED` domain hosts are never the limit, and their links tell nothing of those outside. `told`: of each
    level.
    """
    usual, costs = (resolve_level_costs(tree.levels, given) for given in ({}, level_costs))
    slowness = [cost / each or 1.0 for cost, each in zip(costs, usual, strict=True)]
    outside = range(len(costs) - bool({*HOST_LINKED}.intersection(tree.levels)))
    sources = [at for at in outside if told[at]]
    for at in outside:
        if costs[at] and told[at] is None:
            near = min(sources, key=lambda other: (abs(other - at), -other), default=None)
            rate = ALIKE if near is None else (told[near] or ALIKE) * slowness[near]
            yield at, max(1, min(int(rate / slowness[at]), RATE_LIMIT - 1)), near is not None


def _find_own_rates(
    links: Mapping[LinkName, int], level: str, domains: Sequence[str]
) -> tuple[dict[int, int], list[str]]:
    """Return domain -> its own rate, and remarks on names of no domain or of several.

    The last part of a path is a name too, where no domain has it as its whole name. Of two rates the lower counts.
    """
    wanted = {link.domain: rate for link, rate in links.items() if link.level == level and link.domain}
    if not wanted:
        return {}, []
    exact = {name: [domain] for domain, name in enumerate(domains)}
    last: dict[str, list[int]] = {}
    for domain, name in enumerate(domains):
        last.setdefault(name.rpartition("/")[2], []).append(domain)
    own: dict[int, int] = {}
    absent, remarks = [], []
    for name, rate in wanted.items():
        found = exact.get(name) or last.get(name, [])
        if not found:
            absent.append(name)
        elif len(found) > 1:
            example = f"{level}:{domains[found[0]]}"
            remarks.append(f"rate of {level}:{name}: {len(found)} domains have this name; use a path such as {example}")
        else:
            (domain,) = found
            if own.setdefault(domain, rate) != rate:
                remarks.append(f"{level} {domains[domain]} has two rates: the lower counts")
            own[domain] = min(rate, own[domain])
    if absent:
        remarks.append(f"rates of {level} {format_list(absent, _NAMES_MAX)} are not used: no such {level}")
    return own, remarks
