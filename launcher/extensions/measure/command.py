"""The command line of `meshctl measure`. `measurement` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from launcher.meshctl.group import TIMEOUT_S, job_command


@job_command("Measure the network's tree and the rates of its links.")
@click.option(
    "--nnodes", "node_count", type=click.IntRange(2), required=True, metavar="N", help="Number of nodes that take part."
)
@click.option(
    "--levels", default="spine,leaf", show_default=True, metavar="LEVEL,...",
    help="Names of the levels to look for, outermost first.",
)  # fmt: skip
@click.option(
    "--output", metavar="FILE", help="File to which the coordinator writes all locations, for --locality @FILE."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@click.option("--insist", is_flag=True, help="Measure even if a job is running here; this slows the job down.")
@click.option(
    "--timeout", "wait_s", type=click.FloatRange(0), default=TIMEOUT_S, show_default=True, metavar="SECONDS",
    help="Time limit for all nodes to join.",
)  # fmt: skip
@click.option("--node-name", metavar="NAME", help="Name of this node.")
@click.option("--local-addr", metavar="ADDRESS", help="Address at which other nodes reach this one.")
@click.option("--interface", metavar="NAME", help="Network interface whose address other nodes use to reach this one.")
@click.option("--locality", metavar="LEVEL=DOMAIN,...|@FILE", help="Network location of this node, to be checked.")
@click.option(
    "--locality-sources", metavar="auto|none|NAME,...", help="Sources of the network location, as for meshrun."
)
def measure(store: Mapping[str, str], run_id: str, **given: Any) -> int:
    """Measure the tree of the network between nodes and the rates of its links.

    Run it on all nodes at once, for example with srun or pdsh. It loads the network for seconds: every node sends to
    another one as fast as it can, while all nodes measure small echoes. If the places of nodes are known, it checks
    them. The exit code is 1 if the tree cannot be determined.
    """
    from launcher.extensions.measure.measurement import MeasureRequest, run

    own = {name: given.pop(name) for name in MeasureRequest.__struct_fields__ if name in given}
    options = {name.replace("_", "-"): text for name, text in given.items() if text is not None}
    return run(MeasureRequest(run_id=run_id, options={**store, **options}, **own))
