"""The commands of `meshctl`, defined with click. There is no start-up budget, so it is plain click.

The planner imports numpy, and the doctor half of meshrun, so each is imported by its own command.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from launcher.meshctl.requests import commands as requests
from launcher.model.console import write_stdout
from launcher.model.errors import UsageError
from launcher.model.version import __version__

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PLAN_EXAMPLES = """\b
meshctl plan dgx:4x8x8 --mesh pp=4,dp=*,tp=8
meshctl plan dgx:4x8x8 --mesh pp=4,dp=*,tp=8 --lose h17
meshctl plan cluster.json --json > plan.json
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def meshctl() -> None:
    """Look at what meshrun sees and would do, and at jobs that run; ask something of them."""


@meshctl.command()
@click.option("--env", "rank", metavar="RANK", type=int, help="Show what the worker of this rank would get.")
@click.option("--nodes", metavar="N", type=int, help="As if there were so many nodes like this one.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF MESHRUN]")
def doctor(rank: int | None, nodes: int | None, as_json: bool, words: tuple[str, ...]) -> int:
    """Show what meshrun would work with here, and what would stop or hurt a job.

    Every option's value and where it comes from, the devices, the frameworks, where this node stands, its limits,
    addresses and store; then warnings, each with a remedy, and a verdict. The exit code is 1 if something would
    stop a job.

    Options after -- count as if meshrun had got them. Nothing is written, and no worker started.
    """
    from launcher.meshctl.doctor.document import examine
    from launcher.meshctl.doctor.examination import ExaminationRequest
    from launcher.meshctl.doctor.render import render_text

    found = examine(words, os.environ, ExaminationRequest(rank=rank, node_count=nodes))
    write_stdout(json.dumps(found, indent=2) if as_json else render_text(found))
    return 0 if found["verdict"]["would_start"] else 1


def _add_option(name: str, metavar: str, help: str) -> Callable[[_Function], _Function]:
    return click.option(f"--{name}", metavar=metavar, help=help)


@meshctl.command(short_help="Show who would get which ranks, and what it would cost.", epilog=_PLAN_EXAMPLES)
@click.argument("cluster", required=False)
@click.option("--cluster", "named", metavar="CLUSTER", help="The same, as an option.")
@_add_option("mesh", "AXIS=SIZE,...", "The grid of ranks, outermost axis first; one axis may be *. Default: dp=*.")
@_add_option("nnodes", "N|MIN:MAX", "How many nodes may be active.")
@_add_option("elastic", "MIN:MAX", "Sizes of the axis that is *; either end may be left out.")
@_add_option("dp-min", "N", "The least size of the axis that is *.")
@_add_option("dp-max", "N", "The largest size of the axis that is *.")
@_add_option("traffic", "AXIS=WEIGHT,...", "How much axes talk, e.g. tp=100,dp=10,pp=3; kinds: pp=3:line.")
@_add_option("level-costs", "LEVEL=COST,...", "What a hop costs that leaves a domain, e.g. pod=4,leaf=2,host=1.")
@click.option("--tolls", "level_costs", hidden=True)  # its name in earlier versions; the last of both counts
@_add_option("unit", "N", "Consecutive ranks that stay on one node.")
@_add_option("within", "AXIS=LEVEL,...", "Keep the groups of an axis inside a domain, e.g. tp=host.")
@_add_option("whole", "LEVEL[:HOSTS]", "Use domains of a level entirely or not at all, e.g. slice:4.")
@_add_option("move-cost", "COST", "Of a rank that moves. Default: moving all is worth 5 % of the plan.")
@click.option("--contiguous/--no-contiguous", default=None, help="Whether a node's ranks are consecutive.")
@click.option("--levels", metavar="LEVEL,...", help="Names of the levels of the nodes' paths, outermost first.")
@click.option("--previous", metavar="FILE", help="The plan before: an answer of --json.")
@click.option("--lose", metavar="NODE,...", default="", help="Nodes that are lost.")
@click.option("--join", metavar="NODE[=PATH],...", default="", help="Nodes that come, e.g. h40=p0/l3.")
@click.option("--ranks", "with_ranks", is_flag=True, help="Also the ranks of every node.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.option("--svg", metavar="FILE", help="Draw the plan into a file.")
@click.option("--html", metavar="FILE", help="The plan as a page for a browser.")
def plan(cluster: str | None, named: str | None, **given: Any) -> int:
    """Show who would get which ranks, and what it would cost.

    CLUSTER is a file in JSON or YAML (- for stdin), or a generator:
    dgx:4x8x8 (4 leaves, 8 nodes in each, 8 GPUs in each; a further number in front for pods, then for zones),
    nvl72:8 (8 racks of 18 hosts with 4 GPUs), tpu:v5e-16:6 (6 slices). No GPU is needed, nothing is started.

    With --lose or --join: what would happen next, and what would move. Variables
    such as LAUNCHER_MESH set options of a job, none of these.
    """
    from launcher.meshctl.plan import command

    if (cluster is None) == (named is None):
        amiss = "no cluster is given" if cluster is None else f"two clusters are given, {cluster} and {named}"
        raise UsageError(amiss, "meshctl plan dgx:4x8x8, or the name of a file")
    kept = ("levels", "previous", "lose", "join", "with_ranks", "as_json", "svg", "html")
    own = {key: given.pop(key) for key in kept}
    is_contiguous = given.pop("contiguous")
    wishes = {key.replace("_", "-"): text for key, text in given.items() if text}
    request = command.PlanRequest(cluster=cluster or named or "", options=wishes, is_contiguous=is_contiguous, **own)
    return command.run(request)


requests.add_to(meshctl)
