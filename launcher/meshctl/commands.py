"""The commands of `meshctl`, defined with click. There is no start-up budget, so it is plain click.

The planner imports numpy, and the doctor half of meshrun, so each is imported by its own command. Those that show a
running job or send it a request find the store as meshrun does: by the same options, variables and files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import click

from launcher.meshctl.group import (
    Choice,
    integer,
    job_command,
    log_dir_option,
    meshctl,
    meshrun_options,
    open_jobs,
    timeout_option,
)  # fmt: skip
from launcher.model.console import write_stderr, write_stdout
from launcher.model.errors import UsageError
from rendezvous.records import Command


@meshctl.command(short_help="Check what would stop or slow down a job on this node.")
@click.option(
    "--nodes", metavar="N", type=integer(0), help="Assume N nodes like this one. Default: as the options say."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with everything that was examined.")
@click.option("--report", metavar="FILE", help="Write a report for a bug to a new file, or to stdout for -.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF MESHRUN]")
def doctor(nodes: int | None, as_json: bool, report: str | None, words: tuple[str, ...]) -> int:
    """Check this node: what meshrun finds here, and what would stop or slow down a job.

    Prints a verdict, then warnings with remedies, then the given options and what was found. With --json also the value
    of every option and its origin, the frameworks, the location of this node, its limits and addresses. The exit code
    is 1 if something would stop a job.

    --report writes one file to attach to a bug: all of this, versions, control groups, variables, and the reports in
    the newest log directory. Secrets are removed as far as they can be recognised. The exit code is 0 once it is
    written.

    Options after -- are those of meshrun. Without --report the command writes nothing. It starts no worker.

    \b
    Examples:
      meshctl doctor
      meshctl doctor -- --nnodes 2 --rdzv-backend c10d --rdzv-endpoint n0 train.py
      meshctl doctor --report report.txt
    """
    from launcher.meshctl.doctor.examine import examine
    from launcher.meshctl.doctor.render import render_text

    if report is not None:
        if as_json:
            raise UsageError("--report cannot be combined with --json", "omit --json: the report contains its object")
        from launcher.meshctl.doctor.report import STDOUT, make_report

        written = make_report(report, words, os.environ, node_count=nodes)
        (write_stderr if report == STDOUT else write_stdout)(written)
        return 0
    found = examine(words, os.environ, node_count=nodes)
    write_stdout(json.dumps(found, indent=2) if as_json else render_text(found))
    return 0 if found["verdict"]["would_start"] else 1


@meshctl.command()
@click.argument("shell", metavar="bash|zsh|fish", type=Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell completion of meshctl.

    To load it in every session, add eval "$(meshctl completion bash)" to ~/.bashrc, the same with zsh to ~/.zshrc, or
    meshctl completion fish | source to fish's config.fish. For meshrun, use meshrun --completion.

    \b
    Examples:
      meshctl completion fish | source
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    write_stdout(made(meshctl, {}, "meshctl", "_MESHCTL_COMPLETE").source().rstrip())


@meshctl.command(short_help="Show which nodes would get which ranks, and the cost.")
@click.argument("cluster", required=False)
@meshrun_options("mesh", "nnodes", "elastic", "traffic", "level-costs", "rates", "unit", "within", "whole")
@click.option("--levels", metavar="LEVEL,...", help="Names of the levels of the nodes' paths, outermost first.")
@click.option("--previous", metavar="FILE", help="The previous plan, as printed by --json.")
@click.option("--lose", metavar="NODE,...", multiple=True, help="Nodes that are lost; may be repeated.")
@click.option(
    "--join", metavar="NODE[=PATH],...", multiple=True, help="Nodes that join, e.g. h40=p0/l3; may be repeated."
)
@click.option(
    "--ranks/--no-ranks", "with_ranks", default=None, help="Show every node. Default: in columns below 64 nodes."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@click.option("--svg", metavar="FILE", help="Write a picture of the plan, in SVG.")
@click.option("--html", metavar="FILE", help="Write the picture and the tables as a page for a browser.")
def plan(cluster: str | None, **given: Any) -> int:
    """Show which nodes would get which ranks, and the cost.

    CLUSTER is a file in JSON or YAML (- for stdin), or a generator:
    dgx:4x8x8 (4 leaves, 8 nodes in each, 8 GPUs in each; a further number in front for pods, then for zones),
    nvl72:8 (8 racks of 18 hosts with 4 GPUs), tpu:v5e-16:6 (6 slices). No GPU is needed, nothing is started.

    Without --mesh the grid is dp=*. With --lose or --join: which ranks would move then. Variables such as LAUNCHER_MESH
    are for jobs and have no effect here.

    \b
    Examples:
      meshctl plan dgx:4x8x8 --mesh pp=4,dp=*,tp=8
      meshctl plan dgx:4x8x8 --mesh pp=4,dp=*,tp=8 --lose h17
      meshctl plan cluster.json --json > plan.json
    """
    from launcher.meshctl.plan import command

    if cluster is None:
        raise UsageError("no cluster is given", "set a generator or a file: meshctl plan dgx:4x8x8")
    own = {key: given.pop(key) for key in command.PlanRequest.__struct_fields__ if key in given}
    options = {key.replace("_", "-"): text for key, text in given.items() if text}
    return command.run(command.PlanRequest(cluster=cluster, options=options, **own))


@job_command("Stop a run on all nodes.")
@timeout_option
def stop(store: Mapping[str, str], run_id: str, timeout_s: float) -> None:
    """Stop a run on all nodes.

    Workers get the stop signal and have --shutdown-timeout to exit. Every agent exits with code 143.

    On a machine of the run, its agent hands in the request, and RUN_ID may also be the pid of an agent or a script.
    Elsewhere, or if an option names a store, it is written to the store.

    \b
    Examples:
      meshctl stop exp-41
      meshctl stop exp-41 --rdzv-endpoint etcd0:2379
    """
    _submit_request("stop", store, run_id, timeout_s)


@job_command("Remove a node from a run and keep it out.")
@click.argument("node")
@click.option("--absent", is_flag=True, help="Drain NODE even if it is not in the run, so that it cannot join.")
@timeout_option
def drain(store: Mapping[str, str], run_id: str, node: str, absent: bool, timeout_s: float) -> None:
    """Remove a node from a run and keep it out until undrain.

    Workers get the stop signal and have --shutdown-timeout to save, then the job continues without the node. NODE is
    the name of the node, or its member id if two nodes have the same name.

    \b
    Examples:
      meshctl drain exp-41 node7
    """
    _submit_request("drain", store, run_id, timeout_s, node, may_be_absent=absent)


@job_command("Let a drained node join again.")
@click.argument("node")
@timeout_option
def undrain(store: Mapping[str, str], run_id: str, node: str, timeout_s: float) -> None:
    """Let a drained node join again. If its agent has exited, restart it.

    \b
    Examples:
      meshctl undrain exp-41 node7
    """
    _submit_request("undrain", store, run_id, timeout_s, node)


@job_command("Let new nodes take over a run whose nodes are all lost.")
@timeout_option
def takeover(store: Mapping[str, str], run_id: str, timeout_s: float) -> None:
    """Let new nodes take over a run whose nodes are all lost.

    After an outage of the store only nodes of the last round may lead, because they may still be training. If all of
    them are lost for good, new nodes wait for a long time to be sure. This command confirms that they are lost. Use it
    only if you are sure: otherwise two copies of the job can train at the same time.

    \b
    Examples:
      meshctl takeover exp-41
    """
    _submit_request("takeover", store, run_id, timeout_s)


@job_command("Show which rank a job waits for, and why.", needs_run=False)
@click.option("--stacks", is_flag=True, help="Show the Python stacks of all ranks instead, the rarest first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@log_dir_option
@timeout_option
def why(
    store: Mapping[str, str], run_id: str | None, stacks: bool, as_json: bool, log_dir: str | None, timeout_s: float
) -> None:
    """Show which rank a job waits for, and why. The job continues.

    On a machine of the job, no option is needed, and no RUN_ID if only one of your jobs runs there. RUN_ID may also be
    the pid of an agent on this machine. Elsewhere, the leader is asked through the store.

    --stacks groups equal stacks.

    \b
    Examples:
      meshctl why
      meshctl why exp-41 --stacks
    """
    if stacks and as_json:
        raise UsageError("--stacks cannot be combined with --json", "omit one of them")
    from launcher.meshctl import why
    from launcher.meshctl.live.source import open_source
    from rendezvous import codec

    with open_source(store, run_id, log_dir) as source:
        conclusion = why.ask(source, timeout_s)
    text = codec.encode(conclusion.answer).decode() if as_json else why.render(conclusion, stacks=stacks)
    write_stdout(text.rstrip())


@job_command("Remove the keys of finished jobs from the store.", needs_run=False)
@click.option("--all", "every", is_flag=True, help="Clean all runs under --rdzv-prefix.")
@click.option("--dry-run", is_flag=True, help="Print what would be removed, but remove nothing.")
@click.option("--insist", is_flag=True, help="Also remove a job of RUN_ID that has neither a verdict nor members.")
def clean(store: Mapping[str, str], run_id: str | None, every: bool, dry_run: bool, insist: bool) -> None:
    """Remove the keys of finished jobs from the store.

    A job with a live member is never removed.

    \b
    Examples:
      meshctl clean exp-41
      meshctl clean --all --dry-run
    """
    if (run_id is None) != every:
        raise UsageError("clean needs either RUN_ID or --all", "use meshctl clean RUN_ID, or meshctl clean --all")
    if insist and every:
        raise UsageError("--insist cannot be combined with --all", "use meshctl clean RUN_ID --insist")
    from launcher.meshctl import requests

    with open_jobs(store, run_id) as jobs:
        write_stdout(requests.clean(jobs, run_id, dry_run=dry_run, insist=insist))


def _submit_request(
    kind: str, store: Mapping[str, str], run_id: str, timeout_s: float, target: str = "", *, may_be_absent: bool = False
) -> None:
    from launcher.meshctl import requests
    from launcher.meshctl.live.source import name_user, open_control

    command = Command(kind=kind, target=target, by=name_user())
    with open_control(store, run_id) as control:
        write_stdout(requests.submit_request(control, command, timeout_s, may_be_absent=may_be_absent))
