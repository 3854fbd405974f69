"""The help, generated from the table of options.

`-h` is one screen: how the command is written, the options that most jobs need, and the names of the groups. `-h GROUP`
is a screen per group, and `--help` all of it, through a pager on a terminal.

click formats the help; it is imported here and by `meshctl`, never before a worker starts. A screen has 24 lines and
80 columns, nothing depends on colour, and each option shows its variables and its default.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from launcher.config.options.readers import Option
from launcher.config.options.table import BY_NAME, find_row, list_options
from launcher.model.console import write_stdout
from launcher.model.errors import UsageError, sanitize, suggest

if TYPE_CHECKING:
    from click import HelpFormatter

USAGE = "[options] SCRIPT [arguments of the script]"
INTRO = (
    "Starts SCRIPT in several worker processes. When one fails, all of them restart, at most --max-restarts times. "
    "torchrun's options keep their names; --log-dir, --log_dir and any unambiguous prefix are equivalent. Options "
    "after SCRIPT are passed to SCRIPT. An option's value comes from the first of: flag, LAUNCHER_ variable, PET_ "
    "variable, job controller such as Slurm, default. meshctl doctor --json shows each value and its origin."
)
_SETTINGS = (
    "A few settings have a LAUNCHER_ variable but no option: see docs/reference/options.md, Settings by variable."
)
_FIRST = "Starts SCRIPT in several workers. --max-restarts N restarts all if one fails."
# Option -> what the first screen says of it: shorter than its row in the table, which has all the forms of its value.
_COMMON = {
    "nproc-per-node": ("N", "workers on this node [default: one per GPU]"),
    "mesh": ("AXIS=SIZE,...", "grid of ranks, such as pp=4,dp=*,tp=8"),
    "nnodes": ("N|MIN:MAX", "number of nodes; extra nodes become spares"),
    "rdzv-backend": ("c10d|etcd", "store in which nodes meet: on one node, or etcd"),
    "rdzv-endpoint": ("HOST[:PORT]", "address of the store"),
    "rdzv-id": ("ID", "name of the run, the same on all nodes"),
    "max-restarts": ("N", "restarts after worker failures [default: 0]"),
    "log-dir": ("DIR", "directory for log files; --tee 3 writes them"),
    "preload": ("MODULE,...", "modules to import once, for fast restarts"),
}
# The groups of the help: the NAME of `-h NAME`, and its heading. Each fits a screen.
GROUPS = {
    "size": "Number of nodes and workers, and the mesh",
    "devices": "Devices of the workers",
    "placement": "Placement of ranks on nodes",
    "locality": "Network location of this node",
    "script": "The program that the workers run",
    "restarts": "Restarts after failures",
    "health": "Health checks and heartbeats",
    "hangs": "Hang detection",
    "shutdown": "Shutdown, preemption and lost nodes",
    "output": "Output of the workers",
    "events": "Events and notifications",
    "metrics": "Metrics and probes",
    "rendezvous": "Rendezvous of the nodes",
    "timeouts": "Waiting for nodes",
    "static": "Static rendezvous (fixed node ranks)",
    "addresses": "Addresses and ports",
    "legacy": "Deprecated and compatibility options",
    "help": "Help",
}
# Words that users of torchrun and others try after -h -> the group that they mean.
GROUP_WORDS = {
    **dict.fromkeys(("c10d", "etcd", "store", "join"), "rendezvous"),
    **dict.fromkeys(("network", "ports", "interface", "master"), "addresses"),
    **dict.fromkeys(("elastic", "nodes", "workers"), "size"),
    **dict.fromkeys(("logging", "logs", "log", "stdout", "stderr"), "output"),
    **dict.fromkeys(("timeout", "wait", "waiting"), "timeouts"),
    **dict.fromkeys(("signals", "signal", "preemption", "stop"), "shutdown"),
    **dict.fromkeys(("failures", "retries"), "restarts"),
    **dict.fromkeys(("gpu", "gpus", "numa"), "devices"),
    "topology": "locality",
}
_EXAMPLES = """\
  meshrun --nproc-per-node 8 train.py --lr 0.1
  meshrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node0:29400 train.py"""


def show(topic: str, *, is_whole: bool) -> None:
    """Print a group, the whole help, or the first screen. Raises UsageError for a group that does not exist."""
    text = render_group(topic) if topic else render_help() if is_whole else render_first_screen()
    if is_whole and not topic and sys.stdout is not None and sys.stdout.isatty():
        from click import echo_via_pager

        with suppress(OSError, ValueError):  # what $PAGER says cannot be run
            echo_via_pager(text)
            return
    write_stdout(text)


def render_first_screen() -> str:
    """Return what fits a screen: usage, the most used options, and the names of the groups."""
    formatter = _make_formatter()
    formatter.write_usage("meshrun", USAGE)
    formatter.write_paragraph()
    formatter.write_text(_FIRST)
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_dl([(f"{BY_NAME[name].flag} {metavar}", what) for name, (metavar, what) in _COMMON.items()])
    formatter.write_paragraph()
    formatter.write(f"{_EXAMPLES}\n")
    formatter.write_paragraph()
    formatter.write_text("All options: meshrun --help. Those of one group: meshrun -h GROUP. The groups:")
    with formatter.indentation():
        formatter.write_text(", ".join(GROUPS))
    return formatter.getvalue().strip("\n")


def render_group(topic: str) -> str:
    """Return the options of a group. Raises UsageError for another name, with the group of an option of that name."""
    name = topic.removeprefix("--").replace("_", "-")
    options = (one for one in list_options() if one.name.startswith(name) and topic not in {*GROUPS, *GROUP_WORDS})
    if option := find_row(name) or next(options, None):
        topic = option.group
    if topic not in GROUPS:
        nearest = GROUP_WORDS.get(topic.lower())
        question = f"did you mean -h {nearest}?" if nearest else suggest(topic, {name: f"-h {name}" for name in GROUPS})
        raise UsageError(f"unknown group of options {sanitize(topic)}; the groups are {', '.join(GROUPS)}", question)
    formatter = _make_formatter()
    _write_group(formatter, topic)
    return formatter.getvalue().strip("\n")


def render_help() -> str:
    """Return the whole help."""
    formatter = _make_formatter()
    formatter.write_usage("meshrun", USAGE)
    formatter.write_paragraph()
    formatter.write_text(INTRO)
    for group in GROUPS:
        _write_group(formatter, group)
    formatter.write_paragraph()
    formatter.write_text(_SETTINGS)
    return formatter.getvalue().strip("\n")


def _make_formatter() -> HelpFormatter:
    from click import HelpFormatter

    return HelpFormatter(width=80)


def _write_group(formatter: HelpFormatter, group: str) -> None:
    with formatter.section(f"{GROUPS[group]} (-h {group})"):
        for option in list_options():
            if option.group == group:
                _write_option(formatter, option)


def _write_option(formatter: HelpFormatter, option: Option) -> None:
    """Write the option as it is typed, then its effect and default, then its variables."""
    formatter.write_text(" ".join(filter(None, (f"{option.short}," * bool(option.short), option.flag, option.metavar))))
    what = option.help + f" [default: {option.default}]" * (bool(option.default) and option.takes_value)
    with formatter.indentation(), formatter.indentation():
        for line in filter(None, (what, ", ".join(option.variables))):
            formatter.write_text(line)
