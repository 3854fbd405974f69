"""Shows where all ranks stand: those with the same stack together, the odd ones first.

Of a thousand ranks that hang, nearly all wait at the same place, and the few that do not are the ones to look at. Two
stacks are the same if their functions and files are: lines differ between ranks that go round the same loop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from launcher.diagnosis.evidence import Frame, RankEvidence
from launcher.diagnosis.verdict import STATES, describe_ranks
from launcher.model.text import WIDTH
from launcher.worker.grid import WorkerMesh

FRAMES_SHOWN = 12
_INSTALLED = ("site-packages/", "dist-packages/")
_FUNCTION_WIDTH = 28

_Key = tuple[str, tuple[tuple[str, str], ...]]


def group_stacks(ranks: Sequence[RankEvidence]) -> list[list[RankEvidence]]:
    """Return the ranks by what they do, the fewest first; those whose stack is not known come last."""
    groups: defaultdict[_Key, list[RankEvidence]] = defaultdict(list)
    for one in sorted(ranks, key=lambda one: one.rank):
        # Whether a rank runs or sleeps at this moment says little, but a stopped one goes nowhere.
        state = "" if one.state in ("runs", "sleeps") else one.state
        groups[state, tuple(frame.place for frame in one.stack or ())].append(one)
    return sorted(groups.values(), key=lambda group: (not group[0].stack, len(group), group[0].rank))


def render_stacks(ranks: Sequence[RankEvidence], mesh: WorkerMesh) -> str:
    """Render the groups, each with its innermost frames; a line is no wider than a terminal's."""
    return "\n\n".join(_render_group(group, mesh) for group in group_stacks(ranks)) + "\n"


def _render_group(group: Sequence[RankEvidence], mesh: WorkerMesh) -> str:
    states = Counter(STATES[one.state] for one in group)
    first, *others = [state if len(states) == 1 else f"{count} {state}" for state, count in states.most_common()]
    title = f"{describe_ranks([one.rank for one in group], mesh)}: {', '.join((first, *others))}"
    stack = group[0].stack
    if stack:
        return "\n".join((title, *render_frames(stack)))
    if group[0].state in ("ended", "unknown"):
        return title
    return f"{title}; stack unknown"


def render_frames(stack: Sequence[Frame], most: int = FRAMES_SHOWN) -> list[str]:
    """Render a stack, the innermost frame first, one line each."""
    lines = [_render_frame(frame) for frame in stack[:most]]
    return lines if len(stack) <= most else [*lines, f"  ... and {len(stack) - most} more"]


def _render_frame(frame: Frame) -> str:
    name = frame.function
    if len(name) > _FUNCTION_WIDTH:
        name = name[: _FUNCTION_WIDTH - 3] + "..."
    start = f"  {name:<{_FUNCTION_WIDTH}} "
    return start + format_place(frame, WIDTH - len(start))


def format_place(frame: Frame, width: int = 50) -> str:
    """Format where a frame stands: the path in its package, or the end of a long path, and the line."""
    place = f"{frame.file}:{frame.line}"
    for mark in _INSTALLED:
        place = place.rpartition(mark)[2]
    return place if len(place) <= width else "..." + place[3 - width :]
