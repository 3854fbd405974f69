"""The command `meshctl plan`, from its arguments to its exit code: 0, 1 when no valid world exists, 2 for bad input.

The cluster comes from a file or a generator, options from the file and from flags, which override them. With nodes
to lose or to join there are two plans: of the cluster as it is, unless the previous plan is given, and of the changed
cluster. A picture that cannot be written is refused before the search. The answer is printed first and pictures follow,
so that a disk which is full by then affects nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from launcher import extensions
from launcher.config.options.readers import Value, parse_node_range
from launcher.config.options.table import BY_NAME
from launcher.hardware.linux.files import replacing
from launcher.meshctl.plan import cluster as clusters
from launcher.meshctl.plan import render
from launcher.meshctl.plan.changes import Change, apply_changes, describe_change, list_moves, parse_list
from launcher.meshctl.plan.generate import generate, is_form, suggest_form
from launcher.model import mesh as meshes
from launcher.model.console import write_stderr, write_stdout
from launcher.model.errors import LauncherError, UsageError, describe, find_shortage_hint, give_hint, sanitize
from launcher.model.mesh import Mesh
from launcher.model.text import format_count
from launcher.placement import planner
from launcher.placement.adapter.options import parse_limits_and_costs
from launcher.placement.explain import explain
from launcher.placement.limits import Costs, Limits, NoWorldError, Plan
from launcher.placement.split_groups import explain_split_groups
from rendezvous.errors import EXIT_FAILURE, EXIT_USAGE
from rendezvous.reasons import Reason

PROGRAM = "meshctl"
RANKS_NODES = 64
"""Clusters of fewer nodes are listed node by node unless told otherwise."""


class PlanRequest(Struct, frozen=True, kw_only=True):
    """The arguments of the command line."""

    cluster: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Name of a flag to its text, of those that were set."""
    levels: str | None = None
    previous: str | None = None
    lose: tuple[str, ...] = ()
    join: tuple[str, ...] = ()
    as_json: bool = False
    with_ranks: bool | None = None
    svg: str | None = None
    html: str | None = None


class _Task(NamedTuple):
    mesh: Mesh
    limits: Limits
    costs: Costs

    def plan(self, cluster: clusters.ClusterSpec, before: Plan | None) -> Plan:
        return planner.plan(cluster.nodes, *self, before)


def run(request: PlanRequest) -> int:
    """Plan and print. Raises UsageError for bad input."""
    for path in filter(None, (request.svg, request.html)):
        require_writable(path)
    cluster = _load_cluster(request)
    task = _make_task(request, cluster)
    lost, joined = parse_list(request.lose, "lose"), parse_list(request.join, "join")
    after = apply_changes(cluster, lost, joined)
    before = _read_previous(request, cluster, task.mesh)
    if (lost or joined) and before is None:
        try:
            before = task.plan(cluster, None)
        except NoWorldError as error:
            if not request.as_json:
                write_stderr(f"{PROGRAM}: no valid world size before the change: {describe(error.reason)}")
    try:
        plan = task.plan(after, before)
    except NoWorldError as error:
        if request.as_json:
            write_stdout(json.dumps({"plan": {}, "error": describe(error.reason)}))
        else:
            _report(UsageError(describe(error.reason), give_hint(error.reason)))
        return EXIT_FAILURE
    change = describe_change(cluster, after, before, plan, task.mesh)
    split = explain_split_groups(plan, after.nodes, *task)
    answer = PlanAnswer(plan=plan, before=before, change=change, warnings=() if split is None else (split,))
    if request.as_json:
        text = render.format_json(plan, answer.warnings)
    else:
        heading = render.format_heading(cluster, task.mesh, before, lost, joined)
        text = heading + "\n" + _format_text(request, after, task, answer)
    write_stdout(text)
    return _write_pictures(request, after, task, answer)


class PlanAnswer(Struct, frozen=True, kw_only=True):
    """All that is printed and drawn."""

    plan: Plan
    before: Plan | None
    change: Change
    """None without a plan before, or if nothing differs from it."""
    warnings: tuple[Reason, ...]


def _load_cluster(request: PlanRequest) -> clusters.ClusterSpec:
    levels = None if request.levels is None else [part.strip() for part in request.levels.split(",") if part.strip()]
    if not is_form(request.cluster):
        if not os.path.exists(request.cluster) and (hint := suggest_form(request.cluster)):
            raise UsageError(f"file {sanitize(request.cluster)} does not exist", hint)
        name = "stdin" if request.cluster == "-" else request.cluster
        return clusters.parse_cluster(clusters.read_file(request.cluster), name, levels)
    cluster = generate(request.cluster)
    if levels is None:
        return cluster
    if len(levels) != len(cluster.levels):
        has = f"{cluster.name} has {len(cluster.levels)}: {', '.join(cluster.levels) or 'none'}"
        raise UsageError(f"--levels {request.levels} has {format_count(len(levels), 'level')}, {has}")
    return replace(cluster, levels=clusters.parse_levels(levels, "--levels"))


def _make_task(request: PlanRequest, cluster: clusters.ClusterSpec) -> _Task:
    texts = {**cluster.options, **request.options}
    try:
        key = "mesh"
        mesh = meshes.parse(texts[key]) if key in texts else meshes.DEFAULT_MESH
        key = "nnodes"
        bounds = Value(BY_NAME[key], texts.get(key, "1:"), f"--{key}")
        nodes_min, nodes_max = parse_node_range(bounds)
    except UsageError as error:
        where = "" if key in request.options else f"{cluster.name}: "
        hint = "set --nnodes N or --nnodes MIN:MAX" if key == "nnodes" else error.hint
        raise UsageError(f"{where}{error}", hint) from None
    limits, costs = parse_limits_and_costs(
        texts, mesh, levels=cluster.levels, nodes_min=nodes_min, nodes_max=nodes_max,
        variables={key: cluster.name for key in cluster.options if key not in request.options},
    )  # fmt: skip
    return _Task(mesh, limits, costs)


def _read_previous(request: PlanRequest, cluster: clusters.ClusterSpec, mesh: Mesh) -> Plan | None:
    if request.previous is not None:
        name = f"--previous {request.previous}"
        found: Plan | None = clusters.parse_previous_plan(clusters.read_file(request.previous), name)
    else:
        name, found = cluster.name, cluster.previous
    if found is not None:
        clusters.require_same_mesh(found, mesh, name)
    return found


def _format_text(request: PlanRequest, cluster: clusters.ClusterSpec, task: _Task, answer: PlanAnswer) -> str:
    """`cluster`: after the change."""
    plan = answer.plan
    parts = [render.format_world(plan, cluster.nodes, task.mesh, cluster.levels)]
    if answer.before is not None:
        parts.append(render.format_moves(plan, list_moves(answer.before, plan, task.mesh)))
    parts.append(render.format_warnings(answer.warnings))
    explanation = explain(plan, cluster.nodes, *task)
    parts += ["\n", render.format_cost(plan, explanation)]
    if plan.step_time is not None:
        parts += ["\n", render.format_time(plan.step_time, explanation)]
    if request.with_ranks or (request.with_ranks is None and len(cluster.nodes) < RANKS_NODES):
        rows = render.list_node_rows(plan, answer.change.nodes, cluster.levels, answer.change.remarks)
        parts += ["\n", render.format_table(rows, in_columns=not request.with_ranks)]
    return "".join(parts).removesuffix("\n")


def _write_pictures(request: PlanRequest, cluster: clusters.ClusterSpec, task: _Task, answer: PlanAnswer) -> int:
    """Write the requested files, and say so; a failure is reported, and does not stop the other."""
    code = 0
    plan = replace(answer.plan, reasons=(*answer.plan.reasons, *answer.warnings))
    drawn = (plan, task.mesh, cluster.levels, answer.change)
    for form, what, path in (("svg", "picture", request.svg), ("html", "page", request.html)):
        if path is None:
            continue
        draw = extensions.load_entry(extensions.PICTURES[form])
        text = draw(*drawn, explain(plan, cluster.nodes, *task)) if form == "html" else draw(*drawn)
        try:
            write_file(path, text)
        except LauncherError as error:
            _report(error)
            code = EXIT_USAGE
        else:
            write_stderr(f"{PROGRAM}: the {what} is in {path}")
    return code


def require_writable(path: str) -> None:
    """Raise UsageError if no file of this name can be written, as far as that is known without writing it."""
    with _explain_faults(path):
        target, is_replaced = _resolve_target(path)
        if is_replaced:  # permissions alone do not tell: the file system may be read-only, or have a quota
            with contextlib.suppress(InterruptedError), replacing(target):
                raise InterruptedError  # leaves the old file
        elif not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_file(path: str, text: str) -> None:
    """Write `text` to a file, replacing its content. Raises UsageError.

    The file gets its name only when all of it is on the disk, so a full disk leaves the old one unchanged.
    """
    with _explain_faults(path):
        target, is_replaced = _resolve_target(path)
        with replacing(target) if is_replaced else open(target, "wb") as file:
            file.write(text.encode(errors="backslashreplace"))
            file.flush()
            if is_replaced:
                os.fsync(file.fileno())  # some disks report only now that they are full


def _resolve_target(path: str) -> tuple[str, bool]:
    """Return where to write, and whether that is a file, which is replaced; else it is a device or a pipe.

    Raises UsageError and OSError.
    """
    if path in ("", "-"):
        raise UsageError(f"{path!r} is not the name of a file", "set the name of a file: stdout has the answer")
    target = os.path.realpath(path)  # a link stays a link
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return target, os.path.isfile(target) or not os.path.exists(target)


@contextlib.contextmanager
def _explain_faults(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        number = error.errno if isinstance(error, OSError) else None
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot write {path!r}: {why}", find_shortage_hint(number)) from None


def _report(error: LauncherError) -> None:
    write_stderr(f"{PROGRAM}: error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""))
