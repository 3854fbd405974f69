"""What users of kubectl, Slurm, docker and ray write after meshctl, and what to write there.

The words are in words.txt. Each is neither a command of meshctl nor an option of the command that it was given to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

from launcher.model import odd_text
from launcher.model.errors import sanitize, suggest


def read_words(section: str) -> list[tuple[str, list[str], set[str]]]:
    """Return each line of a section of words.txt: what to do, the words, and with what they mean that ({}: always)."""
    with open(os.path.join(os.path.dirname(__file__), "words.txt")) as file:
        lines = file.read().partition(f"[{section}]\n")[2].partition("\n\n")[0].splitlines()
    parts = [re.split(" <- | @ ", f"{line} @ ")[:3] for line in lines]
    return [(step, names.split(), set(where.split())) for step, names, where in parts]


COMMANDS = {word: name for name, words, _ in read_words("commands of meshctl") for word in words}
"""A command, or what others call it -> the command."""


def explain_command(given: list[str], commands: Collection[str]) -> str:
    """Return the next step for an unknown command, the first of those `given`."""
    name, following = given[0], given[1] if len(given) > 1 else ""
    if name == "help":
        return f"run meshctl {following} -h" if following in commands else "run meshctl -h"
    if known := COMMANDS.get(name.lower()):
        return f"did you mean meshctl {known}?"
    steps = read_words("instead of a command of meshctl")
    if step := next((step for step, words, _ in steps if name.lower() in words), "") or suggest(
        name, {one: f"meshctl {one}" for one in commands}
    ):
        return step
    likely = following if following in commands else "status" if any(map(str.isdigit, name)) else ""  # after a run
    swapped = f"write the command first: meshctl {likely} {sanitize(name)}" if likely else ""
    return odd_text.explain(name) or swapped or "use meshctl -h to list the commands"


def explain_option(spelling: str, usage: str, flags: Collection[str], others: Mapping[str, str]) -> str:
    """Return the next step for an unknown option of a command that has `flags`; "" if none is known.

    `spelling`: the word, with its dashes. `usage`: the command with its arguments. `others`: each option of another
    command, and that command.
    """
    name = spelling.partition("=")[0].lstrip("-").replace("_", "-")
    flag = f"--{name}" if len(name) > 1 else spelling
    for called in (name, name[:1] if name[1:].isdigit() else ""):  # -n100 is -n with a value
        for own, words, _ in read_words("other names of options of meshctl"):
            if own in flags and called in words:
                return f"did you mean {own}?"
        for step, words, where in read_words("options of meshctl"):
            if called in words and (not where or where & {*usage.split()}):
                return step.format(usage=usage, name=called)
    if len(name) > 1 and (question := suggest(flag, {own: own for own in flags})):
        return question
    return f"put it after a command that has it: meshctl {others[flag]} {flag}" if flag in others else ""
