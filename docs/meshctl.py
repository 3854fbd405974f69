"""Writes reference/meshctl.md: what every command of meshctl says of itself.

`python docs/meshctl.py > docs/reference/meshctl.md` after a change (`make docs` does it); a test compares.
"""

from __future__ import annotations

import sys

import click

from launcher.meshctl import commands, view_commands  # noqa: F401 - they add their commands to the group
from launcher.meshctl.group import SECTIONS, meshctl

HEAD = """\
# meshctl

<!-- Made from the help of meshctl by `python docs/meshctl.py`; a test keeps it in step. -->

Exit codes: 0 for success; 1 if a plan is impossible, or if a job would not start on this node; 2 for a command-line
error; 75 for a temporary error, after which the same command may work. For examples, see
[Status, stop and drain](../operate/running-jobs.md), [Placement](../concepts/placement.md) and
[Check a node](../operate/doctor.md).
"""
WIDTH = 80


def page() -> str:
    """The whole page."""
    names = [name for section in SECTIONS.values() for name in section]
    sections = [_section(find_command(name), f"meshctl {name}", f"## {name}\n\n") for name in names]
    return "\n".join((HEAD, _section(meshctl, "meshctl", ""), *sections))


def find_command(name: str) -> click.Command:
    """One of the group, which may have to be imported."""
    command = meshctl.get_command(click.Context(meshctl), name)
    assert command is not None, name
    return command


def _section(command: click.Command, path: str, heading: str) -> str:
    context = click.Context(command, info_name=path, terminal_width=WIDTH, max_content_width=WIDTH)
    context.help_option_names = ["-h", "--help"]
    return f"{heading}```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    sys.stdout.write(page())
