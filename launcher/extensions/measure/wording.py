"""A finding in sentences, as a file of places for --locality @FILE, and as JSON. They name domains; it has numbers.

A domain has the name that most of its members say they are in, if one name leads and no other domain has it; else it is
l0, l1, ... in the order of its members' names, with the first letter of its level, and a number that no node states.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from launcher.extensions.measure import rates
from launcher.extensions.measure.grouping import Groups
from launcher.extensions.measure.session import Answer, Participant
from launcher.model.rates import format_rate
from launcher.model.text import format_count, format_list
from launcher.model.topology import make_natural_key

_PAIRS_SHOWN = 3
Path = tuple[str, ...]  # domains, from the outermost one to that of a level
Stated = dict[int, Path]  # of each participant that states a level


def name_domains(answer: Answer, level_names: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the names of the levels that were found, outermost first, and those of the domains of each."""
    found = answer.finding.levels
    levels = tuple(level_names[len(level_names) - len(found) :])
    named = []
    for level, domains in zip(levels, found, strict=True):
        stated = _list_stated(answer.participants, level)
        names = [(_find_majority(stated, domain) or ("",))[-1] for domain in domains]
        taken = {path[-1] for path in stated.values()}
        numbered = (name for number in itertools.count() if (name := f"{level[0]}{number}") not in taken)
        repeated = [name for name, times in Counter(names).items() if times > 1]
        for index in _sort_domains(answer.participants, domains):
            if names[index] in ("", *repeated):
                names[index] = next(numbered)
        named.append(tuple(names))
    return levels, tuple(named)


def find_paths(answer: Answer, level_names: Sequence[str]) -> list[tuple[tuple[str, str], ...]]:
    """Return each participant's levels and domains, outermost first; none for one that was left out."""
    levels, named = name_domains(answer, level_names)
    paths: list[tuple[tuple[str, str], ...]] = [() for _ in answer.participants]
    for level, names, domains in zip(levels, named, answer.finding.levels, strict=True):
        for name, domain in zip(names, domains, strict=True):
            for member in domain:
                paths[member] = (*paths[member], (level, name))
    return paths


def make_rates(answer: Answer, level_names: Sequence[str]) -> dict[str, str]:
    """Return the rates as in a cluster file: LEVEL for the usual one, LEVEL:PATH where one differs."""
    finding, found = answer.finding, {}
    paths = [[domain for _, domain in path] for path in find_paths(answer, level_names)]
    kinds = [("host", finding.host_rates_bps, [one.name for one in answer.participants])]
    for depth, (level, domains) in enumerate(zip(name_domains(answer, level_names)[0], finding.levels, strict=True)):
        called = ["/".join(paths[domain[0]][: depth + 1]) for domain in domains]
        kinds.insert(depth, (level, finding.rates_bps[depth], called))
    for level, measured, called in kinds:
        if usual := rates.find_usual(measured):
            found[level] = format_rate(usual)
            varies = rates.HOSTS_VARY if level == "host" else rates.SAME_MAX
            for index in rates.find_exceptions(measured, varies):
                found[f"{level}:{called[index]}"] = format_rate(measured[index])
    return found


def make_places(answer: Answer, level_names: Sequence[str]) -> str:
    """Return the text of a file for --locality @FILE: a line for each host, and the rates in a comment.

    A host that was left out has no place. Commas end a domain in such a file, and # begins a comment, so a domain with
    them has semicolons there.
    """
    plain = str.maketrans(",#", ";;")
    lines = []
    if found := make_rates(answer, level_names):
        links = {name if name.startswith("host") else name.translate(plain): rate for name, rate in found.items()}
        text = ",".join(f"{name.replace(',', ',,')}={rate}" for name, rate in links.items())
        lines.append(f"# measured: --rates {shlex.quote(text)}")
    for one, path in zip(answer.participants, find_paths(answer, level_names), strict=True):
        name = one.name if re.fullmatch(r"[^\s*#]\S*", one.name) else one.address
        place = ",".join(f"{level}={domain.translate(plain)}" for level, domain in path)
        lines.append(f"{name} {place}".rstrip())
    return "".join(f"{line}\n" for line in lines)


def make_cluster(answer: Answer, level_names: Sequence[str]) -> dict[str, Any]:
    """Return what a cluster file holds: levels, nodes with paths, rates. Nodes that were left out have no path."""
    levels, _ = name_domains(answer, level_names)
    nodes: list[dict[str, Any]] = []
    for one, path in zip(answer.participants, find_paths(answer, level_names), strict=True):
        domains: list[str | None] = [domain for _, domain in path] or [None] * len(levels)
        nodes.append({"id": one.name, "path": domains, "devices": one.devices, "addr": one.address})
    return {"levels": list(levels), "nodes": nodes, "rates": make_rates(answer, level_names)}


def list_contradictions(answer: Answer, level_names: Sequence[str]) -> list[str]:
    """Return sentences, at least one wherever the domains that nodes state are not those that were found."""
    found = zip(name_domains(answer, level_names)[0], answer.finding.levels, strict=True)
    return [text for level, domains in found for text in _compare_domains(answer.participants, level, domains)]


def _compare_domains(participants: Sequence[Participant], level: str, domains: Groups) -> list[str]:
    stated = _list_stated(participants, level)
    last = Counter(path[-1] for path in set(stated.values()))
    shown = {path: path[-1] if last[path[-1]] == 1 else "/".join(path) for path in set(stated.values())}
    sentences = []
    likes: Counter[Path] = Counter()
    for domain in domains:
        like = _find_majority(stated, domain)
        if like is not None:
            likes[like] += 1
            for member in domain:
                if (path := stated.get(member, like)) != like:
                    name = participants[member].name
                    sentences.append(f"node {name} has {level} {shown[path]} but answers like {level} {shown[like]}")
        elif paths := _count_stated(stated, domain):
            members = format_list([participants[member].name for member in domain])
            several = format_list([shown[path] for path in paths])
            sentences.append(f"nodes of {level} {several} answer like those of one domain: {members}")
    for path, times in likes.items():
        if times > 1:
            sentences.append(f"nodes of {level} {shown[path]} answer like those of {times} domains")
    return sentences


def describe(answer: Answer, level_names: Sequence[str]) -> list[str]:
    """Return the finding as sentences, the verdict first."""
    finding, names = answer.finding, [one.name for one in answer.participants]
    lines = [_describe_verdict(answer, level_names), *list_contradictions(answer, level_names)]
    levels, named = name_domains(answer, level_names)
    for level, domains, members, measured in zip(levels, named, finding.levels, finding.rates_bps, strict=True):
        for index in _sort_domains(answer.participants, members):
            hosts = [names[member] for member in members[index]]
            hosts_bps = sum(finding.host_rates_bps[member] for member in members[index])
            line = f"{level} {domains[index]}: {format_list(hosts)}"
            if rate := measured[index]:
                line += f"; its uplink carries {format_rate(rate)}, {hosts_bps / rate:.1f} to 1"
            lines.append(line)
    if finding.kind != "unknown" and (usual := rates.find_usual(finding.host_rates_bps)):
        differing = rates.find_exceptions(finding.host_rates_bps, rates.HOSTS_VARY)
        others = "".join(f"; {names[one]}: {format_rate(finding.host_rates_bps[one])}" for one in differing)
        lines.append(f"a host's link carries {format_rate(usual)}{others}")
    lines += [f"node {names[one]} is left out: {reason}" for one, reason in sorted(finding.left_out)]
    if finding.blocked:
        pairs = format_list([f"{names[one]} and {names[other]}" for one, other in finding.blocked], _PAIRS_SHOWN)
        lines.append(f"no UDP echo passes between {pairs}")
    return lines


def _describe_verdict(answer: Answer, level_names: Sequence[str]) -> str:
    finding = answer.finding
    count = len(answer.participants) - len(finding.left_out)
    nodes = format_count(count, "node")
    if finding.kind == "tree":
        counts = []
        for level, domains in zip(name_domains(answer, level_names)[0], finding.levels, strict=True):
            are_all_stated = _list_stated(answer.participants, level).keys() >= set(chain(*domains))
            is_as_stated = are_all_stated and not _compare_domains(answer.participants, level, domains)
            counts.append(f"{len(domains)} domains of level {level}{' as stated' if is_as_stated else ''}")
        return f"tree: {nodes} in {', '.join(counts)}"
    reached = f"; one flow reached {format_rate(finding.flow_bps)}" if finding.flow_bps else ""
    if finding.kind == "flat" and count > 2:
        return f"flat: no link between {nodes} is full before those of the hosts{reached}"
    return f"{'flat' if finding.kind == 'flat' else 'cannot tell'}: {finding.reason}{reached}"


def _list_stated(participants: Sequence[Participant], level: str) -> Stated:
    stated = {}
    for number, one in enumerate(participants):
        levels = [name for name, _ in one.path]
        if level in levels:
            stated[number] = tuple(domain for _, domain in one.path[: levels.index(level) + 1])
    return stated


def _count_stated(stated: Stated, members: Iterable[int]) -> Counter[Path]:
    return Counter(stated[member] for member in members if member in stated)


def _find_majority(stated: Stated, members: Sequence[int]) -> Path | None:
    """Return the domain that more than half of those members say they are in that say one."""
    paths = _count_stated(stated, members)
    return next((path for path, times in paths.items() if 2 * times > sum(paths.values())), None)


def _sort_domains(participants: Sequence[Participant], domains: Sequence[Sequence[int]]) -> list[int]:
    """Return the positions of the domains in the order of their members' names, numbers in names as numbers."""
    first = [min(make_natural_key(participants[member].name) for member in domain) for domain in domains]
    return sorted(range(len(domains)), key=lambda index: first[index])
