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


@meshctl.command(short_help="Check this node for problems that would stop or slow down a job.")
@click.option("--nodes", metavar="N", type=integer(0), help="Assume N nodes like this one. [default: from --nnodes]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all results.")
@click.option("--report", metavar="FILE", help="Write a report for an issue to a new FILE, or to stdout (-).")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF MESHRUN]")
def doctor(nodes: int | None, as_json: bool, report: str | None, words: tuple[str, ...]) -> int:
    """Check this node for problems that would stop or slow down a job.

    Prints a verdict, warnings with remedies, the given options and the findings. --json adds every option's value and
    origin, the frameworks, and this node's location, limits and addresses. The exit code is 1 if something would stop a
    job.

    --report writes a file to attach to an issue, with all of the above, versions, control groups, variables, and the
    reports in the newest log directory. Secrets are removed as far as they can be recognised. The exit code is 0 once
    the file is written.

    Options after -- are options of meshrun. The command starts no worker, and writes no file without --report.

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
    """Print the shell completion script of meshctl.

    To load it in every session, add eval "$(meshctl completion bash)" to ~/.bashrc, eval "$(meshctl completion zsh)" to
    ~/.zshrc, or meshctl completion fish | source to config.fish. For meshrun, use meshrun --completion.

    \b
    Examples:
      meshctl completion fish | source
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    write_stdout(made(meshctl, {}, "meshctl", "_MESHCTL_COMPLETE").source().rstrip())


@meshctl.command(short_help="Show which ranks each node would get, and the cost.")
@click.argument("cluster", required=False)
@meshrun_options("mesh", "nnodes", "elastic", "traffic", "level-costs", "rates", "unit", "within", "whole")
@click.option("--levels", metavar="LEVEL,...", help="Names of the levels in the nodes' paths, outermost first.")
@click.option("--previous", metavar="FILE", help="File with the previous plan, as printed by --json.")
@click.option("--lose", metavar="NODE,...", multiple=True, help="Nodes that are lost; can be repeated.")
@click.option(
    "--join", metavar="NODE[=PATH],...", multiple=True, help="Nodes that join, such as h40=p0/l3; can be repeated."
)
@click.option(
    "--ranks/--no-ranks", "with_ranks", default=None, help="Show every node. [default: below 64 nodes, in columns]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@click.option("--svg", metavar="FILE", help="Write a picture of the plan as SVG.")
@click.option("--html", metavar="FILE", help="Write the picture and the tables as a web page.")
def plan(cluster: str | None, **given: Any) -> int:
    """Show which ranks each node would get, and the cost. The command needs no GPU and starts nothing.

    CLUSTER is a JSON or YAML file (- for stdin), or a generator: dgx:4x8x8 (4 leaves, each with 8 nodes of 8 GPUs;
    further numbers in front add pods and zones), nvl72:8 (8 racks of 18 hosts with 4 GPUs each), tpu:v5e-16:6 (6
    slices).

    Without --mesh, the grid is dp=*. --lose and --join also show which ranks would move. LAUNCHER_ variables have no
    effect.

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

    On a machine of the run, the command sends the request to an agent of the run; there, RUN_ID can also be the agent's
    pid or script. On other machines, or if an option names a store, the command writes the request to the store.

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

    Workers get the stop signal and have --shutdown-timeout to save. The job then continues without the node. NODE is
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
    """Let a drained node join again. If the agent of the node has exited, you must restart it.

    \b
    Examples:
      meshctl undrain exp-41 node7
    """
    _submit_request("undrain", store, run_id, timeout_s, node)


@job_command("Let new nodes take over a run whose nodes are all lost.")
@timeout_option
def takeover(store: Mapping[str, str], run_id: str, timeout_s: float) -> None:
    """Let new nodes take over a run whose nodes are all lost.

    After a store outage, only nodes of the last round can lead, because their workers may still be running. If all
    these nodes are lost, new nodes wait for a long time to be sure. This command confirms the loss and ends the wait.
    Use it only if you are sure: otherwise, two copies of the job may run at the same time.

    \b
    Examples:
      meshctl takeover exp-41
    """
    _submit_request("takeover", store, run_id, timeout_s)


@job_command("Show which rank a job is waiting for, and why.", needs_run=False)
@click.option("--stacks", is_flag=True, help="Show the Python stacks of all ranks instead, the rarest first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@log_dir_option
@timeout_option
def why(
    store: Mapping[str, str], run_id: str | None, stacks: bool, as_json: bool, log_dir: str | None, timeout_s: float
) -> None:
    """Show which rank a job is waiting for, and why. The job continues to run.

    On a machine of the job, the command needs no option, and no RUN_ID if only one of your jobs is running there;
    RUN_ID can also be the pid of an agent. On other machines, the command asks the leader through the store.

    --stacks groups ranks with identical stacks.

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
@click.option("--insist", is_flag=True, help="Also remove the job if it has neither a verdict nor members.")
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
