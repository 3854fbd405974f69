"""What `meshctl plan` does, from its words to its exit code: 0, 1 when no valid world exists, 2 for bad input.

The cluster comes from a file or a generator, wishes from the file and from flags, of which flags win. With nodes
to lose or to join there are two plans: of the cluster as it is, unless the plan before is given, and of what
comes next. The answer goes out first; pictures follow, so that one which cannot be written costs nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from launcher import mesh as meshes
from launcher import placement
from launcher.console import say, show
from launcher.errors import EXIT_USAGE, LauncherError, UsageError
from launcher.mesh import Mesh
from launcher.placement import Costs, Limits, Plan
from launcher.placement.explain import explain
from launcher.preview import document, words
from launcher.preview.changes import changed
from launcher.preview.cluster import Cluster, from_values, level_names, previous, require_same_mesh
from launcher.preview.generate import generated, is_form
from launcher.preview.moves import moves
from launcher.preview.writing import to_file
from launcher.roster.demand import limits_and_costs

PROGRAM = "meshctl"
EXIT_NO_WORLD = 1
DEFAULT_MESH = "dp=*"  # as for a job


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line said. `wishes`: name of a flag -> its text, of those that were given."""

    cluster: str
    wishes: Mapping[str, str] = field(default_factory=dict)
    levels: str | None = None
    is_contiguous: bool | None = None
    previous: str | None = None
    lose: str = ""
    join: str = ""
    as_json: bool = False
    with_ranks: bool = False
    svg: str | None = None
    html: str | None = None


class _Task(NamedTuple):
    mesh: Mesh
    limits: Limits
    costs: Costs


def run(request: Request) -> int:
    """Plan and print. Raises UsageError for bad input."""
    cluster = _cluster(request)
    task = _task(request, cluster)
    after = changed(cluster, request.lose, request.join)
    before = _previous(request, cluster, task.mesh)
    is_changed = bool(request.lose or request.join)
    if is_changed and before is None:
        try:
            before = _plan(cluster, task, None)
        except UsageError as error:
            if not request.as_json:
                say(f"{PROGRAM}: before the change there is no plan: {error}")
    try:
        plan = _plan(after, task, before)
    except UsageError as error:
        if request.as_json:
            show(json.dumps({"plan": {}, "error": str(error)}))
        else:
            say(f"{PROGRAM}: error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""))
        return EXIT_NO_WORLD
    show(_as_json(plan) if request.as_json else _in_words(request, cluster, after, task, before, plan))
    return _pictures(request, after, task, plan)


def _plan(cluster: Cluster, task: _Task, before: Plan | None) -> Plan:
    return placement.plan(cluster.nodes, task.mesh, task.limits, task.costs, before)


def _cluster(request: Request) -> Cluster:
    levels = None if request.levels is None else [part.strip() for part in request.levels.split(",") if part.strip()]
    if not is_form(request.cluster):
        name = "stdin" if request.cluster == "-" else request.cluster
        return from_values(document.read(request.cluster), name, levels)
    cluster = generated(request.cluster)
    if levels is None:
        return cluster
    if len(levels) != len(cluster.levels):
        raise UsageError(
            f"--levels {request.levels} names {words.count(len(levels), 'level')}, {cluster.name} has "
            f"{len(cluster.levels)}: {', '.join(cluster.levels) or 'none'}"
        )
    return replace(cluster, levels=level_names(levels, "--levels"))


def _task(request: Request, cluster: Cluster) -> _Task:
    texts = {**_without_rivals(cluster.wishes, request.wishes), **request.wishes}
    try:
        key = "mesh"
        mesh = meshes.parse(texts.get(key, DEFAULT_MESH))
        key = "nnodes"
        nodes_min, nodes_max = _node_bounds(texts[key]) if key in texts else (1, None)
    except UsageError as error:
        if key in request.wishes:
            raise
        raise UsageError(f"{cluster.name}: {error}", error.hint) from None
    limits, costs = limits_and_costs(
        texts, mesh, levels=cluster.levels, nodes_min=nodes_min, nodes_max=nodes_max, nodes=cluster.nodes,
        variables={key: cluster.name for key in cluster.wishes if key not in request.wishes},
    )  # fmt: skip
    is_contiguous = cluster.is_contiguous if request.is_contiguous is None else request.is_contiguous
    return _Task(mesh, replace(limits, is_contiguous=is_contiguous), costs)


def _without_rivals(wishes: Mapping[str, str], flags: Mapping[str, str]) -> dict[str, str]:
    """The file's wishes without those for which a flag of another name stands."""
    rivals = {"dp-min", "dp-max"} if "elastic" in flags else {"elastic"} if {"dp-min", "dp-max"} & set(flags) else set()
    return {key: text for key, text in wishes.items() if key not in rivals}


def _node_bounds(text: str) -> tuple[int, int | None]:
    least, colon, most = (piece.strip() for piece in text.partition(":"))
    low = _whole_number(least)
    high = low if not colon else _whole_number(most) if most else None
    if low is None or (most and high is None):
        raise UsageError(f"nnodes {text!r} is neither a number of nodes nor MIN:MAX", "write it like --nnodes 4:32")
    if low < 1:
        raise UsageError(f"nnodes {text!r}: at least 1 node is needed")
    if high is not None and low > high:
        raise UsageError(f"nnodes {text!r}: the least, {low}, is more than the most, {high}")
    return low, high


def _whole_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _previous(request: Request, cluster: Cluster, mesh: Mesh) -> Plan | None:
    if request.previous is not None:
        name = f"--previous {request.previous}"
        found: Plan | None = previous(document.read(request.previous), name)
    else:
        name, found = cluster.name, cluster.previous
    if found is not None:
        require_same_mesh(found, mesh, name)
    return found


def _as_json(plan: Plan) -> str:
    answer = {
        "dims": list(plan.shape),
        "plan": {node: list(ranks) for node, ranks in plan.ranks.items()},
        "spares": list(plan.spares),
        "J": plan.cost,
        "moved": plan.moved,
        "lower_bound": plan.lower_bound,
        "reasons": list(plan.reasons),
    }
    return json.dumps(answer)


def _in_words(request: Request, cluster: Cluster, after: Cluster, task: _Task, before: Plan | None, plan: Plan) -> str:
    parts = [words.heading(cluster, task.mesh)]
    if before is not None:
        parts += [words.before(before, task.mesh), words.change(request.lose, request.join)]
    parts += ["\n", words.world(plan, after.nodes, task.mesh, after.levels)]
    if before is not None:
        parts.append(words.moved(plan, moves(before, plan, task.mesh)))
    explanation = explain(plan, after.nodes, task.mesh, task.limits, task.costs)
    parts += ["\n", words.cost(plan, explanation)]
    if request.with_ranks:
        parts += ["\n", words.table(plan, after.nodes, after.levels)]
    return "".join(parts).removesuffix("\n")


def _pictures(request: Request, cluster: Cluster, task: _Task, plan: Plan) -> int:
    """Write the files that were asked for; what cannot be written is said, and does not stop the other."""
    code = 0
    for kind, path in (("svg", request.svg), ("html", request.html)):
        if path is None:
            continue
        try:
            to_file(path, _drawn(kind, cluster, task, plan))
        except LauncherError as error:
            say(f"{PROGRAM}: error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""))
            code = EXIT_USAGE
    return code


def _drawn(kind: str, cluster: Cluster, task: _Task, plan: Plan) -> str:
    if kind == "svg":
        from launcher.preview.picture import svg

        return svg(plan, cluster.nodes, task.mesh, task.limits, task.costs)
    from launcher.preview.page import html

    return html(plan, cluster.nodes, task.mesh, task.limits, task.costs)
