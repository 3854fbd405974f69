"""What users of other launchers write out of habit, and what to write here.

A word in these tables is none of ours: it is looked up once it was refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from launcher.config.options.readers import Option
from launcher.extensions.hints.commands import COMMANDS, read_words
from launcher.model.errors import sanitize, suggest

_OPTIONS: Mapping[str, str] = {name: step for step, names, _ in read_words("options of meshrun") for name in names}
_OF_SCRIPTS = ("fsdp-", "deepspeed-", "megatron-", "zero-", "dynamo-", "parallelism-config-", "tpu-")


def explain_unknown(word: str, known: Mapping[str, str], settings: Mapping[str, Option]) -> tuple[str, str]:
    """Return the sentence and the hint for an unknown option. `known`: name to flag of all; `settings`: by name."""
    spelling = word.partition("=")[0]
    name = spelling.lstrip("-").replace("_", "-")
    if setting := settings.get(name):
        return f"unknown option {sanitize(spelling)}", f"set {setting.flag}"
    question = explain_option(spelling) or suggest(name, known)
    if not question and not spelling.startswith("--"):
        spelling = spelling[:2]  # what follows in -p1234 is a value
        question = explain_option(spelling)
    hint = question or "run meshrun -h for the options; options of the script go after its name"
    return f"unknown option {sanitize(spelling)}", hint


def explain_option(spelling: str) -> str:
    """Return the next step for an option of others, `spelling` with its dashes; "" if nobody has it."""
    name = spelling.lstrip("-").replace("_", "-")
    name = "deepspeed" if name.startswith(_OF_SCRIPTS) else name
    return _OPTIONS.get(name) or _OPTIONS.get(name.lower(), "")


def explain_command(word: str) -> str:
    """Return the next step for a word where a script belongs; "" for one that may be a misspelt script."""
    called, name = sanitize(word), word.rpartition("/")[2]
    if name.rstrip("0123456789.") == "python":  # a command in front of which meshrun was written
        return f"leave out {called}: meshrun starts it (or add --no-python)"
    for step, words, _ in read_words("words before a script"):
        if name in words:
            return step.format(word=called)
    if word in COMMANDS:
        return f"run meshctl {COMMANDS[word]}"
    if word.isdecimal():
        return f"leave out {word}, or set --nproc-per-node {word} for as many workers"
    if word.startswith("-"):
        return "write the name of the script before its options"
    if "://" in word:
        return "copy it to each node first: a script is a file"
    if "/" not in word and shutil.which(word) is not None:
        return f"add --no-python to run the program {called}"
    return ""
