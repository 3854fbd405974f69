"""The plan in words, for a terminal of 80 columns or a log: what would happen, why, and what it costs.

No colours and no more lines for sixteen thousand nodes than for sixteen: names are listed as far as a line bears
them, the rest is counted. Only the table of all ranks, which is asked for, is as long as the cluster.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Sequence
from fractions import Fraction

from launcher.mesh import Mesh
from launcher.node import Node
from launcher.placement import Plan
from launcher.placement.explain import Explanation
from launcher.preview.cluster import Cluster
from launcher.preview.moves import Move
from launcher.topology import in_order, tree

WIDTH = 80
NAMES_MAX = 8
KINDS_MAX = 6
_LABEL = 9  # width of the first column


def heading(cluster: Cluster, mesh: Mesh) -> str:
    """What is planned for."""
    return _wrapped("cluster", f"{cluster.name}: {_census(cluster.nodes)}") + _wrapped("mesh", str(mesh))


def before(plan: Plan, mesh: Mesh) -> str:
    """The plan before a change."""
    return _wrapped("before", _world(plan, mesh) + (f", J {number(plan.cost)}" if plan.cost else ""))


def change(lose: str, join: str) -> str:
    """What happens to the cluster."""
    changes = (("lost", lose), ("joins", join))
    return "".join(_wrapped(label, listed(text.split(","))) for label, text in changes if text)


def world(plan: Plan, nodes: Sequence[Node], mesh: Mesh, levels: Sequence[str]) -> str:
    """The world, why it is this one, and who is left out."""
    labels = ("why", *[""] * len(plan.reasons))
    reasons = (_wrapped(label, reason, 2) for label, reason in zip(labels, plan.reasons, strict=False))
    return "".join((_wrapped("world", _world(plan, mesh)), *reasons, _spares(plan, nodes, levels)))


def moved(plan: Plan, moves: Sequence[Move]) -> str:
    """Who changes the node, from where to where."""
    text = f"{plan.moved:,} of {count(plan.world_size, 'rank')}"
    if moves:
        text += ": " + listed([f"{move.rank_count} from {move.source} to {move.target}" for move in moves], 4)
    return _wrapped("moved", text)


def cost(plan: Plan, explanation: Explanation) -> str:
    """J next to its lower bound and to other orders, the busiest domains, and a table of where J comes from."""
    bound = f"; the lower bound is {number(plan.lower_bound)}" if explanation.cost else ""
    found = _wrapped("cost", f"J {number(explanation.cost)}{bound}")
    names = [baseline.name for baseline in explanation.baselines]
    costs = [number(baseline.cost) for baseline in explanation.baselines]
    widths = max(map(len, names)), max(map(len, costs))
    for name, other, baseline in zip(names, costs, explanation.baselines, strict=True):
        compared = _compared(baseline.cost, explanation.cost)
        remark = ", not valid" if baseline.faults else ""
        found += _wrapped("", f"{name:<{widths[0]}}  {other:>{widths[1]}}  {compared}{remark}")
    faults = dict.fromkeys(fault for baseline in explanation.baselines for fault in baseline.faults)
    if faults:
        found += _wrapped("", f"not valid: {', '.join(faults)}", 2)
    busiest = [(level.name, level.busiest) for level in explanation.levels if level.busiest]
    if busiest:
        ends = (f"{level} {most.name} with {number(most.traffic)} in and out" for level, most in busiest)
        found += _wrapped("busiest", "; ".join(ends))
    return found + "\n" + _traffic(explanation)


def table(plan: Plan, nodes: Iterable[Node], levels: Sequence[str]) -> str:
    """Every node with its place and its ranks, in the order of the tree."""
    rows = [(node.id, "/".join(entry or "?" for entry in node.path), _runs(plan, node)) for node in in_order(nodes)]
    head = ("node", "/".join(levels), "ranks")
    widths = [max(len(row[column]) for row in (head, *rows)) for column in (0, 1)]
    lines = (f"  {name:<{widths[0]}}  {place:<{widths[1]}}  {ranks}".rstrip() for name, place, ranks in (head, *rows))
    return "\n".join(lines) + "\n"


def _runs(plan: Plan, node: Node) -> str:
    ranks = plan.ranks.get(node.id)
    if not ranks:
        return "spare"
    breaks = [at for at in range(1, len(ranks)) if ranks[at] != ranks[at - 1] + 1]
    runs = itertools.pairwise((0, *breaks, len(ranks)))
    return ", ".join(f"{ranks[at]}-{ranks[end - 1]}" if end - at > 1 else str(ranks[at]) for at, end in runs)


def _census(nodes: Sequence[Node]) -> str:
    """32 nodes with 8 devices each."""
    kinds: dict[int, int] = {}
    for node in nodes:
        kinds[node.slot_count] = kinds.get(node.slot_count, 0) + 1
    parts = [f"{count(kinds[size], 'node')} with {count(size, 'device')}" for size in sorted(kinds, reverse=True)]
    if len(parts) > KINDS_MAX:
        total = sum(node.slot_count for node in nodes)
        return f"{count(len(nodes), 'node')} with {count(total, 'device')} in all"
    return ", ".join(parts) + (" each" if len(kinds) == 1 and len(nodes) > 1 else "")


def _world(plan: Plan, mesh: Mesh) -> str:
    sizes = ", ".join(f"{axis.name}={size}" for axis, size in zip(mesh.axes, plan.shape, strict=True))
    return f"{sizes}: {count(plan.world_size, 'rank')} on {count(len(plan.ranks), 'node')}"


def _spares(plan: Plan, nodes: Sequence[Node], levels: Sequence[str]) -> str:
    """Who is left out, and where that leaves how many: the spares are what evens the domains out."""
    if not plan.spares:
        return _wrapped("spares", "none")
    text = listed(plan.spares)
    if levels:
        place = tree(nodes, levels)
        active = [0] * len(place.names[-1])
        for node, domain in zip(place.nodes, place.domains[-1], strict=True):
            active[domain] += node.id in plan.ranks
        used = [number_ for number_ in active if number_]
        kept = f"{min(used)}" if min(used) == max(used) else f"{min(used)} to {max(used)}"
        idle = len(active) - len(used)
        text += f"; every {levels[-1]} {'in use ' if idle else ''}keeps {kept} active"
    return _wrapped("spares", text)


def _compared(other: Fraction, cost: Fraction) -> str:
    if other == cost:
        return "the same"
    if not cost or other >= 2 * cost:
        return f"{number(round(other / cost, 1))} times as much" if cost else "more"
    return f"{percent(abs(other / cost - 1))} {'more' if other > cost else 'less'}"


def _traffic(explanation: Explanation) -> str:
    """A row per communicator, a column per level: what leaves the level's domains, and how wide groups are spread.

    The last column and the row "share of J" add up to J, by communicator and by level.
    """
    levels = explanation.levels
    rows = [["traffic that leaves a", *(level.name for level in levels), "J"]]
    for index, one in enumerate(explanation.communicators):
        name = f"  {one.name} {one.kind}, weight {number(one.weight)}"
        cost = sum((level.toll * level.leaving[index] for level in levels), Fraction(0))
        rows.append([name, *(number(level.leaving[index]) for level in levels), number(cost)])
    rows.append(["times the toll", *(number(level.toll) for level in levels), ""])
    rows.append(["share of J", *(number(level.cost) for level in levels), number(explanation.cost)])
    rows.append(["widest group touches", *("" for _ in levels), ""])
    for index, one in enumerate(explanation.communicators):
        rows.append([f"  {one.name}", *(number(level.spreads[index]) for level in levels), ""])
    return _columns(rows)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ([f"{row[0]:<{widths[0]}}", *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines) + "\n"


def number(value: Fraction | int | float) -> str:
    """1,008; 2.5; 1,397,981.3: one decimal is enough where there are thousands."""
    exact = Fraction(value)
    if exact.denominator == 1:
        return f"{int(exact):,}"
    return f"{float(exact):,.1f}" if abs(exact) >= 100 else f"{float(exact):.4g}"


def percent(value: Fraction) -> str:
    """4.3 %; never 0 for what is more."""
    tenths = round(value * 1000)
    return f"{tenths // 10}.{tenths % 10} %" if tenths else "less than 0.1 %"


def count(how_many: int, what: str) -> str:
    """1 node, 2 nodes, 16,384 nodes."""
    return f"1 {what}" if how_many == 1 else f"{how_many:,} {what}s"


def listed(names: Sequence[str], most: int = NAMES_MAX) -> str:
    """The names, the first few of many, and how many there are then."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"


def _wrapped(label: str, text: str, indent: int = 0) -> str:
    """A label, and the text beside it, over as many lines as it takes."""
    margin = " " * (_LABEL + indent)
    return (
        textwrap.fill(
            text, WIDTH, initial_indent=f"{label:<{_LABEL}}", subsequent_indent=margin, break_on_hyphens=False
        )
        + "\n"
    )
