"""An Indexed Job of Kubernetes, also as a part of a JobSet, numbers its pods and sets nothing else.

No variable has their number or the name of their Service. On one node that does not matter; for a job of several, the
index is the node's rank, and the message that asks for the rest contains it.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.config.options.command_line import DetectedValue
from launcher.config.options.readers import parse_integer
from launcher.config.schedulers.contract import Detection


def detect(environ: Mapping[str, str], hostname: str) -> Detection:
    """`hostname`: a pod of an Indexed Job is named after it and its index."""
    known_by = ("JOB_COMPLETION_INDEX",)
    text = environ["JOB_COMPLETION_INDEX"]
    index = parse_integer(text)
    if index is None or index < 0:
        reason = f"JOB_COMPLETION_INDEX={text} is no index"
        return Detection(controller="Indexed Job", known_by=known_by, reason=reason, must_report=True)
    pod = hostname.partition(".")[0]
    first = f"{pod.removesuffix(text)}0" if pod.endswith(f"-{text}") else "POD-0"
    return Detection(
        controller="Indexed Job",
        known_by=known_by,
        reason=f"this is pod {index}; no variable says how many there are and where they meet",
        values={"node-rank": DetectedValue(str(index), "JOB_COMPLETION_INDEX")},
        missing=f"this pod of an Indexed Job has node rank {index}: --master-addr {first}.SERVICE names the first one",
    )
