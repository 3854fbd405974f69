"""Writes reference/options.md from launcher/config/options/table.py, as the command's help shows the same rows.

`python docs/options.py > docs/reference/options.md` after a change (`make docs` does it); a test compares.
"""

from __future__ import annotations

import sys

from launcher.config.help import GROUPS, INTRO, USAGE
from launcher.config.options.readers import Option
from launcher.config.options.table import SETTINGS, list_options

HEAD = f"""\
# Options

<!-- Made from launcher/config/options/table.py by `python docs/options.py`; a test keeps it in step. -->

`meshrun {USAGE}`

{INTRO}

`meshrun -h` shows the options that most jobs need and the names of the option groups. `meshrun -h GROUP` shows one
group, and `-h` with the name of an option shows its group. `meshrun --help` shows all options, on a terminal through
`$PAGER`. Shells can [complete options](../start/installation.md#completion-in-a-shell).
"""
SETTINGS_HEAD = """\

## Settings by variable

These settings rarely need a change and have no option. Their values are checked like the values of options.
An empty variable counts as unset.

| variable | default | |
|---|---|---|
"""

TYPOS = """\

## Warnings about typos

meshrun warns, but still starts the job, if the name of a variable resembles one that meshrun reads, or if an option of
meshrun follows the script and is therefore passed to it.

```python title="hello.py"
print("hello")
```

```console
$ LAUNCHER_NPROC_PER_NDOE=2 meshrun hello.py --nproc-per-node 2
meshrun: unknown variable LAUNCHER_NPROC_PER_NDOE: did you mean LAUNCHER_NPROC_PER_NODE?
meshrun: --nproc-per-node is passed to hello.py: put options of meshrun before the script
...
hello
```
"""


def page() -> str:
    """The whole page."""
    sections = [
        f"\n## {title}\n\n| option | default | |\n|---|---|---|\n{rows(group)}" for group, title in GROUPS.items()
    ]
    settings = "".join(
        f"| `{row.flag}`{metavar(row)} | {escaped(row.default)} | {escaped(row.help)} |\n" for row in SETTINGS
    )
    return "".join((HEAD, *sections, SETTINGS_HEAD, settings, TYPOS))


def rows(group: str) -> str:
    """A line of the table for each option of a group."""
    lines = []
    for option in list_options():
        if option.group == group:
            # Dashes and underscores are equivalent, as the page says once.
            spellings = [one for one in option.spellings if one.replace("_", "-") == one or one[:2] != "--"]
            typed = " or ".join(f"`{spelling}`" for spelling in spellings) + metavar(option)
            variables = ", ".join(f"`{variable}`" for variable in option.variables)
            below = f"<br><small>{variables}</small>" if variables else ""
            lines.append(f"| {typed} | {escaped(option.default)} | {escaped(option.help)}{below} |\n")
    return "".join(lines)


def metavar(option: Option) -> str:
    """How its value is written; Markdown parsers treat a | inside a cell differently."""
    return f" `{' or '.join(option.metavar.split('|'))}`" if option.metavar else ""


def escaped(text: str) -> str:
    """Text for a cell."""
    return text.replace("*", "\\*")


if __name__ == "__main__":
    sys.stdout.write(page())
