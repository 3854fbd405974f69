"""A finding in sentences, and as the cluster file that `meshctl plan` reads. Both name domains; a finding has numbers.

A domain has the name that most of its members say they are in, if they say one and no other domain has it; else it is
l0, l1, ... in the order of its members' names, with the first letter of its level.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from launcher.locality.measure import rates
from launcher.locality.measure.session import Answer, Participant
from launcher.model.rates import format_rate
from launcher.model.text import format_count, format_list

_PAIRS_SHOWN = 3


def name_domains(answer: Answer, level_names: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the names of the levels that were found, outermost first, and those of the domains of each."""
    found = answer.finding.levels
    levels = tuple(level_names[len(level_names) - len(found) :])
    named = []
    for level, domains in zip(levels, found, strict=True):
        said = [_find_majority(answer.participants, level, domain) for domain in domains]
        if None in said or len(set(said)) < len(said):
            numbers = {index: number for number, index in enumerate(_sort_domains(answer.participants, domains))}
            said = [f"{level[0]}{numbers[index]}" for index in range(len(domains))]
        named.append(tuple(map(str, said)))
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
    """Return the rates as in a cluster file: LEVEL for the usual one, LEVEL:DOMAIN where one differs."""
    finding, found = answer.finding, {}
    levels, named = name_domains(answer, level_names)
    names = [one.name for one in answer.participants]
    kinds = [*zip(levels, finding.rates_bps, named, strict=True), ("host", finding.host_rates_bps, names)]
    for level, measured, domains in kinds:
        if usual := rates.find_usual(measured):
            found[level] = format_rate(usual)
            varies = rates.HOSTS_VARY if level == "host" else rates.SAME_MAX
            for index in rates.find_exceptions(measured, varies):
                found[f"{level}:{domains[index]}"] = format_rate(measured[index])
    return found


def make_cluster(answer: Answer, level_names: Sequence[str]) -> dict[str, Any]:
    """Return what a cluster file holds: levels, nodes with paths, rates. Nodes that were left out have no path."""
    levels, _ = name_domains(answer, level_names)
    nodes: list[dict[str, Any]] = []
    for one, path in zip(answer.participants, find_paths(answer, level_names), strict=True):
        domains: list[str | None] = [domain for _, domain in path] or [None] * len(levels)
        nodes.append({"id": one.name, "path": domains, "devices": one.devices, "addr": one.address})
    return {"levels": list(levels), "nodes": nodes, "rates": make_rates(answer, level_names)}


def list_contradictions(answer: Answer, level_names: Sequence[str]) -> list[str]:
    """Return a sentence for each node that answers like nodes of another domain than the one it says it is in."""
    if not answer.stated or not answer.finding.levels:
        return []
    sentences = []
    level = answer.participants[answer.stated[0][0]].path[-1][0]
    for domain in answer.finding.levels[-1]:
        like = _find_majority(answer.participants, level, domain)
        for member in domain:
            said = dict(answer.participants[member].path).get(level)
            if like is not None and said != like:
                name = answer.participants[member].name
                sentences.append(f"node {name} says {level} {said} and answers like {level} {like}")
    if not sentences and len(answer.finding.levels[-1]) != len(answer.stated):
        sentences.append(
            f"{format_count(len(answer.stated), 'domain')} of level {level} are stated, and the nodes answer like "
            f"{len(answer.finding.levels[-1])}"
        )
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
    if finding.is_busy and finding.kind == "tree":
        lines.append("what arrived varies between rounds alike, so others use the network and the rates are low")
    lines += [f"node {names[one]} is left out: {reason}" for one, reason in sorted(finding.left_out)]
    if finding.blocked:
        pairs = format_list([f"{names[one]} and {names[other]}" for one, other in finding.blocked], _PAIRS_SHOWN)
        lines.append(f"no UDP echo passes between {pairs}")
    return lines


def _describe_verdict(answer: Answer, level_names: Sequence[str]) -> str:
    finding = answer.finding
    count = format_count(len(answer.participants) - len(finding.left_out), "node")
    if finding.kind == "tree":
        levels, _ = name_domains(answer, level_names)
        counts = [
            f"{len(domains)} domains of level {level}" for level, domains in zip(levels, finding.levels, strict=True)
        ]
        agrees = answer.stated and not list_contradictions(answer, level_names)
        return f"tree: {count} in {', '.join(counts)}{', as stated' if agrees else ''}"
    reached = f"; one flow reached {format_rate(finding.flow_bps)}" if finding.flow_bps else ""
    if finding.kind == "flat":
        return f"flat: no link between {count} is full before those of the hosts{reached}"
    return f"cannot tell: {finding.reason}{reached}"


def _find_majority(participants: Sequence[Participant], level: str, members: Sequence[int]) -> str | None:
    """Return the domain of the level that more than half of the members say they are in."""
    said = Counter(dict(participants[member].path).get(level) for member in members)
    domain, count = said.most_common(1)[0]
    return domain if 2 * count > len(members) else None


def _sort_domains(participants: Sequence[Participant], domains: Sequence[Sequence[int]]) -> list[int]:
    """Return the positions of the domains in the order of their members' names, numbers in names as numbers."""
    first = [min(_split_name(participants[member].name) for member in domain) for domain in domains]
    return sorted(range(len(domains)), key=lambda index: first[index])


def _split_name(name: str) -> list[tuple[int, str]]:
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.findall(r"\d+|\D+", name)]
