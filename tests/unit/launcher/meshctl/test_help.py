"""What every command of meshctl says of itself."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from launcher.meshctl import commands, view_commands  # noqa: F401 - they add their commands to the group
from launcher.meshctl.group import SECTIONS, meshctl
from tests.unit.docs.test_prose import ODD, list_sentences

HELP = ["-h", "--help"]
NAMES = [name for names in SECTIONS.values() for name in names]


def get_help(name: str) -> str:
    command = meshctl.get_command(click.Context(meshctl), name)
    assert command is not None
    context = click.Context(command, info_name=f"meshctl {name}", terminal_width=80, max_content_width=80)
    context.help_option_names = HELP
    return command.get_help(context)


@pytest.mark.parametrize("name", NAMES)
def test_the_help_has_examples_that_the_command_takes(name: str) -> None:
    examples = re.findall(rf"^    (?:srun )?(meshctl {name}\b.*)$", get_help(name), re.MULTILINE)
    assert examples
    command = meshctl.get_command(click.Context(meshctl), name)
    assert command is not None
    for example in examples:
        words = shlex.split(re.split(r" [|>] ", example)[0])
        command.make_context(name, words[2:], parent=click.Context(meshctl, help_option_names=HELP))


@pytest.mark.parametrize("name", NAMES)
def test_the_help_fits_a_terminal_and_is_plain_english(name: str) -> None:
    lines = get_help(name).splitlines()
    assert not [line for line in lines if len(line) > 80]
    sentences = list_sentences(re.sub(r"\n +", " ", get_help(name)))
    assert not [sentence for sentence in sentences if ODD.search(sentence)]
