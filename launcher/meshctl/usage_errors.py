"""Errors of click in the words of this project: one sentence, and a hint that says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import click

from launcher import extensions
from launcher.config.options.table import find_row
from launcher.meshctl.group import ExtraArgumentError, meshctl
from launcher.model import odd_text
from launcher.model.errors import UsageError, sanitize
from launcher.model.text import format_list
from launcher.views.questions.local_socket import list_local_agents


def explain(error: Exception, words: Sequence[str]) -> Exception:
    """Return the same error in our words. A word that shows what is wrong gives the hint of an error without one.

    click's errors have none of their own: there it is the word that click names.
    """
    if isinstance(error, click.ClickException):
        found = _translate(error, words)
        texts = [word.partition("=")[2] if word.startswith("--") else word for word in words]
        words = [text for text in texts if text and (text in error.message or repr(text) in error.message)]
    elif isinstance(error, UsageError) and not error.hint:
        found = error
    else:
        return error
    cause = next(filter(None, map(odd_text.explain, words)), "")
    return UsageError(str(found), cause) if cause else found


def _translate(error: click.ClickException, words: Sequence[str]) -> UsageError:
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption) and context is not None:
        flag = error.option_name
        if not flag.startswith("--"):  # click has split -json into letters
            flag = next(word for word in words if word.startswith(flag))
        hint = f"use {context.command_path} -h to list {'its options' if context.parent else 'the commands'}"
        return UsageError(f"unknown option {sanitize(flag)}", _find_option_hint(flag, context) or hint)
    if isinstance(error, click.MissingParameter) and error.param is not None and context is not None:
        name = error.param.human_readable_name if isinstance(error.param, click.Argument) else error.param.opts[0]
        hint = f"write {_show_usage(context)}"
        if name == "RUN_ID" and (runs := sorted({agent.run_id for agent in list_local_agents()})):
            hint += f"; runs of this machine: {format_list(runs, 4)}"
        return UsageError(f"{context.command_path} needs {name}", hint)
    if isinstance(error, ExtraArgumentError) and context is not None:
        return UsageError(f"unexpected argument {sanitize(error.message)}", _explain_extra(error.message, context))
    if isinstance(error, click.BadOptionUsage):
        return UsageError(f"{error.option_name} takes no value", f"write {error.option_name} alone")
    return UsageError(sanitize(error.format_message()))


def _show_usage(context: click.Context) -> str:
    """Return how the command is written, with the arguments that it was given."""
    parts = [context.command_path]
    for one in context.command.params:
        if isinstance(one, click.Argument):
            parts.append(sanitize(str(context.params.get(str(one.name)) or one.human_readable_name)))
        elif one.required:
            parts.append(f"{one.opts[0]} {one.metavar}")
    return " ".join(parts)


def _explain_extra(extra: str, context: click.Context) -> str:
    """Return the next step for arguments beyond those that the command takes."""
    words = [str(context.params.get("run_id")), *extra.split(" ")]
    flags = [flag for one in context.command.params for flag in one.opts]
    if "=" in words[1] and "--mesh" in flags:
        mesh = context.params.get("mesh")
        return f"separate axes with commas: --mesh {sanitize(','.join(filter(None, (mesh, *words[1:]))))}"
    if words[1].isdecimal() and "--rank" in flags:
        return f"write --rank {words[1]}"
    for kind, name in pairwise(words):
        if kind in ("rank", "node"):
            return f"{'write --' if f'--{kind}' in flags else 'omit '}{kind} {sanitize(name)}"
        if kind in ("run", "job"):
            return f"omit {kind}: {context.command_path} {sanitize(name)}"
    return f"write {_show_usage(context)}, and repeat the command for others"


def _find_option_hint(spelling: str, context: click.Context) -> str:
    command = context.command
    known = {name: one for name in meshctl.list_commands(context) if (one := meshctl.get_command(context, name))}
    others = {flag: name for name, one in reversed(known.items()) for param in one.params for flag in param.opts}
    flags = [flag for param in command.params for flag in param.opts if flag.startswith("-")]
    if explained := extensions.ask("command option", spelling, _show_usage(context), flags, others):
        return str(explained)
    if option := find_row(spelling.lstrip("-").partition("=")[0].replace("_", "-")):
        if command.name == "doctor":
            return f"put options of meshrun after --: meshctl doctor -- {option.flag} {option.metavar}".rstrip()
        return f"omit it: {option.flag} is an option of meshrun"
    return ""
