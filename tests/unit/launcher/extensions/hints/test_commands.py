"""What users of other tools write after meshctl."""

from __future__ import annotations

import re

import click
import pytest

from launcher.extensions.hints.commands import COMMANDS, explain_command, explain_option, read_words
from launcher.meshctl import commands, view_commands  # noqa: F401 - they add their commands to the group
from launcher.meshctl.group import SECTIONS, meshctl

NAMES = [name for names in SECTIONS.values() for name in names]
FLAGS = {
    name: {flag for param in command.params for flag in param.opts}
    for name in NAMES
    if (command := meshctl.get_command(click.Context(meshctl), name)) is not None
}
SECTION_NAMES = ("instead of a command of meshctl", "other names of options of meshctl", "options of meshctl")


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (["kill", "exp-41"], "did you mean meshctl stop?"),
        (["Kill"], "did you mean meshctl stop?"),
        (["py-spy"], "did you mean meshctl why --stacks?"),
        (["submit", "train.py"], "run meshrun [options] SCRIPT on each node"),
        (["lgos"], "did you mean meshctl logs?"),
        (["help"], "run meshctl -h"),
        (["help", "stop"], "run meshctl stop -h"),
        (["help", "qqqq"], "run meshctl -h"),
        (["exp", "status"], "write the command first: meshctl status exp"),
        (["exp-41"], "write the command first: meshctl status exp-41"),
        (["qqqq"], "use meshctl -h to list the commands"),
    ],
)
def test_a_command_of_others_has_a_next_step(given: list[str], hint: str) -> None:
    assert explain_command(given, NAMES) == hint


@pytest.mark.parametrize(
    ("spelling", "usage", "hint"),
    [
        ("-o", "meshctl status RUN_ID", "did you mean --json?"),
        ("--Output", "meshctl status RUN_ID", ""),
        ("-n100", "meshctl logs RUN_ID", "did you mean --tail?"),
        ("-n1x", "meshctl logs RUN_ID", ""),
        ("--run_id=exp", "meshctl ps RUN_ID", "write the run without an option: meshctl ps RUN_ID"),
        ("--rdzv-id", "meshctl plan CLUSTER", ""),
        ("-f", "meshctl status RUN_ID", "follow a run with meshctl events -f, logs -f or top"),
        ("-f", "meshctl stop RUN_ID", "omit it: the command asks for no confirmation"),
        ("--stderr", "meshctl logs RUN_ID", "write --stream stderr"),
        ("--jsno", "meshctl status RUN_ID", "did you mean --json?"),
        ("--tail", "meshctl status RUN_ID", "put it after a command that has it: meshctl logs --tail"),
        ("-tail", "meshctl status RUN_ID", "put it after a command that has it: meshctl logs --tail"),
        ("--qqqq", "meshctl status RUN_ID", ""),
    ],
)
def test_an_option_of_others_has_a_next_step(spelling: str, usage: str, hint: str) -> None:
    assert explain_option(spelling, usage, FLAGS[usage.split()[1]], {"--tail": "logs"}) == hint


def test_the_words_are_none_of_ours_and_the_steps_are() -> None:
    assert {name.split()[0] for name in COMMANDS.values()} <= {*NAMES, "--version"}
    assert {name for name in COMMANDS if name in NAMES} == {name for name in NAMES if COMMANDS.get(name) == name}
    known = set().union(*FLAGS.values(), {"--version"})
    for own, words, _ in read_words("other names of options of meshctl"):
        assert own in known
        having = [name for name, flags in FLAGS.items() if own in flags]
        assert not [name for name in having if FLAGS[name] & {f"--{word}" for word in words}] or own in (
            "--json", "--timeout", "--rank", "--node", "--nodes", "--wide",
        )  # fmt: skip
    steps = [step for section in SECTION_NAMES for step, _, _ in read_words(section)]
    named = {name for step in steps for name in re.findall(r"meshctl ([a-z]+)", step)}
    assert named <= set(NAMES)


def test_each_section_of_the_words_is_read() -> None:
    assert all(read_words(section) for section in (*SECTION_NAMES, "commands of meshctl", "options of meshrun"))
    assert all(words for section in SECTION_NAMES for _, words, _ in read_words(section))
