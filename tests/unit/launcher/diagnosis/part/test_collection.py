"""What the leader makes of what all nodes have seen: when it is complete, whom it names, and how long it may be."""

from __future__ import annotations

import pytest

from launcher.diagnosis.answer import Conclusion
from launcher.diagnosis.evidence import Frame, RankEvidence, State
from launcher.diagnosis.part.collection import NO_MESH, STACKS_MAX, Collection, split_pages
from launcher.diagnosis.part.messages import Evidence, decode_note
from launcher.views.questions.messages import Examine, encode_note
from launcher.worker.grid import WorkerMesh
from rendezvous.peers.messages import NOTE_MAX

LOADER = (Frame(function="read", file="/home/me/loader.py", line=31),)
WAITING = (Frame(function="all_reduce", file="/lib/torch/distributed/distributed_c10d.py", line=3),)


def make_mesh(size: int) -> WorkerMesh:
    return WorkerMesh(axes=("dp",), shape=(size,), rank=0, group_names=("dp",))


def show(*ranks: RankEvidence, size: int = 4, round: int = 1, node: str = "a") -> Evidence:
    return Evidence(node=node, round=round, mesh=make_mesh(size), ranks=ranks)


def make_collection(*members: str) -> Collection:
    request = Examine(purpose="silence", limit_s=5.0)
    return Collection(request=request, until=100.0, takes=[], members=dict.fromkeys(members, "") or None)


def conclude(*found: Evidence) -> Conclusion:
    collection = make_collection()
    for evidence in found:
        collection.add(evidence.node, evidence)
    return collection.conclude()


def make_ranks(odd: State = "sleeps", size: int = 4) -> list[RankEvidence]:
    """Return ranks of which the last reads a file, in this state, and the others wait."""
    last = RankEvidence(rank=size - 1, state=odd, stack=None if odd == "ended" else LOADER)
    return [*(RankEvidence(rank=rank, state="sleeps", stack=WAITING) for rank in range(size - 1)), last]


@pytest.mark.parametrize(
    ("ranks", "to_end"),
    [
        (make_ranks(), (3,)),
        (make_ranks("stopped"), (3,)),
        (make_ranks("ended"), (0,)),
        ([RankEvidence(rank=rank, state="sleeps", stack=WAITING) for rank in range(4)], (0,)),
        ([RankEvidence(rank=rank, state="ended" if rank == 0 else "sleeps") for rank in range(4)], (1,)),
        (make_ranks()[1:3], (1,)),
        ([], ()),
    ],
    ids=["named", "stopped", "has ended", "nobody named", "the first has ended", "unknown", "nothing known"],
)
def test_a_restart_ends_those_that_live(ranks: list[RankEvidence], to_end: tuple[int, ...]) -> None:
    assert conclude(show(*ranks)).to_end == to_end


def test_it_is_complete_with_all_ranks_or_if_nobody_runs_any() -> None:
    ranks = make_ranks()
    collection = make_collection("a", "b")
    collection.add("a", show(*ranks[:2]))
    assert not collection.is_complete
    collection.add("b", show(*ranks[2:], round=2))
    assert not collection.is_complete, "another round's"
    collection.add("b", show(*ranks[2:]))
    assert collection.is_complete
    idle = make_collection("a", "b")
    idle.add("a", show(round=0))
    idle.add("a", show(round=0))
    assert not idle.is_complete, "one of two"
    idle.add("b", Evidence(node="b", round=0, mesh=NO_MESH, ranks=()))
    assert idle.is_complete
    assert (idle.conclude().round, idle.conclude().is_news) == (0, False)
    unknown = make_collection()
    unknown.add("a", show(round=0))
    assert not unknown.is_complete


@pytest.mark.parametrize(
    "mesh",
    [
        WorkerMesh(axes=(), shape=(), rank=0, group_names=()),
        WorkerMesh(axes=("dp",), shape=(2, 2), rank=0, group_names=()),
        WorkerMesh(axes=("dp",), shape=(0,), rank=0, group_names=()),
        WorkerMesh(axes=("dp", "tp"), shape=(1 << 11, 1 << 11), rank=0, group_names=()),
    ],
    ids=["no axes", "two sizes", "empty", "huge"],
)
def test_a_mesh_that_cannot_be_is_left_out(mesh: WorkerMesh) -> None:
    assert conclude(Evidence(node="a", round=1, mesh=mesh, ranks=())).round == 0


def test_ranks_outside_the_mesh_are_left_out_and_only_a_live_one_that_is_named_is_news() -> None:
    conclusion = conclude(
        show(*make_ranks(), RankEvidence(rank=4, state="ended"), RankEvidence(rank=-1, state="ended"))
    )
    assert conclusion.answer.culprits == (3,)
    assert conclude(show(*make_ranks())).is_news
    assert not conclude(show(*make_ranks("ended"))).is_news


def test_what_is_missing_is_told_with_its_node() -> None:
    remarks = ("the disk is full",)
    of_b = Evidence(node="b", round=1, mesh=make_mesh(4), ranks=tuple(make_ranks()[2:]), remarks=remarks)
    answer = conclude(show(make_ranks()[0]), of_b).answer
    assert [(gap.ranks, gap.reason) for gap in answer.gaps[:2]] == [
        ((1,), "their agent has not answered in time"),
        ((2, 3), "b: the disk is full"),
    ]


@pytest.mark.parametrize("letter", ["x", "\u5b57"], ids=["letters", "characters of three bytes"])
def test_an_answer_on_very_many_ranks_fits_into_a_note(letter: str) -> None:
    ranks = [
        RankEvidence(
            rank=rank,
            state="sleeps",
            stack=(Frame(function=letter * 60, file=f"/f{rank}.py", line=1),),
            missing=tuple(f"{letter * 100} {rank} {at}" for at in range(4)),
        )
        for rank in range(1000)
    ]
    conclusion = conclude(show(*ranks, size=1000))
    text = encode_note(conclusion)
    assert len(text) <= NOTE_MAX
    assert decode_note(text) == conclusion
    assert conclusion.answer.sentences


def test_pages_are_short_and_of_many_different_stacks_the_first_are_shown() -> None:
    stacks = [
        tuple(Frame(function="f" * 28, file=f"/{rank}x{at}.py", line=1) for at in range(12)) for rank in range(99)
    ]
    ranks = [RankEvidence(rank=rank, state="sleeps", stack=stack) for rank, stack in enumerate(stacks)]
    shown = conclude(show(*ranks, size=99)).stacks
    assert 25_000 < len(shown) <= STACKS_MAX + 100
    assert shown.endswith("\n... the rest is in the folders\n")
    ranks = [RankEvidence(rank=rank, state="sleeps") for rank in range(40)]
    pages = list(split_pages(show(*ranks, size=40)))
    assert [rank.rank for page in pages for rank in page.ranks] == list(range(40))
    assert max(len(page.ranks) for page in pages) == 16
    assert len(list(split_pages(show()))) == 1, "that there are none is said, too"
