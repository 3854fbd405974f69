"""What `meshctl why` prints, to the letter."""

from __future__ import annotations

import json
from textwrap import dedent
from typing import Any

import pytest
from msgspec.structs import replace

from launcher.diagnosis.answer import make_answer, render_answer
from launcher.diagnosis.evidence import Call, Frame, GroupCalls, RankEvidence
from launcher.diagnosis.gather import NO_SOCKET
from launcher.diagnosis.stack_groups import render_stacks
from launcher.diagnosis.verdict import diagnose
from launcher.worker.grid import WorkerMesh
from rendezvous.codec import encode

MESH = WorkerMesh(("pp", "tp"), (2, 4), 0, ("pp", "tp"))
TORCH = "/opt/venv/lib/python3.11/site-packages/torch/"
WAIT = (
    Frame(function="all_reduce", file=f"{TORCH}distributed/distributed_c10d.py", line=3172),
    Frame(function="train_step", file="/home/me/train.py", line=88),
)
LOAD = (
    Frame(function="read", file="/opt/venv/lib/python3.11/codecs.py", line=322),
    Frame(function="load", file="/home/me/loader.py", line=31),
    Frame(function="train_step", file="/home/me/train.py", line=86),
)


def see(rank: int, number: int, is_open: bool = True, **more: Any) -> RankEvidence:
    call = Call(number=number, operation="all_reduce", shape="[4]", is_open=is_open, age_s=312.4)
    groups = (GroupCalls(name=f"tp{rank // 4}", description="mesh_tp", calls=(call,)),)
    return RankEvidence(rank=rank, **{"state": "sleeps", "stack": WAIT, "groups": groups, **more})


def hang() -> list[RankEvidence]:
    ranks = [see(rank, 1042) for rank in range(8)]
    ranks[5] = see(5, 1041, is_open=False, stack=LOAD, missing=("py-spy has not answered in time",))
    return ranks


def show(ranks: list[RankEvidence], **more: Any) -> str:
    return render_answer(replace(make_answer(diagnose(ranks, MESH), ranks, MESH), **more))


def test_a_program_reads_the_answer_with_its_verdict_gaps_and_remedies() -> None:
    shown = show(hang(), folders=["h0:/logs/incident_1_1", "h1:/logs/incident_1_1"])
    assert shown == dedent(
        """\
        rank 5 (pp=1 tp=1) has not entered all_reduce 1042 of tp [4-7]; 3 others have
          waited for 312 s.
        rank 5 (pp=1 tp=1) is in load (loader.py:31), inside read (codecs.py:322),
          asleep.

        Rank 5 (pp=1 tp=1), the innermost frame first:
          read                         /opt/venv/lib/python3.11/codecs.py:322
          load                         /home/me/loader.py:31
          train_step                   /home/me/train.py:86

        Not known:
          rank 5: py-spy has not answered in time

        All evidence:
          h0:/logs/incident_1_1
          h1:/logs/incident_1_1

        hint: see what rank 5 (pp=1 tp=1) does in load at /home/me/loader.py:31
        """
    )
    found = json.loads(encode(replace(make_answer(diagnose(hang(), MESH), hang(), MESH), folders=("h0:/logs",))))
    assert (found["kind"], found["culprits"], found["folders"]) == ("late", [5], ["h0:/logs"])
    assert found["sentences"][0].startswith("rank 5 (pp=1 tp=1) has not entered ")
    assert [(one["rank"], one["frames"][1]) for one in found["stacks"]] == [(5, ["load", "/home/me/loader.py", 31])]


def test_what_is_missing_is_told_once_for_all_ranks_with_a_remedy() -> None:
    """As of a job that nothing prepared, JAX's for example: stacks are all there is."""
    ranks = [see(rank, 1, groups=None, missing=(NO_SOCKET,)) for rank in range(7)]
    ranks[2] = see(2, 1, groups=None, stack=LOAD, missing=(NO_SOCKET,))
    assert show(ranks) == dedent(
        """\
        rank 2 (pp=0 tp=2) is in load (loader.py:31), inside read (codecs.py:322),
          asleep.
        of the other 6 ranks, rank 0 (pp=0 tp=0) is in train_step (train.py:88), inside
          all_reduce (distributed_c10d.py:3172), asleep.

        Rank 2 (pp=0 tp=2), the innermost frame first:
          read                         /opt/venv/lib/python3.11/codecs.py:322
          load                         /home/me/loader.py:31
          train_step                   /home/me/train.py:86

        Not known:
          ranks 0-6: no flight recorder: the worker has not imported torch.distributed;
            where it is started by a program or in another Python, set
            LAUNCHER_HANG_EVIDENCE=1

        hint: see what rank 2 (pp=0 tp=2) does in load at /home/me/loader.py:31, and ask again in a minute
        """
    )


@pytest.mark.parametrize(
    ("rank_5", "hint"),
    [
        (see(5, 1, groups=None, state="stopped"),
         "continue rank 5 (pp=1 tp=1) with kill -CONT, or detach the debugger "),
        (see(5, 1, state="ended", groups=None, exit_code=0),
         "read the end of the log of rank 5 (pp=1 tp=1): it exited "),
        (see(5, 1041, is_open=False, state="blocked"), "check dmesg on the node of rank 5 (pp=1 tp=1): a disk, "),
        (see(5, 1041, is_open=False, stack=None), "run py-spy dump, or gdb, on the node of rank 5 (pp=1 tp=1): "),
        (see(5, 1042),
         "check the links between the nodes and the devices' errors in dmesg; with NCCL, set NCCL_DEBUG="),
        (see(5, 1, groups=None, stack=None), "run py-spy dump, or gdb, on the node of rank 5 (pp=1 tp=1) to see "),
        (None, "check whether the agent on the node of rank 5 (pp=1 tp=1) runs"),
    ],
    ids=["stopped", "ended", "blocked", "no stack", "network", "nothing of it", "no agent"],
)  # fmt: skip
def test_the_last_line_says_what_to_do(rank_5: RankEvidence | None, hint: str) -> None:
    ranks = [see(rank, 1042) for rank in range(8) if rank != 5]
    last = show([*ranks, rank_5] if rank_5 else ranks).splitlines()[-1]
    assert last.startswith(f"hint: {hint}")


def test_equal_stacks_are_one_group_the_odd_one_first() -> None:
    """Lines and whether a rank sleeps do not make a difference; a stopped rank does."""
    ranks = hang()
    ranks[1] = see(1, 1042, state="stopped")
    ranks[2] = see(2, 1042, stack=None)
    ranks[3] = see(3, 1042, state="runs", stack=(WAIT[0], Frame(function="train_step", file=WAIT[1].file, line=90)))
    long = Frame(function="a_function_with_a_name_of_great_length", file=f"/home/me/{'deep/' * 20}data.py", line=7)
    ranks[4] = see(4, 1042, stack=(long, *LOAD * 5))
    shown = render_stacks(ranks, MESH)
    assert max(map(len, shown.splitlines())) <= 80
    assert shown == dedent(
        """\
        rank 1 (pp=0 tp=1): stopped by a signal or a debugger
          all_reduce                   torch/distributed/distributed_c10d.py:3172
          train_step                   /home/me/train.py:88

        rank 4 (pp=1 tp=0): asleep
          a_function_with_a_name_of... ...p/deep/deep/deep/deep/deep/deep/deep/data.py:7
          read                         /opt/venv/lib/python3.11/codecs.py:322
          load                         /home/me/loader.py:31
          train_step                   /home/me/train.py:86
          read                         /opt/venv/lib/python3.11/codecs.py:322
          load                         /home/me/loader.py:31
          train_step                   /home/me/train.py:86
          read                         /opt/venv/lib/python3.11/codecs.py:322
          load                         /home/me/loader.py:31
          train_step                   /home/me/train.py:86
          read                         /opt/venv/lib/python3.11/codecs.py:322
          load                         /home/me/loader.py:31
          ... and 4 more

        rank 5 (pp=1 tp=1): asleep
          read                         /opt/venv/lib/python3.11/codecs.py:322
          load                         /home/me/loader.py:31
          train_step                   /home/me/train.py:86

        ranks 0, 3, 6, 7: 3 asleep, 1 running
          all_reduce                   torch/distributed/distributed_c10d.py:3172
          train_step                   /home/me/train.py:88

        rank 2 (pp=0 tp=2): asleep; stack unknown
        """
    )
