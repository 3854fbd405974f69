"""The figures of a training that `progress` reports besides the step: how many steps there are, and metrics.

They go into the shared page as JSON, whole with each call, and wake no process: the agent that reports progress reads
them every few seconds. Texts and their number are cut here to one more than a reader takes, so that it can say so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress

from launcher.hardware.linux import shared_page
from launcher.hardware.linux.figures import write_figures

COUNT_MAX = 256
LENGTH_MAX = 64
"""Of a name and of a value, in characters; both are limits of Kubeflow Trainer's server."""

_totals: dict[str, int] = {}
_metrics: dict[str, str] = {}


def report_figures(line: int, round_number: int, total_steps: int | None, metrics: Mapping[str, object]) -> None:
    """Add these figures to those before, and write all of them. `line`: this worker's in the shared page."""
    if total_steps is not None:
        with suppress(Exception):  # whatever a library's value raises, the training goes on
            _totals["total"] = max(0, min(int(total_steps), shared_page.STEPS_MAX))
    for name, value in metrics.items():
        key = format_value(name)[: LENGTH_MAX + 1]
        if key in _metrics or len(_metrics) <= COUNT_MAX:
            _metrics[key] = format_value(value)[: LENGTH_MAX + 1]
    text = json.dumps({"round": round_number, "metrics": _metrics, **_totals}, ensure_ascii=False)
    with suppress(OSError, KeyError, ValueError):  # the script has closed the page, or removed its variable
        descriptor, _ = shared_page.find_line(os.environ[shared_page.VARIABLE])
        write_figures(descriptor, line, text)


def format_value(value: object) -> str:
    """Return a metric as text: of a number, or what can become one, six digits."""
    if isinstance(value, str):
        return value
    try:
        return str(value) if isinstance(value, int) else f"{float(value):.6g}"  # type: ignore[arg-type]
    except Exception:  # whatever a library's value raises, the training goes on
        return type(value).__name__
