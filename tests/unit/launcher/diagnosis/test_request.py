"""Requests of an agent to its examiner, and how much of what was seen travels upwards."""

from __future__ import annotations

import pytest

from launcher.diagnosis.evidence import Call, Frame, GroupCalls, RankEvidence
from launcher.diagnosis.recorder import SHAPE_MAX
from launcher.diagnosis.request import RANK_BYTES_MAX, ExamineRequest, Target, shorten_evidence
from rendezvous import codec
from rendezvous.errors import RecordError


def frame(number: int, text: str = "site-packages/torch/") -> Frame:
    return Frame(function=f"function_{number}", file=f"/{text * 10}{number}.py", line=number)


def group(name: str) -> GroupCalls:
    calls = [Call(number=at, operation="all_reduce", shape="9" * SHAPE_MAX, age_s=1 / 3) for at in (1, 2)]
    return GroupCalls(name=name, description=f"mesh_{name}", calls=tuple(calls))


def size(evidence: RankEvidence) -> int:
    return len(codec.encode(evidence))


def test_what_is_small_is_not_cut_and_survives_its_journey() -> None:
    evidence = RankEvidence(rank=1, state="sleeps", stack=(frame(1, ""),), groups=(group("tp"),))
    assert shorten_evidence(evidence) == evidence
    request = ExamineRequest(targets=(Target(rank=3, pid=9, outputs=("a",)),), folder="/x", levels="recorder")
    assert codec.decode(ExamineRequest, codec.encode(request), "the request") == request


def test_of_a_deep_stack_the_innermost_frames_are_kept_and_shapes_stay_comparable() -> None:
    evidence = RankEvidence(rank=1, state="sleeps", stack=tuple(map(frame, range(40))), groups=(group("tp"),))
    short = shorten_evidence(evidence)
    assert size(evidence) > RANK_BYTES_MAX >= size(short)
    assert short.stack is not None
    assert [one.line for one in short.stack] == list(range(len(short.stack)))
    assert short.stack[0].file.endswith("/0.py")
    assert (short.groups, short.is_truncated) == (evidence.groups, False)
    groups = tuple(group(str(at)) for at in range(8))
    short = shorten_evidence(RankEvidence(rank=1, state="sleeps", stack=(frame(1),) * 40, groups=groups))
    assert size(short) <= RANK_BYTES_MAX
    assert short.groups
    assert [(one.name, one.calls[-1]) for one in short.groups] == [
        (one.name, one.calls[-1]) for one in groups[: len(short.groups)]
    ]
    assert short.is_truncated


@pytest.mark.parametrize("text", ["\0" * 9000, "\udcff" * 9000, "x" * 9000, "\U0001f600" * 9000])
def test_no_text_of_a_worker_makes_it_longer(text: str) -> None:
    call = Call(number=1, operation=text, shape=text)
    evidence = RankEvidence(
        rank=7,
        state="blocked",
        stack=(Frame(function=text, file=text, line=1),) * 40,
        groups=(GroupCalls(name=text, description=text, calls=(call, call)),) * 8,
        missing=(text,) * 9,
    )
    short = shorten_evidence(evidence)
    assert size(short) <= RANK_BYTES_MAX
    assert (short.rank, short.state) == (7, "blocked")


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", '{"targets": [], "limit_s": 0}', '{"targets": [], "levels": "some"}', '{"targets": [{"rank": 1}]}',
        '{"targets": [], "more": 1}',
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused(text: str) -> None:
    with pytest.raises(RecordError):
        codec.decode(ExamineRequest, text, "the request")
