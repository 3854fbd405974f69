"""The variables of workers, as the tables of docs/reference/worker-variables.md have them."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.support.documents.pages import ROOT

# Headings of the page, and the environment that sets what is below: "" every one.
FRAMEWORKS = {"In every worker": "", "Under JAX": "jax", "On TPU chips": "tpu", "Under torch_xla": "xla"}


class Variable(NamedTuple):
    """One row. A name with <AXIS> stands for one variable per axis of the mesh."""

    name: str
    framework: str
    source: str


def _read() -> tuple[Variable, ...]:
    page = (ROOT / "docs/reference/worker-variables.md").read_text()
    return tuple(
        Variable(name, FRAMEWORKS[heading], source)
        for heading, text in re.findall(r"^## (.+?)$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        if heading in FRAMEWORKS
        for name, source in re.findall(r"^\| `([^`]+)` \| .+ \| .+ \| (.+) \|$", text, re.MULTILINE)
    )


VARIABLES = _read()
