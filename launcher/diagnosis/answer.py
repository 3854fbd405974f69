"""What is said to somebody who asks why a job does not go on.

    rank 5 (pp=1 tp=1) has not entered all_reduce 1042 of tp [4-7]; 3 others have
      waited for 312 s.
    rank 5 (pp=1 tp=1) is in read (loader.py:31), asleep.

    Rank 5 (pp=1 tp=1), the innermost frame first:
      read                         /home/me/loader.py:31
      ...
    Not known:
      ranks 0-7: no flight recorder: ...
    hint: ...

The first sentence is the verdict, the last line says what to do. What could not be read is told with its reason, once
for all ranks that it concerns, because a verdict is as good as its evidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from launcher.diagnosis.evidence import Frame, RankEvidence
from launcher.diagnosis.stack_groups import format_place, render_frames
from launcher.diagnosis.verdict import Diagnosis, Kind, Place, describe_ranks, find_own_frame, find_places
from launcher.logs.reports.report import Finding, HangCause
from launcher.model.ranges import format_ranges
from launcher.model.text import wrap
from launcher.views.questions.messages import Purpose
from launcher.worker.grid import WorkerMesh

STACKS_SHOWN = 3
FRAMES_SHOWN = 8
REASONS_SHOWN = 6
PLACES_MAX = 32
_AGAIN = "ask again in a minute"


class Gap(Struct, frozen=True, kw_only=True):
    """Evidence that is missing on some ranks, for one reason."""

    ranks: tuple[int, ...]
    reason: str


class CulpritStack(Struct, frozen=True, kw_only=True):
    """The Python stack of a rank that the others wait for."""

    rank: int
    name: str
    """The rank by its place in the mesh, such as "pp=1 tp=0"."""
    frames: tuple[Frame, ...]
    """The innermost first; in JSON a frame is a list of function, file and line."""


class HangAnswer(Struct, frozen=True, kw_only=True):
    """The whole answer to "why does this job make no progress"."""

    kind: Kind
    culprits: tuple[int, ...] = ()
    sentences: Annotated[tuple[str, ...], Meta(min_length=1)]
    places: tuple[Place, ...] = ()
    stacks: tuple[CulpritStack, ...] = ()
    gaps: tuple[Gap, ...] = ()
    stragglers: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """Where the complete evidence is, as "node:path"."""
    hint: str
    """What to do now."""


class Conclusion(Struct, frozen=True, kw_only=True, tag_field="note", tag="conclusion"):
    """What the leader concludes of what all nodes have seen; to the agents of a round it goes as a note."""

    round: int
    """0 if no agent has answered."""
    purpose: Purpose = "question"
    answer: HangAnswer
    stacks: str = ""
    """Of all ranks, for people."""
    is_news: bool = True
    """It names more than a worker that has failed."""
    to_end: tuple[int, ...] = ()
    """The ranks to end so that all restart."""
    is_sure: bool = True
    """As in Diagnosis."""

    def shorten(self) -> Conclusion:
        """Return it without the stacks."""
        return replace(self, stacks="")

    def make_finding(self, *, ends_workers: bool) -> Finding:
        """Return what is kept of it for the report of a failure."""
        answer = self.answer
        culprits = answer.culprits if answer.kind not in ("unknown", "unclear") else ()
        cause: HangCause = ""
        if ends_workers:
            cause = ("known" if self.is_sure else "likely") if culprits else "unknown"
        return Finding(answer.sentences, cause, culprits)


def make_answer(diagnosis: Diagnosis, ranks: Sequence[RankEvidence], mesh: WorkerMesh) -> HangAnswer:
    """Put together what is said of these ranks."""
    world = {one.rank: one for one in ranks}
    stacks = [
        CulpritStack(rank=rank, name=describe_ranks([rank], mesh), frames=stack)
        for rank in diagnosis.culprits
        if rank in world and (stack := world[rank].stack)
    ]
    return HangAnswer(
        kind=diagnosis.kind,
        culprits=diagnosis.culprits,
        sentences=diagnosis.sentences,
        places=find_places(ranks)[:PLACES_MAX],
        stacks=tuple(stacks[:STACKS_SHOWN]),
        gaps=tuple(_collect_gaps(ranks)),
        hint=_advise(diagnosis, world, mesh),
    )


def render_answer(answer: HangAnswer) -> str:
    """Render the answer for a terminal; ends with a newline."""
    lines = [line for sentence in (*answer.sentences, *answer.stragglers) for line in wrap(f"{sentence}.", "", "  ")]
    for stack in answer.stacks:
        lines += ["", f"{stack.name[:1].upper()}{stack.name[1:]}, the innermost frame first:"]
        lines += render_frames(stack.frames, FRAMES_SHOWN)
    if answer.gaps:
        lines += ["", "Not known:"]
        lines += [line for gap in answer.gaps[:REASONS_SHOWN] for line in wrap(_format_gap(gap), "  ", "    ")]
        if len(answer.gaps) > REASONS_SHOWN:
            lines.append(f"  and for {len(answer.gaps) - REASONS_SHOWN} more reasons: see the folders")
    if answer.folders:
        lines += ["", "All evidence:", *(f"  {folder}" for folder in answer.folders)]
    return "\n".join([*lines, "", f"hint: {answer.hint}"]) + "\n"


def list_gaps(answer: HangAnswer) -> list[str]:
    """List what is not known, a sentence for each reason."""
    return [f"not known for {_format_gap(gap)}" for gap in answer.gaps[:REASONS_SHOWN]]


def _format_gap(gap: Gap) -> str:
    return f"{'rank' if len(gap.ranks) == 1 else 'ranks'} {format_ranges(gap.ranks)}: {gap.reason}"


def _collect_gaps(ranks: Sequence[RankEvidence]) -> list[Gap]:
    """Return what is missing, each reason once, that of most ranks first."""
    by_reason: defaultdict[str, list[int]] = defaultdict(list)
    for one in sorted(ranks, key=lambda one: one.rank):
        for reason in one.missing:
            by_reason[reason].append(one.rank)
    ordered = sorted(by_reason.items(), key=lambda each: (-len(each[1]), each[0]))
    return [Gap(ranks=tuple(found), reason=reason) for reason, found in ordered]


# --- what to do ---

_STATE_ORDER = {"ended": 0, "stopped": 1, "blocked": 2}


def _advise(diagnosis: Diagnosis, world: Mapping[int, RankEvidence], mesh: WorkerMesh) -> str:
    match diagnosis.kind:
        case "late" | "odd" | "stuck" if diagnosis.culprits:
            return _advise_on_culprit(diagnosis, world, mesh)
        case "stuck":
            return (
                "check the links between the nodes and the devices' errors in dmesg; with NCCL, set NCCL_DEBUG=INFO in "
                "the next run to see which transport it uses"
            )
        case "mismatch":
            return "compare the code that leads to this call: these ranks take different branches"
        case "deadlock":
            return "use these groups in the same order on all ranks: at present, the order differs"
        case "unknown":
            who = describe_ranks(diagnosis.culprits, mesh)
            if all(rank in world for rank in diagnosis.culprits):
                return f"run py-spy dump, or gdb, on the node of {who} to see what it does"
            return f"check whether the agent on the node of {who} runs and can be reached"
        case "healthy":
            return f"{_AGAIN} if the job still makes no progress: there may be no hang"
        case _:
            return f"{_AGAIN} and compare the answers: a rank that is still at the same place makes no progress"


def _advise_on_culprit(diagnosis: Diagnosis, world: Mapping[int, RankEvidence], mesh: WorkerMesh) -> str:
    """Advise by what the culprit does that leaves the least choice: it is held, or it stands somewhere."""
    found = [world[rank] for rank in diagnosis.culprits if rank in world]
    one = min(found, key=lambda one: _STATE_ORDER.get(one.state, len(_STATE_ORDER)))
    who = describe_ranks([one.rank], mesh)
    if one.state == "stopped":
        return f"continue {who} with kill -CONT, or detach the debugger from it"
    if one.state == "ended":
        return f"read the end of the log of {who}: it exited while others still need it"
    if one.state == "blocked":
        return f"check dmesg on the node of {who}: a disk, a network file system or a device does not respond"
    frame = find_own_frame(one.stack)
    if frame is None:
        return f"run py-spy dump, or gdb, on the node of {who}: its stack could not be read"
    where = f"see what {who} does in {frame.function} at {format_place(frame)}"
    return f"{where}, and {_AGAIN}" if diagnosis.kind == "odd" else where
