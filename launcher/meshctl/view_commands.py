"""The commands of `meshctl` that show a run and change nothing: status, ps, logs, events, top.

Those that show what workers do ask an agent of the run on this machine, by its socket, and need no options; elsewhere
the leader, through the store. Through either all nodes of the run answer. `status` reads the store's records itself. A
run that has ended is shown from its log directory, or as far as the store has it.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from launcher.meshctl.group import NUMBER_MAX, Choice, integer, job_command, log_dir_option, open_jobs
from launcher.model.console import write_stderr, write_stdout
from launcher.model.errors import EarlyExitError, TemporaryError, UsageError, sanitize
from launcher.model.text import format_list
from rendezvous.errors import EXIT_TEMPORARY, MeshrunError

if TYPE_CHECKING:
    from launcher.views.questions.local_socket import LocalAgent
    from launcher.views.run_view import RunView

_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
_follow_option = click.option("-f", "--follow", is_flag=True, help="Show new lines until the run ends.")


@job_command("Show a run, or list the runs if there are several.", needs_run=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for programs.")
@click.option("--nodes", "all_nodes", is_flag=True, help="Show one line per node, even for a large run.")
@log_dir_option
def status(store: Mapping[str, str], run_id: str | None, as_json: bool, all_nodes: bool, log_dir: str | None) -> None:
    """Show the round, the nodes and the past rounds of a run, or list all runs.

    RUN_ID is the --rdzv-id of the run. The command asks an agent of the run on this machine. Without such an agent, or
    if an option names a store, the command reads the store.

    Without RUN_ID, the command shows the run on this machine, if there is only one. Otherwise, or if an option names a
    store, the command lists your runs on this machine (for root, those of all users) and the runs in the store.

    To follow a run, use watch meshctl status RUN_ID, meshctl events -f or meshctl top.

    \b
    Examples:
      meshctl status
      meshctl status exp-41 --rdzv-endpoint etcd0:2379
    """
    from launcher.meshctl.live.source import LocalSource
    from launcher.meshctl.run_choice import choose_agent
    from launcher.meshctl.status import describe
    from launcher.views.questions.local_socket import find_local_agents

    if run_id is not None or log_dir:
        run = _read_run(store, run_id, log_dir)
    else:
        agents, silent = find_local_agents()
        agent = None
        if not store:
            with suppress(UsageError):  # there are several runs
                agent = choose_agent(agents, None)
        if agent is None:
            _list_runs(store, agents, silent, as_json=as_json)
            return
        run = LocalSource(agent).read_run()
    write_stdout(_encode(run) if as_json else describe(run, all_nodes=all_nodes))


def _read_run(store: Mapping[str, str], run_id: str | None, log_dir: str | None) -> RunView:
    """Ask an agent of this machine, unless an option names a store; else read what the store has, or what is left."""
    from launcher.meshctl.job_store import NAME_STORE, knows_store
    from launcher.meshctl.live.source import NoAgentError, open_source

    try:
        with open_source(store, run_id, log_dir, reads_records=True) as source:
            return source.read_run()
    except NoAgentError as missing:
        raise UsageError(f"{missing}, and no store is set", NAME_STORE) from None
    except TemporaryError as problem:  # of the agent
        if store or run_id is None or not knows_store(store, os.environ):
            raise
        _warn(f"{problem}; the store has:")
    with open_jobs(store, run_id) as jobs:
        return jobs.read_run(jobs.choose_run(run_id))


def _encode(run: RunView) -> str:
    from launcher.views.run_json import encode_run

    return json.dumps(encode_run(run), indent=2)


def _list_runs(store: Mapping[str, str], agents: Sequence[LocalAgent], silent: Sequence[str], *, as_json: bool) -> None:
    from launcher.meshctl.job_store import knows_store
    from launcher.meshctl.live import listing

    found = None
    try:
        if knows_store(store, os.environ):
            with open_jobs(store, None) as jobs:
                found = listing.list_runs(agents, jobs)
    except MeshrunError as error:
        if store:
            raise
        _warn(f"{error}; the runs of this machine follow")
    runs = listing.list_runs(agents, None) if found is None else found
    width = _get_width() if os.isatty(1) else 0
    text = listing.describe_runs(runs, has_store=found is not None, width=width)
    content = {"schema": listing.LIST_SCHEMA, "runs": [one.encode() for one in runs]}
    write_stdout(json.dumps(content, indent=2) if as_json else text)
    if silent:
        _warn(f"agents of this machine that do not answer: pid {format_list(silent, 4)}")


@job_command("Show the workers of a run: state, progress, CPU and memory.", needs_run=False)
@click.option("--wide", is_flag=True, help="Show all columns, even if the terminal is too narrow.")
@_json_option
@log_dir_option
def ps(store: Mapping[str, str], run_id: str | None, wide: bool, as_json: bool, log_dir: str | None) -> int:
    """Show the workers of a run on all nodes.

    cpu is in cores; progress is the time since the last step, heartbeat or output. All figures include child processes.
    The exit code is 75 if a node does not answer in time.

    \b
    Examples:
      meshctl ps
      meshctl ps exp-41 --json
    """
    from launcher.meshctl.live.ranks import describe_ranks
    from launcher.meshctl.live.source import open_source

    with open_source(store, run_id, log_dir) as source:
        run = source.read_run()
    width = 0 if wide or not os.isatty(1) else _get_width()
    write_stdout(_encode(run) if as_json else describe_ranks(run, width))
    return EXIT_TEMPORARY if run.silent else 0


@job_command("Show the output of all workers of a run in one stream.", needs_run=False)
@_follow_option
@click.option("--rank", type=integer(0), metavar="N", help="Show only this rank.")
@click.option("--node", default="", metavar="NAME", help="Show only this node.")
@click.option("--tail", default="10", show_default=True, metavar="N|all", help="Show the last N lines of each file.")
@click.option(
    "--stream", type=Choice(["stdout", "stderr", "both"]), metavar="stdout|stderr|both", default="both",
    show_default=True, help="Show only this stream.",
)  # fmt: skip
@click.option("--round", type=integer(1), metavar="N", help="Show this round instead of the latest.")
@log_dir_option
def logs(
    store: Mapping[str, str], run_id: str | None, follow: bool, node: str, tail: str, log_dir: str | None, **given: Any
) -> None:
    """Show the output of all workers of a run in one stream. Each line begins with its ranks, such as [0-3,6].

    The output must be in log files: start meshrun with --log-dir DIR and --redirects 3 or --tee 3. Control characters
    are escaped, and progress bars are shown in their last state. --follow also shows later rounds.

    \b
    Examples:
      meshctl logs -f --tail 100
      meshctl logs exp-41 --rank 3 --stream stderr
    """
    from launcher.meshctl.live.logs import ALL_LINES, LogView
    from launcher.meshctl.live.poller import NodePoller
    from launcher.meshctl.live.source import open_source
    from launcher.views.requests import ReadLogs

    if tail != "all" and not (tail.isdecimal() and len(tail) <= 18):
        raise UsageError(
            f"--tail must be a number of lines or all, not {sanitize(tail)}", "write for example --tail 100"
        )
    tail_lines = ALL_LINES if tail == "all" else min(int(tail), NUMBER_MAX)
    query = ReadLogs(tail_lines=tail_lines, **{name: value for name, value in given.items() if value is not None})
    with suppress(BrokenPipeError), open_source(store, run_id, log_dir) as source:  # the reader of the output may go
        LogView(NodePoller(source, _warn), query, _write_lines, node, follow).run()


@job_command("Show the events of a run on all nodes, in chronological order.", needs_run=False)
@_follow_option
@click.option("--json", "as_json", is_flag=True, help="Print events as lines of JSON, like meshrun --events.")
@log_dir_option
def events(store: Mapping[str, str], run_id: str | None, follow: bool, as_json: bool, log_dir: str | None) -> None:
    """Show the events of a run on all nodes, in chronological order: rounds, workers, failures, checkpoints.

    Each agent keeps its last 2,000 events; meshrun --events writes all of them to a file.

    \b
    Examples:
      meshctl events -f
      meshctl events exp-41 --json > events.jsonl
    """
    from launcher.meshctl.live.events import show_events
    from launcher.meshctl.live.poller import NodePoller
    from launcher.meshctl.live.source import open_source

    with suppress(BrokenPipeError), open_source(store, run_id, log_dir) as source:  # the reader of the output may go
        show_events(NodePoller(source, _warn), _write_lines, follow=follow, as_json=as_json)


@job_command("Watch a run in a full-screen view that updates itself.", needs_run=False)
def top(store: Mapping[str, str], run_id: str | None) -> None:
    """Watch a run in a full-screen view: its state, its ranks and its latest events.

    cpu is in cores; progress is the time since the last step, heartbeat or output. Press s to sort the ranks by rank,
    cpu, memory, progress or state, and q to quit.

    The command needs the package textual: pip install 'textual>=8'.

    \b
    Examples:
      meshctl top exp-41
    """
    from launcher.meshctl.live.source import open_source

    if not (os.isatty(0) and os.isatty(1)):
        raise UsageError("meshctl top needs a terminal", "use meshctl events -f, which prints a line for each event")
    try:
        import textual  # noqa: F401
    except ImportError:
        raise UsageError("meshctl top needs the package textual", "run pip install 'textual>=8'") from None
    from launcher.meshctl.live.top_screen import TopScreen

    with open_source(store, run_id) as source:
        TopScreen(source).run()


def _write_lines(lines: Iterable[str]) -> None:
    """Write lines to stdout.

    Raises BrokenPipeError when its reader has gone, also for no lines, and EarlyExitError for another failure.
    """
    data = memoryview("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))
    reader = select.poll()
    reader.register(1, 0)
    try:
        if any(state & (select.POLLERR | select.POLLHUP) for _, state in reader.poll(0)):
            raise BrokenPipeError
        while data:
            with suppress(BlockingIOError):  # another process has made it non-blocking
                data = data[os.write(1, data) :]
                continue
            select.select([], [1], [])
    except BrokenPipeError:
        raise
    except OSError as error:
        raise EarlyExitError(f"cannot write to stdout: {error.strerror}", 1) from None


def _warn(sentence: str) -> None:
    write_stderr(f"meshctl: {sentence}")


def _get_width() -> int:
    import shutil

    return shutil.get_terminal_size().columns
