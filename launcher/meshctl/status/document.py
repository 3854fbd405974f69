"""The status for programs: one JSON object. Fields are added over time, never renamed; times are in seconds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from launcher.meshctl.status.render import format_headline
from launcher.meshctl.status.state import Overview


def encode_overview(overview: Overview) -> dict[str, Any]:
    """Return the overview as values for JSON."""
    content = asdict(overview)
    for record in (*content["history"], *([content["verdict"]] if content["verdict"] else [])):
        del record["unknown"]
    for node in content["nodes"]:
        node["locality"] = dict(node["locality"])
    return {"now": format_headline(overview), **content}
