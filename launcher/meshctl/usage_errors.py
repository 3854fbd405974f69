"""Errors of click in the words of this project: one sentence, and a hint that says what to do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import click

from launcher.config.options.command_line import find_option
from launcher.model import odd_text
from launcher.model.errors import UsageError, sanitize, suggest


def explain(error: Exception, words: Sequence[str]) -> Exception:
    """Return the same error in our words. A word that shows what is wrong gives the hint of an error without one.

    click's errors have none of their own: there it is the word that click names.
    """
    if isinstance(error, click.ClickException):
        found = _translate(error)
        texts = [word.partition("=")[2] if word.startswith("--") else word for word in words]
        words = [text for text in texts if text and (text in error.message or repr(text) in error.message)]
    elif isinstance(error, UsageError) and not error.hint:
        found = error
    else:
        return error
    cause = next(filter(None, map(odd_text.explain, words)), "")
    return UsageError(str(found), cause) if cause else found


def _translate(error: click.ClickException) -> UsageError:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "meshctl COMMAND"
    flag = sanitize(getattr(error, "option_name", ""))
    hint = f"use {path} -h to list {'the commands' if path == 'meshctl' else 'its options'}"
    if isinstance(error, click.NoSuchOption):
        return UsageError(f"unknown option {flag}", _find_option_hint(error) or hint)
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return UsageError(f"{path} needs {error.param.human_readable_name}", hint)
    if isinstance(error, click.BadOptionUsage):
        fault = "needs a value" if "requires" in error.message else "takes no value"
        return UsageError(f"{flag} {fault}", hint)
    if isinstance(error, click.BadParameter) and error.param is not None:
        name = error.param.opts[0] if isinstance(error.param, click.Option) else error.param.human_readable_name
        return UsageError(f"{name}: {_soften(error.message)}", hint)
    return UsageError(_soften(error.message), hint)


def _find_option_hint(error: click.NoSuchOption) -> str:
    if error.ctx is None:
        return ""
    command = error.ctx.command
    flags = [flag for one in command.params for flag in one.opts]
    if likely := suggest(error.option_name, {flag: flag for flag in flags}):
        return likely
    with suppress(UsageError):  # then it is none of meshrun's either
        option = find_option(error.option_name)
        if command.name == "doctor":
            return f"put options of meshrun after --: meshctl doctor -- {option.flag} {option.metavar}".rstrip()
    return ""


def _soften(message: str) -> str:
    """Return click's message as the part of a sentence."""
    message = (message[:1].lower() + message[1:]).removesuffix(".").replace("is not in the range x>=", "is less than ")
    return sanitize(" ".join(message.split()))
