"""What an agent asks of its examiner, and what the examiner answers: one line of JSON each.

What an answer says of a rank travels to the leader, so it is cut to `RANK_BYTES_MAX`. The innermost frames of a stack
and the group that was used last are kept longest. Names and shapes, by which ranks are compared, are cut to the same
length whatever else there is, and a rank of which groups were left out counts as one whose recorder has forgotten them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from launcher.diagnosis.evidence import Frame, GroupCalls, RankEvidence
from launcher.worker.grid import WorkerMesh
from rendezvous import codec

RANK_BYTES_MAX = 2000
LIMIT_S = 5.0
Levels = Literal["all", "recorder"]
"""`recorder`: the kernel's view and the flight recorder, without stacks."""
# Frames, their characters, groups, and those of them with all calls and times: what is tried in turn until it fits.
_CUTS = (
    *((40, 200, 8, 8), (24, 100, 8, 3), (12, 60, 8, 3), (6, 50, 8, 3), (8, 60, 8, 1)),
    *((8, 40, 6, 0), (4, 40, 4, 0), (2, 30, 2, 0), (1, 30, 1, 0)),
)
_NAME_MAX = 100
_MISSING_MAX = 4
_SENTENCE_MAX = 160


class Target(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker to examine."""

    rank: int
    pid: int
    socket_path: str = ""
    """Where its recorder would listen; there need not be one."""
    outputs: tuple[str, ...] = ()
    """Its log files."""


class LocalRound(Struct, frozen=True, kw_only=True):
    """The round that runs on this node, as its workers are looked at."""

    number: int
    mesh: WorkerMesh
    """Of the whole world."""
    targets: tuple[Target, ...]
    """The workers that were started."""
    exit_codes: dict[int, int]
    """By rank, of the workers that have ended."""


class ExamineRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Examine these workers."""

    targets: tuple[Target, ...]
    folder: str = ""
    """The incident folder to create, "" for none."""
    limit_s: Annotated[float, Meta(gt=0, le=600)] = LIMIT_S
    levels: Levels = "all"


class ExamineReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of an examination."""

    ranks: tuple[RankEvidence, ...]
    folder: str = ""
    """The incident folder, "" if there is none."""
    remarks: tuple[str, ...] = ()
    """Sentences about the node, and about what failed."""


def shorten_evidence(evidence: RankEvidence) -> RankEvidence:
    """Cut what is known of a rank until its JSON has at most `RANK_BYTES_MAX` bytes."""
    missing = tuple(_cut_end(one, _SENTENCE_MAX) for one in evidence.missing[:_MISSING_MAX])
    evidence = replace(evidence, missing=missing)
    for frame_count, frame_size, group_count, whole_count in _CUTS:
        stack, groups = evidence.stack, evidence.groups
        stack = stack and tuple(_cut_frame(frame, frame_size) for frame in stack[:frame_count])
        kept = groups and tuple(_cut_group(group, at < whole_count) for at, group in enumerate(groups[:group_count]))
        is_truncated = evidence.is_truncated or len(groups or ()) > group_count
        found = replace(evidence, stack=stack, groups=kept, is_truncated=is_truncated)
        if len(codec.encode(found)) <= RANK_BYTES_MAX:
            return found
    # Text of which every character takes six bytes.
    return RankEvidence(rank=evidence.rank, state=evidence.state, cpu=evidence.cpu, missing=("too long to send",))


def _cut_frame(frame: Frame, size: int) -> Frame:
    file = frame.file if len(frame.file) <= size else f"...{frame.file[3 - size :]}"
    return replace(frame, function=_cut_end(frame.function, size), file=file)


def _cut_group(group: GroupCalls, is_whole: bool) -> GroupCalls:
    """Cut the names; and without `is_whole` all but the oldest call that is open and the last."""
    if not is_whole:
        kept = {call.number: call for call in (group.oldest_open, group.calls[-1]) if call}
        group = replace(group, calls=tuple(kept.values()), entered_ms=(), lengths_ms=())
    calls = tuple(replace(call, operation=_cut_end(call.operation, _NAME_MAX)) for call in group.calls)
    name, description = _cut_end(group.name, _NAME_MAX), _cut_end(group.description, _NAME_MAX)
    return replace(group, name=name, description=description, calls=calls)


def _cut_end(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 3]}..."
