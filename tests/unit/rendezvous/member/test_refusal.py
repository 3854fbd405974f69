"""How an agent's job differs from a run, in words: what is refused, and what may be another on each node."""

from __future__ import annotations

import pytest

from rendezvous.member.refusal import describe_difference, describe_other_arguments, describe_other_run
from rendezvous.records import Spec, StoreOwner

LIMITS = "--nnodes 1:2 --max-restarts 3"


def spec(*words: str, mesh: str = "dp=*", limits: str = LIMITS) -> Spec:
    """A spec whose words have the codes 0001, 0002, ... by their texts."""
    codes = "".join(f"{sum(map(ord, word)) % 10_000:04}" for word in words)
    return Spec(mesh=mesh, limits=limits, digest=" ".join(words), word_codes=codes)


def describe(theirs: Spec, ours: Spec, *labels: str) -> str:
    return describe_difference("run y", theirs, ours, labels)


def test_equal_jobs_differ_in_nothing() -> None:
    assert describe(spec("a", "b"), spec("a", "b"), "A", "B") == ""


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
    assert describe(spec("a", **theirs), spec("a"), "A") == f"run y was started {sentence}"


@pytest.mark.parametrize(
    ("theirs", "ours", "sentence"),
    [
        ("script t.py --lr 1", "script u.py --lr 1", ": W1 differs"),
        ("script t.py --lr 1", "script u.py --lr 2", ": W1 differs"),
        ("path t.py", "script u.py --lr 2", ": W0, W1 differ"),
    ],
)
def test_another_program_is_refused_and_named(theirs: str, ours: str, sentence: str) -> None:
    labels = [f"W{at}" for at in range(len(ours.split()))]
    found = describe(spec(*theirs.split()), spec(*ours.split()), *labels)
    assert found == f"run y was started with another command{sentence}"


@pytest.mark.parametrize(
    ("theirs", "ours", "sentence"),
    [
        ("script t.py --lr 1", "script t.py --lr 2", ": W3 differs"),
        ("script t.py b c d e f", "script t.py 2 3 4 5 6", ": W2, W3, W4 and 2 more differ"),
        ("script t.py --lr 1", "script t.py --lr 1 --big", ", without W4"),
        ("script t.py --lr 1", "script t.py --big --lr 1", ", without W2"),
        ("script t.py --lr 1 --big", "script t.py --lr 1", ", with 1 more argument after W3"),
        ("script t.py a b", "script t.py", ", with 2 more arguments after W1"),
        ("script t.py x y z", "script t.py p q", ": it differs from W2 on"),
        ("script t.py", "script t.py", ""),
    ],
)
def test_other_arguments_are_let_in_and_named(theirs: str, ours: str, sentence: str) -> None:
    labels = tuple(f"W{at}" for at in range(len(ours.split())))
    run, own = spec(*theirs.split()), spec(*ours.split())
    run = Spec(mesh=run.mesh, limits=run.limits, digest="of other words", word_codes=run.word_codes)
    assert describe_difference("run y", run, own, labels) == ""
    assert describe_other_arguments(run, own, labels) == f"with another command line{sentence}"
    assert describe_other_arguments(own, own, labels) == ""


def test_words_beyond_those_that_have_codes_may_differ() -> None:
    run, own = spec("script", "t.py", "a"), spec("script", "t.py", "a")
    run = Spec(mesh=run.mesh, limits=run.limits, digest="more", word_codes=run.word_codes)
    labels = ("W0", "W1", "W2", "W3", "W4")
    assert describe_difference("run y", run, own, labels) == ""
    assert describe_other_arguments(run, own, labels) == "with another command line"


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
    run, own = (
        Spec(mesh="dp=*", limits=LIMITS, digest="a", word_codes="00010002", shared_options=text)
        for text in (theirs, ours)
    )
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
    found, hint = describe_other_run("h1:29400", theirs, ours, has_begun=has_begun, port_option="--store-port")
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
            "prefix meshrun, and all nodes of a run need the same --rdzv-prefix",
            "give all nodes the same --rdzv-prefix; if these are two runs, give this run another port with "
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
