"""Writes reference/options.md from launcher/config/options/table.py, as the command's help shows the same rows.

`python docs/options.py > docs/reference/options.md` after a change (`make docs` does it); a test compares.
"""

from __future__ import annotations

import sys

from launcher.config.help import GROUPS, INTRO, USAGE
from launcher.config.options.readers import Option
from launcher.config.options.table import SETTINGS, TABLE

HEAD = f"""\
# Options

<!-- Made from launcher/config/options/table.py by `python docs/options.py`; a test keeps it in step. -->

`meshrun {USAGE}`

{INTRO}
"""
SETTINGS_HEAD = """\

## Settings by variable

These rarely change and have no option. They are checked like options; `meshctl doctor --json` shows each value.

| variable | default | |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    sections = [
        f"\n## {title}\n\n| option | default | variables | |\n|---|---|---|---|\n{rows(group)}"
        for group, title in GROUPS.items()
    ]
    settings = "".join(
        f"| `{row.flag}`{metavar(row)} | {escaped(row.default)} | {escaped(row.help)} |\n" for row in SETTINGS
    )
    return "".join((HEAD, *sections, SETTINGS_HEAD, settings))


def rows(group: str) -> str:
    """A line of the table for each option of a group."""
    lines = []
    for option in TABLE:
        if option.group == group:
            typed = " or ".join(f"`{spelling}`" for spelling in option.spellings) + metavar(option)
            variables = ", ".join(f"`{variable}`" for variable in option.variables)
            lines.append(f"| {typed} | {escaped(option.default)} | {variables} | {escaped(option.help)} |\n")
    return "".join(lines)


def metavar(option: Option) -> str:
    """How its value is written; Markdown parsers treat a | inside a cell differently."""
    return f" `{' or '.join(option.metavar.split('|'))}`" if option.metavar else ""


def escaped(text: str) -> str:
    """Text for a cell."""
    return text.replace("*", "\\*")


if __name__ == "__main__":
    sys.stdout.write(page())
