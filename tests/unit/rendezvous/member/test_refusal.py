"""How an agent's job differs from a run, in words: what is refused, and what may be another on each node."""

from __future__ import annotations

import pytest

from rendezvous.member.refusal import describe_difference, describe_other_arguments, describe_other_run
from rendezvous.records import Spec, StoreOwner

LIMITS = "--nnodes 1:2 --max-restarts 3"


def spec(program: str, arguments: str = "", mesh: str = "dp=*", limits: str = LIMITS) -> Spec:
    return Spec(mesh=mesh, limits=limits, digest=program, arguments_digest=arguments)


def describe(theirs: Spec, ours: Spec) -> str:
    return describe_difference("run y", theirs, ours)


def test_equal_jobs_differ_in_nothing() -> None:
    assert describe(spec("a", "b"), spec("a", "b")) == ""
    assert describe_other_arguments(spec("a", "b"), spec("a", "b")) == ""


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        ({"mesh": "dp=2"}, "with --mesh dp=2, this agent with --mesh dp=*"),
        ({"limits": "--nnodes 1:3 --max-restarts 3"}, "with --nnodes 1:3, this agent with --nnodes 1:2"),
        ({"limits": "--nnodes 1:2"}, "without --max-restarts, this agent with --max-restarts 3"),
        ({"limits": f"{LIMITS} --grow never"}, "with --grow never, this agent without it"),
        ({"limits": f"{LIMITS} --level-costs leaf=2"}, "with --level-costs leaf=2, this agent without it"),
        ({"limits": f"x {LIMITS}"}, f"with limits 'x {LIMITS}', this agent has '{LIMITS}'"),
        (
            {"mesh": "dp=2", "limits": "--nnodes 1:2"},
            "with --mesh dp=2, this agent with --mesh dp=*; without --max-restarts, this agent with --max-restarts 3",
        ),
    ],
)  # fmt: skip
def test_options_are_named_with_both_values(theirs: dict[str, str], sentence: str) -> None:
    assert describe(spec("a", **theirs), spec("a")) == f"run y was started {sentence}"


def test_another_program_is_refused() -> None:
    sentence = "this agent runs another command than the first node of run y"
    assert describe(spec("t.py"), spec("u.py")) == describe(spec("t.py", "1"), spec("u.py", "2")) == sentence


def test_other_arguments_are_let_in_and_mentioned() -> None:
    run, own = spec("t.py", "1"), spec("t.py", "2")
    assert describe(run, own) == ""
    assert describe_other_arguments(run, own) == "with other arguments for the script"


@pytest.mark.parametrize(
    ("theirs", "ours", "sentence"),
    [
        ("--framework jax", "--framework torch", "with --framework jax, this agent with --framework torch"),
        ("--framework jax", "", ""),
        ("", "--framework jax", ""),
        ("--framework jax", "--framework jax", ""),
    ],
)
def test_a_shared_option_is_compared_where_both_give_it(theirs: str, ours: str, sentence: str) -> None:
    run, own = (Spec(mesh="dp=*", limits=LIMITS, digest="a", shared_options=text) for text in (theirs, ours))
    assert describe(run, own) == (f"run y was started {sentence}" if sentence else "")


def owner(run_id: str, prefix: str = "meshrun", node: str = "h1") -> StoreOwner:
    return StoreOwner(prefix=prefix, run_id=run_id, node_name=node, presence_address="")


@pytest.mark.parametrize(
    ("theirs", "ours", "has_begun", "sentence"),
    [
        (
            owner("none"),
            owner("777"),
            False,
            "another agent, on node h1, waits at h1:29400 for the run without an id; this agent is of run 777, and all "
            "nodes of a run need the same --rdzv-id",
        ),
        (
            owner("777"),
            owner("none"),
            True,
            "the store at h1:29400 is that of run 777, which is running; this agent is of the run without an id",
        ),
        (
            owner("none", prefix="mine"),
            owner("none"),
            True,
            "the store at h1:29400 is that of the run without an id with prefix mine, which is running; this agent is "
            "of the run without an id with prefix meshrun",
        ),
    ],
)
def test_a_run_without_an_id_is_not_called_by_torchrun_s_word_for_that(
    theirs: StoreOwner, ours: StoreOwner, has_begun: bool, sentence: str
) -> None:
    found, hint = describe_other_run("h1:29400", theirs, ours, has_begun=has_begun, port_option="LAUNCHER_STORE_PORT")
    assert found == sentence
    assert "none" not in hint


@pytest.mark.parametrize(
    ("theirs", "has_begun", "sentence", "hint"),
    [
        (
            owner("9021"),
            False,
            "another agent, on node h1, waits at h1:29400 for run 9021; this agent is of run 777, and all nodes of a "
            "run need the same --rdzv-id",
            "give all nodes the same --rdzv-id; if these are two runs, give this run another port with --rdzv-endpoint",
        ),
        (
            owner("9021"),
            True,
            "the store at h1:29400 is that of run 9021, which is running; this agent is of run 777",
            "give this run another port with --rdzv-endpoint, or start it when run 9021 has ended",
        ),
        (
            owner("777", prefix="mine"),
            False,
            "another agent, on node h1, waits at h1:29400 for run 777 with prefix mine; this agent is of run 777 with "
            "prefix meshrun, and all nodes of a run need the same LAUNCHER_RDZV_PREFIX",
            "give all nodes the same LAUNCHER_RDZV_PREFIX; if these are two runs, give this run another port with "
            "--rdzv-endpoint",
        ),
    ],
)
def test_an_agent_at_the_store_of_another_run_learns_which_it_met(
    theirs: StoreOwner, has_begun: bool, sentence: str, hint: str
) -> None:
    found = describe_other_run(
        "h1:29400", theirs, owner("777", node="h2"), has_begun=has_begun, port_option="--rdzv-endpoint"
    )
    assert found == (sentence, hint)
