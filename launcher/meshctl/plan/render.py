"""Renders the plan as text, for a terminal of 80 columns or a log: the result, the reasons and the cost.

No colours and no more lines for sixteen thousand nodes than for sixteen: names are listed as far as a line allows,
the rest is counted. Only the optional table of all ranks is as long as the cluster.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import zip_longest
from types import MappingProxyType

from launcher.meshctl.plan.changes import LOST, Move, describe_moves
from launcher.meshctl.plan.cluster import ClusterSpec
from launcher.meshctl.plan.explanation import Explanation
from launcher.meshctl.table import align, measure_width, pad
from launcher.model.errors import describe
from launcher.model.mesh import Mesh
from launcher.model.node import Node
from launcher.model.ranges import format_ranges
from launcher.model.rates import format_rate
from launcher.model.text import WIDTH, format_amount, format_count, format_list, format_seconds, wrap_labelled
from launcher.model.topology import build_tree, sort_nodes
from launcher.placement.limits import Plan, StepTime
from rendezvous.reasons import Reason

COST_PARTS_MAX = 2
KINDS_MAX = 6
_LABEL_WIDTH = 9  # width of the first column
_GUTTER = "    "


def format_json(plan: Plan, warnings: Sequence[Reason] = ()) -> str:
    """Format the answer for programs."""
    answer = {"dims": plan.shape, "plan": plan.ranks, "spares": plan.spares, "J": plan.cost, "moved": plan.moved}
    time = {"time": _list_time(plan.step_time)} if plan.step_time else {}
    more: dict[str, object] = {"warnings": [*map(describe, warnings)]} if warnings else {}
    why = {"reasons": [*map(describe, plan.reasons)]}
    return json.dumps({**answer, "lower_bound": plan.lower_bound, **time, **why, **more})


def _list_time(time: StepTime) -> dict[str, object]:
    """Return the time for programs; without bytes, `seconds` are proportions of no unit, and `share` alone tells."""
    total = time.seconds + time.overlap
    parts = [
        {
            "axes": part.communicator.axes,
            "share": part.seconds / total if total else 0.0,
            **({"seconds": part.seconds} if time.is_absolute else {}),
            "link": part.link,
            "bits_per_s": part.rate,
        }
        for part in time.parts
    ]
    whole = {"seconds": time.seconds, "overlap": time.overlap} if time.is_absolute else {}
    return {**whole, "parts": parts, "assumed": time.assumed}


def format_heading(
    cluster: ClusterSpec, mesh: Mesh, before: Plan | None, lost: Sequence[str], joined: Sequence[str]
) -> str:
    """Format the cluster, the mesh of the plan, and with a plan before it that one and the change of the cluster."""
    rows = [("cluster", f"{cluster.name}: {_describe_nodes(cluster.nodes)}")]
    rows += [("mesh", mesh.given_name)] if mesh.given_name else []
    if before is not None:
        cost = f", J {format_amount(before.cost)}" if before.cost else ""
        rows.append(("before", describe_world(before, mesh) + cost))
        rows += [(label, format_list(words)) for label, words in (("lost", lost), ("joins", joined)) if words]
    return "".join(_wrap(label, text) for label, text in rows)


def format_world(plan: Plan, nodes: Sequence[Node], mesh: Mesh, levels: Sequence[str]) -> str:
    """Format the world, its reasons, and the nodes that are left out."""
    labels = ("why", *[""] * len(plan.reasons))
    reasons = (_wrap(label, describe(reason), 2) for label, reason in zip(labels, plan.reasons, strict=False))
    return "".join((_wrap("world", describe_world(plan, mesh)), *reasons, _format_spares(plan, nodes, levels)))


def format_moves(plan: Plan, moves: Sequence[Move]) -> str:
    """Format which ranks change their node, from where to where."""
    return _wrap("moved", describe_moves(plan, moves))


def format_warnings(warnings: Sequence[Reason]) -> str:
    """Format what the user should know of the plan before a job uses it."""
    return "".join(_wrap("warning", describe(warning), 2) for warning in warnings)


def format_cost(plan: Plan, explanation: Explanation) -> str:
    """Format J with its lower bound and other orders, and a table of J's parts."""
    bound = f"; the lower bound is {format_amount(plan.lower_bound)}" if explanation.cost else ""
    found = _wrap("cost", f"J {format_amount(explanation.cost)}{bound}")
    if meaning := describe_cost(explanation):
        found += _wrap("", meaning, 2)
    found += _wrap_lines(align(list_baseline_rows(explanation), right=(1,)))
    faults = dict.fromkeys(describe(fault) for baseline in explanation.baselines for fault in baseline.faults)
    if faults:
        found += _wrap("", f"not valid: {', '.join(faults)}", 2)
    return found + "\n" + _format_columns(list_traffic_rows(explanation))


def describe_cost(explanation: Explanation) -> str:
    """Describe what J is, and its largest parts; "" if it is 0.

    "J is traffic times level costs: 60 % dp leaving a host; tp leaves no host"
    """
    total = explanation.cost
    if not total:
        return ""
    parts = [
        (level.level_cost * level.leaving[index], f"{communicator.name} leaving a {level.name}")
        for level in reversed(explanation.levels)
        for index, communicator in enumerate(explanation.communicators)
    ]
    parts.sort(key=lambda part: -part[0])
    shares = [f"{round(100 * cost / total)} % {what}" for cost, what in parts[:COST_PARTS_MAX] if 100 * cost >= total]
    named = zip(explanation.communicators, explanation.levels[-1].leaving, strict=True)
    inside = [communicator.name for communicator, leaving in named if not leaving]
    quiet = f"; {' and '.join(inside)} {'leave' if len(inside) > 1 else 'leaves'} no host" if inside else ""
    return f"J is traffic times level costs: {', '.join(shares)}{quiet}"


def list_baseline_rows(explanation: Explanation) -> list[tuple[str, str, str]]:
    """List other orders of the nodes with their J, and how it compares with the plan's."""
    return [
        (
            baseline.name,
            format_amount(baseline.cost),
            compare_costs(baseline.cost, explanation.cost) + (", not valid" if baseline.faults else ""),
        )
        for baseline in explanation.baselines
    ]


def format_time(time: StepTime, explanation: Explanation) -> str:
    """Format the time of a step's communication, part by part with the links they wait for, and that of other orders.

    Without bytes there are no seconds: parts are shares of the plan's time, other orders multiples of it.
    """
    total = time.seconds
    found = _wrap("time", describe_time(time))
    rows = list_time_rows(time)
    for baseline in explanation.baselines:
        other = baseline.step_time.seconds if baseline.step_time else 0.0
        compared = f"{other / total:.2f} times as long" if total else ""
        rows.append((baseline.name, format_seconds(other) if time.is_absolute else "", compared))
    return found + _wrap_lines(align(rows, right=(1,)))


def describe_time(time: StepTime) -> str:
    """Describe what the rows of `list_time_rows` add up to."""
    if not time.is_absolute:
        return f"shares of a step's communication{', assuming links of a level are alike' * bool(time.assumed)}"
    overlap = f"; its parts overlap by {format_seconds(time.overlap)}" if time.overlap else ""
    return f"{format_seconds(time.seconds)} for a step's communication, without computation{overlap}"


def list_time_rows(time: StepTime) -> list[tuple[str, str, str]]:
    """List the parts of a step, the longest first: the axis, its seconds or share, and the link for which it waits."""
    rows = []
    for part in sorted(time.parts, key=lambda part: -part.seconds):
        share = Fraction(part.seconds / (time.seconds + time.overlap)) if part.seconds else Fraction(0)
        amount = format_seconds(part.seconds) if time.is_absolute else format_percent(share)
        carried = f": {format_amount(round(part.amount, 6))} MB at" if time.is_absolute else " at"
        waits = f"{part.link}{carried} {format_rate(part.rate)}" if part.rate else part.link or "waits for no link"
        rows.append((part.communicator.name, amount, waits))
    return rows


def format_table(rows: Sequence[Sequence[str]], in_columns: bool = False) -> str:
    """Format the rows of `list_node_rows`.

    `in_columns`: as many below each other as beside each other fit a terminal; else a line for every node.
    """
    aligned = align(rows)
    width = max(map(measure_width, aligned))
    heading, *lines = (pad(line, width) for line in aligned)
    count = max(1, (WIDTH - 2 + len(_GUTTER)) // (width + len(_GUTTER))) if in_columns else 1
    height = -(-len(lines) // count)
    columns = [[heading, *lines[start : start + height]] for start in range(0, len(lines), height)]
    beside = align([*zip_longest(*columns, fillvalue="")], gap=_GUTTER)
    return "".join(f"  {line}\n" for line in beside)


def list_node_rows(
    plan: Plan, nodes: Iterable[Node], levels: Sequence[str], remarks: Mapping[str, str] = MappingProxyType({})
) -> list[tuple[str, str, str]]:
    """List every node with its locality, its ranks and the remark on it, in the order of the tree, below a heading."""
    rows = [("node", "/".join(levels), "ranks")]
    for node in sort_nodes(nodes):
        held = format_ranges(plan.ranks.get(node.id, ()))
        remark = remarks.get(node.id, "")
        if not held and remark != LOST:
            held = "spare"
        rows.append((node.id, "/".join(entry or "?" for entry in node.path), f"{held} {remark}".strip()))
    return rows


def _describe_nodes(nodes: Sequence[Node]) -> str:
    """32 nodes with 8 devices each."""
    kinds = Counter(node.slot_count for node in nodes)
    sizes = sorted(kinds, reverse=True)
    parts = [f"{format_count(kinds[size], 'node')} with {format_count(size, 'device')}" for size in sizes]
    if len(parts) > KINDS_MAX:
        total = sum(node.slot_count for node in nodes)
        return f"{format_count(len(nodes), 'node')} with {format_count(total, 'device')} in all"
    return ", ".join(parts) + (" each" if len(kinds) == 1 and len(nodes) > 1 else "")


def describe_world(plan: Plan, mesh: Mesh) -> str:
    """Describe its size: "pp=4, dp=7, tp=8: 224 ranks on 28 nodes"."""
    axes = zip(mesh.axes, plan.shape, strict=True) if mesh.given_name else ()
    sizes = ", ".join(f"{axis.name}={size}" for axis, size in axes)
    world = f"{format_count(plan.world_size, 'rank')} on {format_count(len(plan.ranks), 'node')}"
    return f"{sizes}: {world}" if sizes else world


def _format_spares(plan: Plan, nodes: Sequence[Node], levels: Sequence[str]) -> str:
    """Format the spares, and how many nodes remain where: the spares even the domains out."""
    if not plan.spares:
        return _wrap("spares", "none")
    text = format_list(plan.spares)
    if levels:
        place = build_tree(nodes, levels)
        homes = zip(place.nodes, place.domains[-1], strict=True)
        used = Counter(domain for node, domain in homes if node.id in plan.ranks)
        least, most = min(used.values()), max(used.values())
        kept = f"{least}" if least == most else f"{least} to {most}"
        text += f"; every {levels[-1]} {'in use ' if len(used) < len(place.names[-1]) else ''}keeps {kept} active"
    return _wrap("spares", text)


def compare_costs(other: Fraction, cost: Fraction) -> str:
    """Compare another order's cost with the plan's in words: "14.5 % more"."""
    if other == cost:
        return "the same"
    if not cost or other >= 2 * cost:
        return f"{format_amount(round(other / cost, 1))} times as much" if cost else "more"
    return f"{format_percent(abs(other / cost - 1))} {'more' if other > cost else 'less'}"


def list_traffic_rows(explanation: Explanation) -> list[list[str]]:
    """List a row per communicator, a column per level: what leaves the level's domains, and the spread of groups.

    The last column and the row "share of J" add up to J, by communicator and by level.
    """
    levels = explanation.levels
    rows = [["traffic that leaves a", *(level.name for level in levels), "J"]]
    for index, one in enumerate(explanation.communicators):
        weight = f"{format_amount(one.weight)} MB" if one.is_bytes else f"weight {format_amount(one.weight)}"
        name = f"  {one.name} {one.kind}, {weight}"
        cost = sum((level.level_cost * level.leaving[index] for level in levels), Fraction(0))
        rows.append([name, *(format_amount(level.leaving[index]) for level in levels), format_amount(cost)])
    rows.append(["times the level cost", *(format_amount(level.level_cost) for level in levels), ""])
    rows.append(["share of J", *(format_amount(level.cost) for level in levels), format_amount(explanation.cost)])
    rows.append(["widest group touches", *("" for _ in levels), ""])
    for index, one in enumerate(explanation.communicators):
        rows.append([f"  {one.name}", *(format_amount(level.spreads[index]) for level in levels), ""])
    return rows


def _format_columns(rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"{line}\n" for line in align(rows, right=range(1, len(rows[0]))))


def _wrap_lines(lines: Iterable[str]) -> str:
    return "".join(_wrap("", line) for line in lines)


def format_percent(value: Fraction) -> str:
    """4.3 %; 0 only for nothing."""
    tenths = round(value * 1000)
    return f"{tenths // 10}.{tenths % 10} %" if tenths or not value else "less than 0.1 %"


def _wrap(label: str, text: str, indent: int = 0) -> str:
    return wrap_labelled(label, text, _LABEL_WIDTH, indent)
