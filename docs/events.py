"""Writes reference/events.md from launcher/views/run_events.py, whose classes say what each event means.

`python docs/events.py > docs/reference/events.md` after a change (`make docs` does it); a test compares.
"""

from __future__ import annotations

import re
import sys

from msgspec import NODEFAULT
from msgspec.structs import FieldInfo, fields

from docs.fields import read_fields
from launcher.views import run_events
from launcher.views.run_events import SCHEMA, RunEvent

HEAD = f"""\
# Events

<!-- Made from launcher/views/run_events.py by `python docs/events.py`; a test keeps it in step. -->

`--events FILE` appends one line of JSON to FILE for each event on this node. FILE is a file, a named pipe that has a
reader, or `-` for stdout. Several agents can write to the same file; their lines are never mixed. If the reader or the
storage is slow, the agent buffers 1 MiB of events, drops further events, and reports how many it dropped.
`meshctl events` shows the latest events of all nodes.

Each line begins with these fields, in this order:

| field | |
|---|---|
| `schema` | {SCHEMA}; incremented when the meaning of a field changes. Ignore events and fields that you do not know |
| `event` | name of the event; the sections below list them |
| `time` | time on the node's clock: RFC 3339, UTC, with milliseconds |
| `run_id`, `node` | the run, and the node that reports the event |
| `round` | current or last [round](../concepts/glossary.md#round) of this node; 0 before the first |

Fields that end in `_s` are durations in seconds. `cause` shows why a round ended: `failure` (a worker failed), `loss`
(a node was lost), `isolation` (a node was cut off), `leaving` (a node was asked to leave), `growth` (nodes were added)
or `end` (the job is over). It is empty if the cause is unknown.
"""


def describe(kind: type[RunEvent]) -> str:
    """The section of an event: what it means, and its own fields."""
    own = [field for field in fields(kind) if field.name not in {one.name for one in fields(RunEvent)}]
    text = " ".join((kind.__doc__ or "").split())
    why = read_fields(kind)
    rows = "".join(f"| `{field.name}` | {write_type(field)} | {why.get(field.name, '')} |\n" for field in own)
    table = f"\n| field | type | |\n|---|---|---|\n{rows}".replace(" |  |", " | |") if rows else ""
    return f"\n## `{kind.__struct_config__.tag}`\n\n{text}\n{table}"


def describe_root_cause() -> str:
    """The section of the object that several events have."""
    kind = run_events.RootCause
    why = read_fields(kind)
    rows = "".join(f"| `{one.name}` | {write_type(one)} | {why.get(one.name, '')} |\n" for one in fields(kind))
    table = f"\n| field | type | |\n|---|---|---|\n{rows}".replace(" |  |", " | |")
    return f"\n## Root cause\n\n{kind.__doc__}\n{table}"


def write_type(field: FieldInfo) -> str:
    """The type of a field as JSON has it."""
    names = {"int": "number", "float": "number", "str": "string", "bool": "true or false",
             "tuple[int, ...]": "list of numbers", "tuple[str, ...]": "list of strings",
             f"{run_events.__name__}.RootCause | None": "[root cause](#root-cause)"}  # fmt: skip
    kind = getattr(field.type, "__origin__", field.type) if hasattr(field.type, "__metadata__") else field.type
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    choices = re.findall(r"'([^']*)'", text)
    found = ", ".join(f"`{choice}`" for choice in choices if choice) if choices else names[text]
    none = {-1: " or -1", None: " or null"}.get(field.default, ", may be empty")
    return found if field.default is NODEFAULT else f"{found}{none}"


def page() -> str:
    """The whole page."""
    kinds = RunEvent.__subclasses__()
    elsewhere = [kind.__qualname__ for kind in kinds if kind.__module__ != run_events.__name__]
    assert not elsewhere, f"an event of --events belongs in launcher/views/run_events.py: {elsewhere}"
    return HEAD + "".join(describe(kind) for kind in kinds) + describe_root_cause()


if __name__ == "__main__":
    sys.stdout.write(page())
