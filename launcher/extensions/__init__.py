"""What needs a foreign system, or most users never start: a folder for each, over a kernel that knows none of them.

A folder has its code and its command; its tests lie where those of a package lie, and its guide is in docs/train or
docs/cluster. An extension imports the kernel, never another extension, and the kernel imports none: what two of them
need lies below both. Where a word of the user's means an extension, the tables below say which, as `module:name`; they
are strings, and nothing is imported here. They are asked only for words that the kernel does not know, and
`load_entry` imports what they say.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONTROLLERS = "launcher.extensions.kubernetes.controllers:CONTROLLERS"
"""Schedulers that set variables in pods: rows as launcher.config.schedulers has them, asked behind its own."""

COMMANDS = {"measure": "launcher.extensions.measure.command:measure", "serve": "launcher.extensions.page.command:serve"}
"""Of meshctl: a command of click's, which adds itself to the group of launcher/meshctl/group.py."""

DEVICES = {
    "amd": "launcher.extensions.devices.amd:Detector",
    "intel": "launcher.extensions.devices.intel:Detector",
    "tpu": "launcher.extensions.devices.tpu:Detector",
}
"""Kinds of --devices: a Detector of launcher/hardware/accelerators/contract.py."""

SHAPES = {"tpu": "launcher.extensions.devices.tpu:count_chips"}
"""Kinds that --devices can request by the type of a slice: a function from request, what was found and environment to
the number of devices, and the reason.
"""

TORCH_DEVICES = "launcher.extensions.devices.from_torch:count_devices"
"""Counts devices of a type that only torch knows: a function from type, interpreter and environment to an Inventory."""

ENVIRONMENTS = {
    "paddle": "launcher.extensions.paddle.environment:PaddleEnvironment",
    "tpu": "launcher.extensions.devices.tpu_environment:TpuEnvironment",
    "xla": "launcher.extensions.devices.tpu_environment:XlaEnvironment",
}
"""Frameworks of --framework, and what is added for a kind of device: an Environment of
launcher/ranks/environments/contract.py.
"""

OPTIONS = {
    "metrics-port": "launcher.extensions.metrics.options:ROWS",
    "metrics-file": "launcher.extensions.metrics.options:ROWS",
    "notices": "launcher.extensions.notices.options:ROWS",
    "progress": "launcher.extensions.kubernetes.options:ROWS",
    "request-nodes": "launcher.extensions.kubernetes.options:ROWS",
    "serve": "launcher.extensions.page.options:ROWS",
}
"""Options of meshrun: the rows among which the option's is, each an Option of launcher/config/options/readers.py."""

OWN_VARIABLES = ("LAUNCHER_METRICS_FILE", "LAUNCHER_METRICS_PORT", "LAUNCHER_PROGRESS")
"""Variables of options that are one agent's own: another that a worker starts would find the port taken."""

PARTS = {
    "metrics-port": "launcher.extensions.metrics.options:add_metrics",
    "metrics-file": "launcher.extensions.metrics.options:add_file",
    "progress": "launcher.extensions.kubernetes.options:add_sink",
    "request-nodes": "launcher.extensions.kubernetes.options:add_requester",
    "serve": "launcher.extensions.page.options:add_page",
}
"""Options for which an agent has a part: a function that adds it (launcher/agent/composition.py)."""

HINTS = {
    "alone": "launcher.extensions.hints.alone:explain",
    "command": "launcher.extensions.hints.commands:explain_command",
    "command option": "launcher.extensions.hints.commands:explain_option",
    "content": "launcher.extensions.hints.scripts:explain_content",
    "devices taken": "launcher.extensions.hints.refusals:refuse_devices",
    "end": "launcher.extensions.hints.last_words:parse",
    "failure": "launcher.extensions.hints.start_failure:explain_failure",
    "misspelt": "launcher.extensions.hints.remarks:find_misspelt_variables",
    "host": "launcher.extensions.hints.corrections:correct_host",
    "hidden": "launcher.extensions.hints.hidden:explain_import",
    "next step": "launcher.extensions.hints.next_step:choose_hint",
    "no listener": "launcher.extensions.hints.refusals:refuse_listener",
    "no script": "launcher.extensions.hints.remarks:explain_missing_script",
    "node taken": "launcher.extensions.hints.refusals:refuse_node",
    "not the host": "launcher.extensions.hints.refusals:refuse_serving",
    "option": "launcher.extensions.hints.habits:explain_unknown",
    "other run": "launcher.extensions.hints.refusals:refuse_run",
    "other version": "launcher.extensions.hints.refusals:refuse_version",
    "remarks": "launcher.extensions.hints.remarks:list_remarks",
    "script": "launcher.extensions.hints.scripts:explain_missing_script",
    "served already": "launcher.extensions.hints.refusals:refuse_second_server",
    "stacks": "launcher.extensions.hints.last_words:keep_stacks",
    "text": "launcher.extensions.hints.remarks:remark_on",
    "unread": "launcher.extensions.hints.remarks:list_unread_variables",
    "value": "launcher.extensions.hints.corrections:choose_hint",
}
"""What is known of what was refused or has failed, and what to do: functions that are asked on the way to an error."""

NOTICES = "launcher.extensions.notices.part:make_notice_part"
"""The part that an agent has from its start, also where nobody asks for it."""

PICTURES = {
    "svg": "launcher.extensions.pictures.picture:render_svg",
    "html": "launcher.extensions.pictures.picture:render_html",
}
"""Options of `meshctl plan`, which name a file: a function from the plan to its text."""


def load_entry(entry: str) -> Any:
    """Import what an entry of these tables, or one like them, names."""
    from importlib import import_module

    module, _, name = entry.partition(":")
    return getattr(import_module(module), name)


def ask(hint: str, *values: object) -> Any:
    """Ask a function of HINTS, which is imported now."""
    return load_entry(HINTS[hint])(*values)
