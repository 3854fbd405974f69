"""Why an agent is not let into a run, in words: which option, or which word of the command, is another one."""

from __future__ import annotations

import pytest

from rendezvous.member.refusal import describe_difference
from rendezvous.records import Spec

LIMITS = "--nnodes 1:2 --max-restarts 3"


def spec(*words: str, mesh: str = "dp=*", limits: str = LIMITS, has_codes: bool = True) -> Spec:
    """A spec whose words have the codes 0001, 0002, ... by their texts."""
    codes = "".join(f"{sum(map(ord, word)) % 10_000:04}" for word in words) if has_codes else ""
    return Spec(mesh=mesh, limits=limits, digest=" ".join(words), word_codes=codes)


def describe(theirs: Spec, ours: Spec, *labels: str) -> str:
    return describe_difference("run y", theirs, ours, labels)


def test_equal_jobs_differ_in_nothing() -> None:
    assert describe(spec("a", "b"), spec("a", "b"), "A", "B") == ""
    assert describe(spec("a", "b", has_codes=False), spec("a", "b"), "A", "B") == "", "of an earlier version"


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        ({"mesh": "dp=2"}, "with --mesh dp=2, this agent with --mesh dp=*"),
        ({"limits": "--nnodes 1:3 --max-restarts 3"}, "with --nnodes 1:3, this agent with --nnodes 1:2"),
        ({"limits": "--nnodes 1:2"}, "without --max-restarts, this agent with --max-restarts 3"),
        ({"limits": f"{LIMITS} --grow never"}, "with --grow never, this agent without it"),
        ({"limits": f"{LIMITS} --tolls leaf=2"}, "with --level-costs leaf=2, this agent without it"),
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
        ("script t.py --lr 1", "script t.py --lr 2", ": W3 differs"),
        ("script t.py --lr 1", "script u.py --lr 2", ": W1, W3 differ"),
        ("a b c d e f", "a 1 2 3 4 5", ": W1, W2, W3 and 2 more differ"),
        ("script t.py --lr 1", "script t.py --lr 1 --big", ", without W4"),
        ("script t.py --lr 1", "script t.py --big --lr 1", ", without W2"),
        ("script t.py --lr 1 --big", "script t.py --lr 1", ", with 1 more argument after W3"),
        ("script t.py a b", "script t.py", ", with 2 more arguments after W1"),
        ("script t.py x y z", "script t.py p q", ": it differs from W2 on"),
        ("z", "a z", ", without W0"),
        ("a z", "z", ", with 1 more argument after W0"),
    ],
)
def test_of_a_command_is_said_which_word_differs(theirs: str, ours: str, sentence: str) -> None:
    labels = [f"W{at}" for at in range(len(ours.split()))]
    found = describe(spec(*theirs.split()), spec(*ours.split()), *labels)
    assert found == f"run y was started with another command{sentence}"


def test_without_codes_only_that_the_command_is_another_one_is_known() -> None:
    for theirs in (spec("a", "b", has_codes=False), Spec(mesh="dp=*", limits=LIMITS, digest="x", word_codes="123")):
        found = describe(theirs, spec("a", "c"), "A", "C")
        assert found.startswith("run y was started with another command")
        assert describe(theirs, spec("a", "c")) == "run y was started with another command"
