"""The help and the reference page, both generated from the table of options.

click formats the help; it is imported here and by `meshctl`, never before a worker starts. Every group fits a
screen of 24 lines and 80 columns, nothing depends on colour, and each option shows its variables and its default.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from launcher.config.options.readers import Option
from launcher.config.options.table import GROUPS, TABLE

if TYPE_CHECKING:
    from click import HelpFormatter

_USAGE = "[options] SCRIPT [arguments of the script]"
_INTRO = (
    "Starts SCRIPT in several worker processes and restarts all of them when one fails. torchrun's options keep "
    "their names: --log-dir, --log_dir and any unambiguous beginning are the same. The options of SCRIPT stand "
    "behind its name. A flag wins over its LAUNCHER_ variable, that over the PET_ variable, that over "
    "what a job controller such as Slurm says, that over the default; meshctl doctor shows which it was."
)


def render_help(topic: str = "") -> str:
    """Return the help as text: everything, or only the group called `topic`."""
    from click import HelpFormatter

    formatter = HelpFormatter(width=80)
    if not topic:
        formatter.write_usage("meshrun", _USAGE)
        formatter.write_paragraph()
        formatter.write_text(_INTRO)
    for group, title in GROUPS.items():
        if topic in ("", group):
            with formatter.section(f"{title} (-h {group})"):
                for option in _list_options(group):
                    _write_option(formatter, option)
    return formatter.getvalue().strip("\n")


def _write_option(formatter: HelpFormatter, option: Option) -> None:
    """Write the option as it is typed, then its effect and default, then its variables."""
    formatter.write_text(" ".join(filter(None, (f"{option.short}," * bool(option.short), option.flag, option.metavar))))
    what = option.help + f" [default: {option.default}]" * (bool(option.default) and option.takes_value)
    with formatter.indentation(), formatter.indentation():
        for line in filter(None, (what, ", ".join(option.variables))):
            formatter.write_text(line)


def _list_options(group: str) -> list[Option]:
    return [option for option in TABLE if option.group == group]


def render_reference() -> str:
    """Return the reference page of the documentation, in Markdown."""
    lines = [
        "# Options",
        "",
        "<!-- Made from launcher/config/options/table.py by `python -m launcher.config.help`; "
        "a test keeps it in step. -->",
        "",
        f"`meshrun {_USAGE}`",
        "",
        _INTRO,
    ]
    for group, title in GROUPS.items():
        lines += ["", f"## {title}", "", "| option | default | variables | |", "|---|---|---|---|"]
        for option in _list_options(group):
            typed = " or ".join(f"`{spelling}`" for spelling in option.spellings)
            if option.metavar:
                # Markdown parsers treat a | inside a cell differently.
                typed += f" `{option.metavar.replace('|', ' or ')}`"
            variables = ", ".join(f"`{variable}`" for variable in option.variables)
            lines.append(f"| {typed} | {_escape(option.default)} | {variables} | {_escape(option.help)} |")
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return text.replace("*", "\\*")


if __name__ == "__main__":
    sys.stdout.write(render_reference())
