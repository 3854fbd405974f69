"""What `meshctl doctor` warns of, and what it makes of all its warnings together.

A warning that only names a setting is of no use at three in the morning. So each says what was seen, why that would
hurt, and what to do; and how bad it is, in three levels: a run would not start or would not last; a run may be hurt by
it, sooner or later; and what somebody may want to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from launcher.model.text import format_count

Severity = Literal["stop", "hurt", "note"]
LEVEL_LABELS: dict[Severity, str] = {"stop": "would stop a job", "hurt": "may hurt", "note": "note"}


class Finding(NamedTuple):
    """`check` names what was looked at, for programs. `harm` and `remedy` are empty where `seen` says it all."""

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
    """All of them in one short sentence."""
    stops, hurts = (sum(1 for finding in findings if finding.level == level) for level in ("stop", "hurt"))
    if stops:
        return f"{format_count(stops, 'thing')} would stop a job here" + (f", {hurts} may hurt it" if hurts else "")
    if hurts:
        return f"a job would start here; {format_count(hurts, 'thing')} may hurt it"
    return "a job would start here, and nothing was seen that would hurt it"
