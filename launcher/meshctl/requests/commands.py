"""The commands of `meshctl` that show a running job or send it a request, defined with click.

All of them find the store as meshrun does: by the same options, variables and files.
"""

from __future__ import annotations

import getpass
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from launcher.config.options.table import BY_NAME
from launcher.meshctl.requests import clean
from launcher.meshctl.requests.session import StoreSession, open_session
from launcher.meshctl.requests.submit import JobHandle, WaitPolicy, submit_request
from launcher.meshctl.status import command as status
from launcher.model.console import write_stderr, write_stdout
from launcher.model.errors import UsageError
from rendezvous.records import Command

_Function = TypeVar("_Function", bound=Callable[..., Any])
_STORE_OPTIONS = {
    "rdzv-endpoint": ("HOST[:PORT],...", "The store; etcds:// in front for TLS."),
    "rdzv-backend": ("etcd|c10d", "c10d: a store that an agent of the run serves. Default: etcd."),
    "rdzv-prefix": ("PREFIX", f"Where in the store the runs lie. Default: {BY_NAME['rdzv-prefix'].default}."),
    "rdzv-conf": ("KEY=VALUE,...", "Certificates, user and password_file, as for meshrun."),
}
TIMEOUT_S = 30.0


def add_to(group: click.Group) -> None:
    """Add every command of this module to the group."""
    for command in (_status, _stop, _drain, _undrain, _takeover, _clean):
        group.add_command(command)


def _add_store_options(function: _Function) -> _Function:
    """The options that name the store, as one argument `store`: option -> text."""

    def call_with_store(**given: Any) -> Any:
        values = {name: text for name in _STORE_OPTIONS if (text := given.pop(name.replace("-", "_"))) is not None}
        return function(store=values, **given)

    call_with_store.__doc__ = function.__doc__
    for name, (metavar, help) in reversed(_STORE_OPTIONS.items()):
        flag, variable = BY_NAME[name].flag, BY_NAME[name].variables[0]
        call_with_store = click.option(flag, metavar=metavar, help=f"{help} [{variable}]")(call_with_store)
    return call_with_store  # type: ignore[return-value]


_timeout_option = click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), default=TIMEOUT_S, show_default=True, metavar="SECONDS",
    help="How long to wait for it to happen.",
)  # fmt: skip


@click.command("status", short_help="Show a run: its round, its nodes, and how it came to this.")
@click.argument("run_id")
@click.option("--watch", is_flag=True, help="Go on until the job ends: redrawn in a terminal, else a line per change.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs; with --watch one per change.")
@click.option("--nodes", "all_nodes", is_flag=True, help="A line for every node, however many there are.")
@_add_store_options
def _status(store: Mapping[str, str], run_id: str, watch: bool, as_json: bool, all_nodes: bool) -> int:
    """Show a run: its round, its nodes, and how it came to this.

    RUN_ID is what meshrun calls --rdzv-id. Only reads; the agents notice nothing of it.
    """
    with _open_session(store, run_id) as opened:
        return status.run(opened, run_id, watch=watch, as_json=as_json, all_nodes=all_nodes)


@click.command("stop", short_help="Stop a run on all nodes.")
@click.argument("run_id")
@_timeout_option
@_add_store_options
def _stop(store: Mapping[str, str], run_id: str, timeout_s: float) -> int:
    """Stop a run on all nodes.

    Workers get the stop signal and the full grace, and every agent ends with exit code 143.
    """
    return _submit_request("stop", store, run_id, timeout_s)


@click.command("drain", short_help="Take a node out of a run, and keep it out.")
@click.argument("run_id")
@click.argument("node")
@click.option("--absent", is_flag=True, help="NODE need not be there: it may not join.")
@_timeout_option
@_add_store_options
def _drain(store: Mapping[str, str], run_id: str, node: str, absent: bool, timeout_s: float) -> int:
    """Take a node out of a run, and keep it out until undrain.

    Workers get the stop signal and the full grace, then the others go on without the node. NODE is its name, or its
    member id where two nodes have one name.
    """
    return _submit_request("drain", store, run_id, timeout_s, node, may_be_absent=absent)


@click.command("undrain", short_help="Let a drained node join again.")
@click.argument("run_id")
@click.argument("node")
@_timeout_option
@_add_store_options
def _undrain(store: Mapping[str, str], run_id: str, node: str, timeout_s: float) -> int:
    """Let a drained node join again. Its agent has to be started anew if it has ended."""
    return _submit_request("undrain", store, run_id, timeout_s, node)


@click.command("takeover", short_help="Let newcomers lead a run whose nodes are all lost.")
@click.argument("run_id")
@_timeout_option
@_add_store_options
def _takeover(store: Mapping[str, str], run_id: str, timeout_s: float) -> int:
    """Let newcomers lead a run whose nodes are all lost.

    After an outage of the store only those lead who were in the last round: they may still be training, unseen. If
    they are gone for good, newcomers wait for a long time to be sure. This says that it is so. Two worlds may train at
    once if it is not.
    """
    return _submit_request("takeover", store, run_id, timeout_s)


@click.command("clean", short_help="Remove what finished jobs have left in the store.")
@click.argument("run_id", required=False)
@click.option("--all", "every", is_flag=True, help="Of all runs under the prefix.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--insist", is_flag=True, help="Also a job of RUN_ID without a verdict and without members.")
@_add_store_options
def _clean(store: Mapping[str, str], run_id: str | None, every: bool, dry_run: bool, insist: bool) -> int:
    """Remove what finished jobs have left in the store.

    A job with a living member is never touched.
    """
    if (run_id is None) != every:
        raise UsageError("name a run, or give --all", "meshctl clean RUN_ID, or meshctl clean --all")
    if insist and every:
        raise UsageError("--insist is for one run, not for all of them")
    with _open_session(store, run_id) as opened:
        return clean.run(opened, run_id, dry_run=dry_run, insist=insist)


def _submit_request(
    kind: str, store: Mapping[str, str], run_id: str, timeout_s: float, target: str = "", *, may_be_absent: bool = False
) -> int:
    with _open_session(store, run_id) as opened:
        job = JobHandle(opened.store, opened.prefix, run_id, opened.secret)
        command = Command(kind=kind, target=target, by=_describe_user())
        waiting = WaitPolicy(time.monotonic, time.sleep, timeout_s)
        write_stdout(submit_request(job, command, secrets.token_hex(8), waiting, may_be_absent=may_be_absent))
    return 0


def _describe_user() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"


@contextmanager
def _open_session(store: Mapping[str, str], run_id: str | None) -> Iterator[StoreSession]:
    """Open the store that the options name, for the duration of a command, and log its remarks."""
    found = open_session(store, run_id, os.environ)
    try:
        for note in found.notes:
            write_stderr(f"meshctl: {note}")
        yield found
    finally:
        found.store.close()
