"""The group of meshctl's commands, and what those share that are about a run.

A command imports what it works with when it runs: most need neither the store nor the planner. Those of extensions are
imported themselves only when they are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import click

from launcher import extensions
from launcher.config.options.readers import Option, Value, parse_choice, parse_number, parse_seconds
from launcher.config.options.table import BY_NAME, SETTING_BY_NAME
from launcher.model.console import write_stderr, write_stdout
from launcher.model.errors import UsageError, sanitize

if TYPE_CHECKING:
    from launcher.meshctl.job_store import JobStore

Function = TypeVar("Function", bound=Callable[..., Any])
STORE_OPTIONS = {
    "rdzv-endpoint": ("HOST[:PORT],...", "Address of the store; for TLS, prefix it with etcds://."),
    "rdzv-backend": ("etcd|c10d", "Store: etcd, or hosted by an agent (c10d). [default: etcd]"),
    "rdzv-conf": ("KEY=VALUE,...", "Certificates, user and password_file, as in meshrun."),
}
TIMEOUT_S = "30"
NUMBER_MAX = 2**31
"""Of what is sent to an agent."""


SECTIONS = {
    "Inspect a run": ("status", "why", "ps", "logs", "events", "top", "serve"),
    "Control a run": ("stop", "drain", "undrain", "takeover", "clean"),
    "Prepare a job": ("doctor", "plan", "measure"),
    "Set up": ("completion",),
}
"""The commands, those of extensions too, as the help groups them; a test compares them with those that there are."""


class Reader(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A value that a reader of meshrun's options reads, so that both refuse it in the same words."""

    name = "value"

    def __init__(self, read: Callable[[Value], Any]) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        assert param is not None
        option = Option("ours", str(param.name), "", str(param.metavar), self._read, "", "")
        return Value(option, value, param.opts[0]).read()


def integer(low: int) -> Reader:
    """Return the type of an option that has a whole number; a larger one than can be meant is NUMBER_MAX."""
    return Reader(lambda value: min(parse_number(value, f" must be an integer >= {low}", low), NUMBER_MAX))


class Choice(click.Choice):  # type: ignore[type-arg]
    """One of some words, refused as meshrun refuses one; click completes them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return Reader(parse_choice).convert(value, param, ctx)


class ExtraArgumentError(click.UsageError):
    """More arguments than the command has; its message is the others."""


class Command(click.Command):
    """Takes no option for the value of another, as meshrun does, and no more arguments than it has."""

    allow_extra_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {flag: one for one in self.params for flag in one.opts}
        own = args[: args.index("--")] if "--" in args else args
        for word, following in pairwise([*own, "--"]):
            option = options.get(word)
            if isinstance(option, click.Option) and not option.is_flag and following in {*options, "--"}:
                raise UsageError(f"{word} needs a value", f"write {word} {option.metavar}")
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            raise ExtraArgumentError(" ".join(rest), ctx)
        return rest


class CommandGroup(click.Group):
    """Shows the commands by section, and explains unknown ones."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in extensions.COMMANDS and name not in self.commands:
            extensions.load_entry(extensions.COMMANDS[name])  # its decorator adds it
        return super().get_command(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for title, names in SECTIONS.items():
            commands = [(name, command) for name in names if (command := self.get_command(ctx, name))]
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", one.get_short_help_str(99)) for name, one in commands])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            likely: str = extensions.ask("command", args, self.list_commands(ctx))
            raise UsageError(f"unknown command {sanitize(name)}", likely)
        return super().resolve_command(ctx, args)


def _show_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        from launcher.views.version import describe_version

        write_stdout(f"meshctl {describe_version()}")
        context.exit()


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version,
    help="Show the version and the commit, and exit.",
)  # fmt: skip
def meshctl() -> None:
    """Show and control running jobs, check a node, and plan the placement of ranks.

    Use meshctl COMMAND -h to list the options of a command.
    """


def job_command(short_help: str, *, needs_run: bool = True) -> Callable[[Function], Function]:
    """Return the decorator of a command on a run; the options that name the store are its first argument, as texts."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call_with_store(**given: Any) -> Any:
            values = {one: text for one in STORE_OPTIONS if (text := given.pop(one.replace("-", "_"))) is not None}
            return function(values, **given)

        with_run = click.argument("run_id", required=needs_run)(call_with_store)
        command = meshctl.command(function.__name__, short_help=short_help)(with_run)
        for option_name, (metavar, help) in STORE_OPTIONS.items():
            option = BY_NAME[option_name]
            command.params.append(click.Option([option.flag], metavar=metavar, help=f"{help} [{option.variables[0]}]"))
        return function

    return decorate


def meshrun_options(*names: str) -> Callable[[Function], Function]:
    """Return the decorator that adds options which meshrun has too, as texts."""

    def decorate(function: Function) -> Function:
        for name in reversed(names):
            option = SETTING_BY_NAME.get(name) or BY_NAME[name]
            function = click.option(f"--{name}", metavar=option.metavar, help=option.help)(function)
        return function

    return decorate


timeout_option = click.option(
    "--timeout", "timeout_s", type=Reader(parse_seconds), default=TIMEOUT_S, show_default=True, metavar="SECONDS",
    help="Time to wait for the result.",
)  # fmt: skip


log_dir_option = click.option(
    "--log-dir", metavar="DIR",
    help=f"Log directory of a run that has ended, on one of its nodes. [{BY_NAME['log-dir'].variables[0]}]",
)  # fmt: skip


@contextmanager
def open_jobs(values: Mapping[str, str], run_id: str | None) -> Iterator[JobStore]:
    """Open the store that the options name, for the duration of a command, and log its remarks."""
    from launcher.meshctl.job_store import open_job_store

    jobs = open_job_store(values, run_id, os.environ)
    try:
        for note in jobs.notes:
            write_stderr(f"meshctl: {note}")
        yield jobs
    finally:
        jobs.store.close()
