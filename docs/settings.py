"""Writes reference/settings.md from rendezvous/settings.py, whose fields carry their reasons.

`python docs/settings.py > docs/reference/settings.md` after a change (`make docs` does it); a test compares.
"""

from __future__ import annotations

import math
import sys

from msgspec.structs import fields

from docs.fields import read_fields
from rendezvous import settings

HEAD = """\
# Settings

<!-- Made from rendezvous/settings.py by `python docs/settings.py`; a test keeps it in step. -->

Limits of the [agreement](../concepts/agreement.md) between nodes. Times are in seconds; names that end in `_ttls` are
multiples of `lease_ttl_s`. Settings that a job may need to change are [options](options.md). Most settings have no
effect on a single-node job.

| setting | default | purpose |
|---|---|---|
"""


def written(default: object) -> str:
    """A default as a reader writes it."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, str):
        return default
    return "none" if default == math.inf else f"{default:g}"


def page() -> str:
    """The whole page."""
    why = read_fields(settings.Settings)
    rows = [
        f"| `{item.name}` | {written(item.default)} | {why.get(item.name, '')} |" for item in fields(settings.Settings)
    ]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
