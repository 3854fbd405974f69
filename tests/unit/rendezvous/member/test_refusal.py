"""How an agent's job differs from a run: what is refused, and what may be another on each node."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rendezvous.member.refusal import find_difference
from rendezvous.records import Spec

OPTIONS = {"--nnodes": "1:2", "--max-restarts": "3"}


def spec(program: str = "a", mesh: str = "dp=*", options: Mapping[str, str] = OPTIONS, **more: str) -> Spec:
    return Spec(mesh=mesh, options=options, digest=program, **more)  # type: ignore[arg-type]


def compare(theirs: Spec, ours: Spec) -> str:
    """The reason as its kind and values, "" for none."""
    found = find_difference(theirs, ours, "y", is_served=False)
    return str(found or "").replace("other-options run=y is_served=False; ", "")


def test_jobs_differ_by_their_secret_and_program_and_not_by_its_arguments() -> None:
    assert compare(spec(), spec()) == ""
    assert compare(spec("b"), spec("a")) == "other-command run=y is_served=False"
    assert compare(spec(arguments_digest="x"), spec(arguments_digest="y")) == ""
    theirs = Spec(mesh="dp=2", options={}, digest="b", has_secret=True)
    assert compare(theirs, spec()) == "other-secret run=y has_secret=True"


@pytest.mark.parametrize(
    ("theirs", "found"),
    [
        ({"mesh": "dp=2"}, "option-differs option=--mesh theirs=dp=2 ours=dp=*"),
        ({"options": {**OPTIONS, "--nnodes": "1:3"}}, "option-differs option=--nnodes theirs=1:3 ours=1:2"),
        ({"options": {"--nnodes": "1:2"}}, "option-only-here option=--max-restarts ours=3"),
        ({"options": {**OPTIONS, "--grow": "never"}}, "option-not-here option=--grow theirs=never"),
        ({"options": {"--grow": "x --nnodes 9", **OPTIONS}}, "option-not-here option=--grow theirs=x --nnodes 9"),
        ({"mesh": "dp=2", "options": {"--nnodes": "1:2"}},
         "option-differs option=--mesh theirs=dp=2 ours=dp=*; option-only-here option=--max-restarts ours=3"),
    ],
)  # fmt: skip
def test_each_option_that_differs_is_named_with_both_values(theirs: dict[str, str], found: str) -> None:
    assert compare(spec(**theirs), spec()) == found


JAX, TORCH = {"--framework": "jax"}, {"--framework": "torch"}


@pytest.mark.parametrize(
    ("theirs", "ours", "found"),
    [
        (JAX, TORCH, "option-differs option=--framework theirs=jax ours=torch"),
        (JAX, {}, ""),
        ({}, JAX, ""),
        (JAX, JAX, ""),
    ],
)
def test_a_shared_option_is_compared_if_both_have_it(theirs: dict[str, str], ours: dict[str, str], found: str) -> None:
    run, own = (Spec(mesh="dp=*", options=OPTIONS, digest="a", shared_options=shared) for shared in (theirs, ours))
    assert compare(run, own) == found
