"""The sentence of any reason: the agreement's kinds, and those of the launcher, whose names have a slash.

A kind begins with the package that makes it. The planner's are for users who do not know the planner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.model.text import format_amount, format_count, format_seconds

if TYPE_CHECKING:
    from rendezvous.sentences import Sentence

_ADD_NODES = "add nodes, or ask for fewer nodes or a smaller mesh"


def _call(mesh: str) -> str:
    """Return what a mesh is called; nobody has named it where it is empty."""
    return f"mesh {mesh}" if mesh else "the job"


def _count_levels(count: int, level: str) -> str:
    return f"1 {level}" if count == 1 else f"{count:,} {_pluralize(level)}"


def _pluralize(level: str) -> str:
    return f"{level[:-1]}ves" if level.endswith("leaf") else f"{level}s"


def _raise_nnodes(least: int) -> str:
    return f"raise --nnodes to {least} or more, or ask for a smaller mesh"


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _describe_world(ranks: int, nodes: int, present: int, why: str, is_most: bool) -> str:
    most = f" on at most {format_count(nodes, 'node')}" if is_most else ""
    return f"world of {format_count(ranks, 'rank')} on {nodes:,} of {format_count(present, 'node')}: {why}{most}"


def _describe_incomplete_slice(
    level: str, domain: str, present: int, hosts: int, missing: int, indices: str, names: Sequence[str]
) -> str:
    what = "worker" if level == "slice" else "host"  # a TPU host is identified by its worker id
    more = f" and {missing - len(names)} more" if missing > len(names) else ""
    named = f" ({', '.join(names)}{more})" if names else ""
    lacks = f" and lacks {what}{'s' * (missing > 1)} {indices}{named}" if missing else ""
    return f"{level} {domain} has {present} of {hosts} hosts{lacks}"


def _describe_uneven(mesh: str, ranks: int, level: str, axis: str, low: int, high: int, larger: int) -> str:
    what = f"whole {_pluralize(level)} of {ranks} ranks" if level else f"units of {ranks} ranks"
    sizes = f"{low}" if low == high else f"{low} to {high}"
    possible = f" for any possible {axis} ({sizes})" if axis else ""
    return f"{_call(mesh)} cannot be divided into {what}{possible}"


def _hint_even_sizes(level: str, axis: str, larger: int, **_: object) -> str:
    if larger:
        most = f"{axis}={larger}; or choose other mesh sizes" if axis else format_count(larger, "rank")
        return f"add nodes, up to {most}"
    change = "--whole" if level else "--unit"
    return f"choose other mesh sizes, or another {change}: adding nodes does not help"


def _hint_larger_domain(axes: str, level: str, rules: Sequence[str], **_: object) -> str:
    if level == "host":
        return f"make {axes} smaller, or leave out --within {','.join(rules)}: adding such nodes does not help"
    return f"add nodes to one {level}, make {axes} smaller, or change --within"


def _hint_units(fitting: Sequence[str], **_: object) -> str:
    few = [", ".join(fitting[:-1]), fitting[-1]] if len(fitting) > 1 else fitting
    return f"use --unit {' or '.join(few)}"


def _describe_unsplit(ranks: int, nodes: int, now_ranks: int, now_nodes: int, cost: float, now_cost: float) -> str:
    costs = f", J {format_amount(cost)} instead of {format_amount(now_cost)}" if cost else ""
    return f": {ranks:,} ranks on {format_count(nodes, 'node')} instead of {now_ranks:,} on {now_nodes:,}{costs}"


SENTENCES: Mapping[str, Sentence] = {
    # --- why this node leaves ---
    "agent/signal": "stopped by {signal}",
    "agent/preemption-signal": "{signal} announces a preemption",
    "agent/slurm-end": "{signal} announces the end of the Slurm job",
    "agent/preemption-file": "{path} announces a preemption",
    "agent/supervisor-lost": "{error}",
    "agent/fork-server-failed": "{error}",
    "torchrun/ended": "torchrun has ended",
    "torchrun/workers-finished": "the workers of torchrun have finished",
    "torchrun/told-to-end": "torchrun was told to end",
    "torchrun/no-port": "{error}",
    # --- what a cloud announces of this machine, after the cloud's name ---
    "hardware/notice": "{source} {notice}",
    "hardware/spot-interruption": "announces a spot interruption ({action})",
    "hardware/rebalance": (
        "recommends replacing this machine, because an interruption is likely (rebalance recommendation)"
    ),
    "hardware/maintenance": "announces scheduled maintenance ({code})",
    "hardware/preemption": "announces the preemption of this machine",
    "hardware/host-maintenance": "announces host maintenance ({event})",
    "hardware/eviction": "announces the eviction of this machine",
    "hardware/deletion": "announces the deletion of this machine",
    "hardware/reboot": "announces a reboot of this machine",
    "hardware/move": "announces that this machine will move to another host",
    "hardware/pause": "announces that this machine will pause for some seconds",
    "hardware/event": "announces an event for this machine ({event})",
    "hardware/over": "{what}, for a time in the past",
    # --- why no restart would help ---
    "agent/gave-up": lambda text: text or "a worker gave up",
    # --- how a worker failed, the same when it fails in the same way again ---
    "logs/failure": "{failure_class}: {why}",
    "logs/claim": "{claim}",
    "logs/node-leaves": "this node was asked to leave",
    "logs/no-program": "the program cannot be run",
    "logs/no-memory": "not enough memory to start it",
    "logs/machine-limit": "this machine allows no more processes or files",
    "logs/not-started": "it could not be started",
    "logs/port-taken": "another process listens on the worker port",
    "logs/repeated": "{error}, for the second time on {node}",
    "logs/killed-for-memory": "the kernel killed it",
    "logs/illegal-access": "an illegal access on its GPU",
    "logs/gpu-error": "the kernel reported an error on its GPU",
    "logs/peer-lost": "it lost a peer",
    "logs/file-too-large": "a file exceeded the size limit",
    "logs/bad-arguments": "bad arguments",
    "logs/nothing-to-run": "Python has found nothing to run",
    "logs/native-crash": "it crashed in native code",
    "logs/exception": "{type}",
    "logs/signal": "{signal}",
    "logs/exit-code": "exit code {exit_code}",
    # --- what a running round looks like ---
    "diagnosis/early-end": lambda ended, for_s, live, is_one: (
        f"{ended} ended at least {for_s} s ago, but {live} still {'runs' if is_one else 'run'}: `meshctl why` shows "
        f"what {'it does' if is_one else 'they do'}"
    ),
    # --- how a round ended ---
    "views/sentence": "{sentence}",
    "views/one-machine": "its only node can be stopped, but not drained or undrained",
    "views/no-end": "no agent has recorded how",
    "views/failed": "rank {rank}, exit code {exit_code}",
    # --- the size of the job ---
    "placement/names": lambda names, count: (
        ", ".join(names) + (f" and {count - len(names):,} more" if count > len(names) else "")
    ),
    "placement/all-slots": lambda ranks: f"world of {format_count(ranks, 'rank')}: all slots of the only machine",
    "placement/not-joined": "this machine has not joined yet",
    "placement/world": _describe_world,
    "placement/fixed-size": "mesh {mesh} has a fixed size",
    "placement/most-allowed": lambda size: f"{size or 'this'} is the maximum allowed",
    "placement/largest": lambda size, rules: (
        (f"{size} is the largest whole number of replicas" if size else "the largest that is possible")
        + (f" with {' and '.join(rules)}" if rules else "")
    ),
    "placement/joined": "joined: {nodes}",
    "placement/none-joined": "no node has joined",
    # --- why there is no valid size ---
    "placement/no-node": "no node is present",
    "placement/too-few-nodes": lambda least, present: (
        f"at least {format_count(least, 'node')} must be active, but {present} {_be(present)} usable"
    ),
    "placement/too-few-active": lambda mesh, ranks, nodes, least: (
        f"{_call(mesh)} gives a world of {format_count(ranks, 'rank')} on {format_count(nodes, 'node')}, but at least "
        f"{least} must be active"
    ),
    "placement/one-node-too-small": lambda mesh, ranks, devices, nnodes: (
        f"{_call(mesh)} needs {ranks:,} devices, but {devices:,} {_be(devices)} present on 1 node"
    ),
    "placement/nodes-missing": lambda mesh, nodes, devices, present, most: (
        f"{_call(mesh)} needs at least {format_count(nodes, 'node')} with {format_count(devices, 'device')}"
        f"{' each' * (nodes > 1)}; "
        + (f"at most {most} may be active" if most else f"{present} {_be(present)} present")
    ),
    "placement/odd-nodes": "other nodes have a different number of devices: {nodes}",
    "placement/no-slice": lambda mesh, level, hosts: (
        f"{_call(mesh)} needs complete {_pluralize(level)} of {format_count(hosts, 'host')}; none is present"
    ),
    "placement/slices-missing": lambda mesh, slices, level, hosts, present, most: (
        f"{_call(mesh)} needs at least {_count_levels(slices, f'complete {level}')} of {format_count(hosts, 'host')}; "
        + (f"at most {format_count(most, 'node')} may be active" if most else f"{present} {_be(present)} present")
    ),
    "placement/uneven": _describe_uneven,
    "placement/no-fit": lambda mesh, nodes, has_rules: (
        f"{_call(mesh)} does not fit on any{'' if nodes == 1 else f' {nodes}'} of the nodes present"
        + (" with these rules" if has_rules else "")
    ),
    "placement/domain-too-small": lambda ranks, axes, level, mesh, room, rules: (
        f"{_call(mesh)} needs {ranks:,} ranks of {axes} {'on' if level == 'host' else 'in'} one {level}, but the "
        f"largest {level} has room for {room:,}"
    ),
    "placement/too-few-domains": lambda mesh, times, ranks, axes, level, room: (
        f"{_call(mesh)} needs {times:,} groups of {ranks:,} ranks of {axes}, each in one {level}, but there is room "
        f"for {room:,}"
    ),
    "placement/unit-too-large": lambda unit, most, fitting: (
        f"--unit {unit} does not fit on any node: the largest has {format_count(most, 'device')}"
    ),
    "placement/unit-uneven": lambda unit, mesh, fitting: (
        f"--unit {unit}: units of {unit} consecutive ranks do not divide mesh {mesh} evenly from its last axis on"
    ),
    "placement/unit-leaves-idle": (
        "--unit {unit} does not divide the {devices} devices of a host, and none may stay idle"
    ),
    "placement/unknown-level": lambda option, level, known: (
        f"{option}: no node reports its {level}; the known levels are {', '.join(known) or 'none'}"
    ),
    "placement/inside-whole": (
        "{option}: a {level} is inside a {whole}, and --whole uses each {whole} in the order of its hosts"
    ),
    "placement/missing-node-ranks": lambda ranks, count, nodes: (
        f"node rank{'s' * (count > 1)} {ranks} of {nodes} {_be(count)} missing"
    ),
    "placement/worker-order": (
        "{node} is worker {worker} of slice {slice} but has --node-rank {rank}: the node ranks of a slice's hosts must "
        "be consecutive and in the order of the worker ids"
    ),
    # --- nodes that have no ranks ---
    "placement/unused": "not usable, because {why}: {nodes}",
    "placement/more-unused": lambda nodes: f"not usable for similar reasons: {format_count(nodes, 'more node')}",
    "placement/too-small": lambda ranks: f"{format_count(ranks, 'rank')} must be on one node",
    "placement/no-level": "node {node} has no known {level}",
    "placement/slice-incomplete": _describe_incomplete_slice,
    "placement/slice-oversized": "{level} {domain} has {present} hosts, but a complete {level} has {hosts}",
    "placement/slice-mixed": "{level} {domain} has hosts with different numbers of devices: {devices}",
    "placement/slice-numbers": "{level} {domain} has hosts with the indices {indices} instead of 0 to {last}",
    "placement/slice-odd": lambda level, domain, devices, usual: (
        f"{level} {domain} has {format_count(devices, 'device')} per host, but others have {usual}"
    ),
    "placement/slice-size": lambda node, hosts, slice, usual: (
        f"{node} reports {format_count(hosts, 'host')} for slice {slice}, but other nodes report {usual}"
    ),
    "placement/same-worker": "{node} and {other} are both worker {worker} of slice {slice}",
    "placement/joined-twice": (
        "{node} has joined twice as worker {worker} of slice {slice}: the later member waits as a spare until the "
        "earlier one has left"
    ),
    "placement/no-node-rank": "{node} has no node rank from 0 to {last}",
    "placement/same-node-rank": lambda node, other, rank: (
        f"{f'two nodes called {node}' if node == other else f'{node} and {other}'} both have --node-rank {rank}"
    ),
    "placement/waits": "{why}: {node} waits as a spare until {other} has left",
    "placement/unreadable-node": "{node} cannot take part: {error}",
    "placement/loopback-address": (
        "{node} publishes the address {address}, which is a loopback address: set --local-addr on that node"
    ),
    "placement/spare": lambda ranks, sizes, nodes: (
        f"the largest world is {', '.join((format_count(ranks, 'rank'), *sizes))} on {format_count(nodes, 'node')}"
    ),
    # --- the plan ---
    "placement/summary": lambda nodes, present, ranks, sizes: (
        f"{nodes} of {format_count(present, 'node')}, {', '.join((format_count(ranks, 'rank'), *sizes))}"
    ),
    "placement/spares": "spares: {nodes}",
    "placement/idle-slots": lambda slots: (
        f"{format_count(slots, 'slot')} on active nodes {'stays' if slots == 1 else 'stay'} idle"
    ),
    "placement/cost": lambda cost, is_least: (
        f"the traffic's cost is {format_amount(cost)}" + (", the least that this world allows" if is_least else "")
    ),
    "placement/slowest-link": lambda axes, link, share, is_assumed=False: (
        f"{'assuming links of a level are alike, ' * is_assumed}{axes} waits for {link} during "
        f"{round(100 * share)} % of a step's communication"
    ),
    "placement/step-time": lambda step_s, axes, link, part_s: (
        f"a step's communication takes {format_seconds(step_s)}, of which {axes} waits {format_seconds(part_s)} for "
        f"{link}"
    ),
    "placement/other-mesh": "the previous plan was for another mesh, so no rank can keep its place",
    "placement/moved": lambda moved, ranks: (
        f"{moved:,} of {format_count(ranks, 'rank')} {'moves' if moved == 1 else 'move'} to another node"
    ),
    "placement/without": "without {nodes}",
    "placement/with": "with {nodes}",
    "placement/axes-together": lambda axes, level: (
        f"{' and '.join(axes) or 'the job'} {'stays' if len(axes) == 1 else 'stay'} on one {level}"
    ),
    "placement/axis-spread": lambda axis, domains, level: f"{axis or 'the job'} spans {_count_levels(domains, level)}",
    "placement/leaves-domain": "{axis} leaves its {level}",
    "placement/uses-part": "uses parts of a {level}",
    "placement/uses-nodes": lambda nodes: f"uses {format_count(nodes, 'node')}",
    # --- remarks ---
    "placement/remark": "{text}",
    "placement/duplicate-name": "{count} nodes have the name {name}: give each its own --node-name",
    "placement/shared-address": (
        "{nodes} publish the same address, {address}, but have different boot ids: they are probably different "
        "machines, and only one can be reached; give each its own --local-addr, or set LAUNCHER_INTERFACE"
    ),
    "placement/previous-unreadable": (
        "the assignments of the previous round cannot be read, so no rank keeps its place: {error}"
    ),
    "placement/split-groups": lambda axes, devices, split, groups, ranks, then: (
        f"{axes} does not divide the {devices} devices of a node, so {split:,} of {format_count(groups, 'group')} of "
        f"{ranks} ranks {_be(split)} split across nodes; --unit {ranks} keeps each group on one node{then}"
    ),
    "placement/unsplit": _describe_unsplit,
    "placement/none-unsplit": ", but then there is no valid world size: {why}",
    "placement/slices-differ": "slices of {others} hosts cannot be combined with slices of {usual} hosts",
    "placement/level-costs-unused": "--level-costs: no effect for {levels}, which no node reports",
    "placement/too-many-levels": "at most {most} levels are used; left out: {levels}",
    "placement/level-around": ("{level} {domain} spans {outer} {domains}: each {outer} counts as a part of a {level}"),
    "placement/level-strays": (
        "all nodes in {level} {domain} count as nodes in {outer} {usual}, though {nodes} reported another {outer}"
    ),
    "placement/level-unshared": (
        "no effect for {levels}: no two nodes share such a domain, and only these nodes report one: {nodes}"
    ),
    "placement/level-unknown": "the {level} of {nodes} is not known: each such node counts as a separate {level}",
}

HINTS: Mapping[str, Sentence] = {
    "placement/no-node": _ADD_NODES,
    "placement/too-few-nodes": "add nodes, or lower --nnodes",
    "placement/too-few-active": "lower --nnodes, or ask for a larger mesh",
    "placement/one-node-too-small": lambda nnodes, **_: _raise_nnodes(nnodes) if nnodes else _ADD_NODES,
    "placement/nodes-missing": lambda nodes, most, **_: _raise_nnodes(nodes) if most else _ADD_NODES,
    "placement/no-slice": "add nodes until a {level} is complete, or change the number of hosts in --whole",
    "placement/slices-missing": lambda slices, hosts, most, **_: _raise_nnodes(slices * hosts) if most else _ADD_NODES,
    "placement/uneven": _hint_even_sizes,
    "placement/no-fit": lambda has_rules, **_: "change --within, or add nodes" if has_rules else _ADD_NODES,
    "placement/domain-too-small": _hint_larger_domain,
    "placement/too-few-domains": _ADD_NODES,
    "placement/unit-too-large": _hint_units,
    "placement/unit-uneven": _hint_units,
}
