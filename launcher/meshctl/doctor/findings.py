"""The findings of `meshctl doctor`, and the verdict on all of them.

A warning that only names a setting does not help at three in the morning. So each has an observation, its harm and a
remedy; and one of three severities: a run would not start or would not last; a run may be harmed, sooner or later; and
a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from launcher.model.text import format_count

Severity = Literal["stop", "hurt", "note"]
LEVEL_LABELS: dict[Severity, str] = {"stop": "would stop a job", "hurt": "may hurt", "note": "note"}


class Finding(NamedTuple):
    """`check` names what was checked, for programs. `harm` and `remedy` are empty where `seen` is sufficient."""

    check: str
    level: Severity
    seen: str
    harm: str = ""
    remedy: str = ""


def sort_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The worst first; within a level as they were found."""
    levels = list(LEVEL_LABELS)
    return tuple(sorted(findings, key=lambda finding: levels.index(finding.level)))


def can_start(findings: Sequence[Finding]) -> bool:
    return not any(finding.level == "stop" for finding in findings)


def describe_verdict(findings: Sequence[Finding]) -> str:
    """Describe all of them in one short sentence."""
    stops, hurts = (sum(1 for finding in findings if finding.level == level) for level in ("stop", "hurt"))
    if stops:
        return f"{format_count(stops, 'thing')} would stop a job here" + (f", {hurts} may hurt it" if hurts else "")
    if hurts:
        return f"a job would start here; {format_count(hurts, 'thing')} may hurt it"
    return "a job would start here, and nothing was seen that would hurt it"
