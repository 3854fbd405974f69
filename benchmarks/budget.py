"""How the minutes of a report are spent: which benchmark runs how many pairs, and when each must have ended.

Every step has what it costs to run at all, what a pair costs, the fewest pairs that say something, and how many one
would like. Each gets the fewest; then the one that is furthest from what one would like gets a pair more, again and
again, until no pair fits any more. The costs are of two quiet cores; before each step the plan is made anew, from
what is left and from how long the steps before took, so a machine that is slower has fewer pairs and the same end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Step(NamedTuple):
    """One benchmark in the report. `fixed_s`: what it takes without pairs."""

    name: str
    fixed_s: float
    pair_s: float
    least: int
    wanted: int

    def seconds(self, pairs: int) -> float:
        return self.fixed_s + self.pair_s * pairs


def slower(steps: Sequence[Step], factor: float) -> list[Step]:
    """The same steps on a machine that takes so many times as long."""
    return [step._replace(fixed_s=step.fixed_s * factor, pair_s=step.pair_s * factor) for step in steps]


def plan(steps: Sequence[Step], budget_s: float) -> dict[str, int]:
    """Pairs by name of step. A step whose fewest pairs do not fit beside those before it is left out."""
    kept: list[Step] = []
    left_s = budget_s
    for step in steps:
        if step.seconds(step.least) <= left_s:
            kept.append(step)
            left_s -= step.seconds(step.least)
    pairs = {step.name: step.least for step in kept}
    while True:
        open_ = [step for step in kept if pairs[step.name] < step.wanted and step.pair_s <= left_s]
        if not open_:
            return pairs
        next_ = min(open_, key=lambda step: pairs[step.name] / step.wanted)
        pairs[next_.name] += 1
        left_s -= next_.pair_s


def limit_s(step: Step, pairs: int, left_s: float) -> float:
    """When a step is stopped: half as long again as planned and half a minute, if that much is left."""
    return max(1.0, min(1.5 * step.seconds(pairs) + 30, left_s))


def seconds(words: str) -> float:
    """`20m`, `90s`, `1h`, `1h30m` or a number of seconds. Raises ValueError for anything else."""
    match = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", words.strip())
    if match is None or not any(match.groups()):
        raise ValueError(f"{words!r} is no time such as 20m, 90s or 1h30m")
    hours, minutes, rest = (int(each or 0) for each in match.groups())
    return 3600.0 * hours + 60 * minutes + rest


def clock(duration_s: float) -> str:
    """`4:05`: minutes and seconds."""
    minutes, rest = divmod(round(duration_s), 60)
    return f"{minutes}:{rest:02}"
