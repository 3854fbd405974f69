"""The command line of `meshctl measure`. `measurement` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from launcher.config.options.readers import parse_seconds
from launcher.meshctl.group import TIMEOUT_S, Reader, integer, job_command, meshrun_options


@job_command("Measure the network's tree and the rates of its links.")
@click.option(
    "--nnodes", "node_count", type=integer(2), required=True, metavar="N", help="Number of nodes that take part."
)
@click.option(
    "--levels", default="spine,leaf", show_default=True, metavar="LEVEL,...",
    help="Names of the levels to look for, outermost first.",
)  # fmt: skip
@click.option(
    "--output", metavar="FILE", help="File to which one node writes all nodes' locations, for --locality @FILE."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@click.option("--insist", is_flag=True, help="Measure even if a job is running here; this slows the job down.")
@click.option(
    "--timeout", "wait_s", type=Reader(parse_seconds), default=TIMEOUT_S, show_default=True, metavar="SECONDS",
    help="Time to wait for all nodes to join.",
)  # fmt: skip
@meshrun_options("node-name", "local-addr", "interface", "locality", "locality-sources")
def measure(store: Mapping[str, str], run_id: str, **given: Any) -> int:
    """Measure the tree of the network between nodes and the rates of its links.

    Run the command on all nodes at once, for example with srun or pdsh. It loads the network for a few seconds: every
    node sends to another node as fast as it can, while all nodes measure round-trip times. If the locations of the
    nodes are known, the command checks them. The exit code is 1 if the tree cannot be determined.

    \b
    Examples:
      srun meshctl measure tree-1 --nnodes 16 --rdzv-endpoint etcd0:2379
    """
    from launcher.extensions.measure.measurement import MeasureRequest, run

    own = {name: given.pop(name) for name in MeasureRequest.__struct_fields__ if name in given}
    options = {name.replace("_", "-"): text for name, text in given.items() if text is not None}
    return run(MeasureRequest(run_id=run_id, options={**store, **options}, **own))
