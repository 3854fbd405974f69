"""What a member costs the store does not grow with the job: simulated agents, counted by a real etcd itself."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import scale

STEPS = ("first round", "member lost", "late members", "leader lost")
BESIDES = 10  # requests of a step that one member makes for all, and what a busy machine adds
SLACK = 1.15  # of bytes per member: with few members what is done once weighs more, so there is less in truth

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def samples() -> dict[int, dict[str, dict[str, Any]]]:
    """Number of members -> step -> what it took."""
    return {
        size: {line["step"]: line for line in scale.sample("shared", size, scale.CALM_TTL_S, STEPS, 0.0)}
        for size in (8, 32)
    }


@pytest.mark.parametrize("size", [8, 32])
def test_a_member_needs_six_requests_for_the_first_round_then_two_each(
    samples: dict[int, dict[str, dict[str, Any]]], size: int
) -> None:
    first, lost = samples[size]["first round"], samples[size]["member lost"]
    assert first["requests"]["LeaseGrant"] == size
    # Who joins asks for the job's name and registers; later each reads what it is given.
    assert 3 * size <= first["requests"]["Txn"] <= 3 * size + BESIDES
    assert 2 * size <= first["requests"]["Watch"] <= 2 * size + BESIDES
    # Each says that it has stopped, and reads what it is given.
    assert 2 * (size - 1) <= lost["requests"]["Txn"] <= 2 * (size - 1) + BESIDES
    assert size - 1 <= lost["commits"] <= size - 1 + BESIDES


@pytest.mark.parametrize("size", [8, 32])
def test_every_step_makes_the_rounds_that_it_should(samples: dict[int, dict[str, dict[str, Any]]], size: int) -> None:
    assert {step: line["rounds"] for step, line in samples[size].items()} == {
        "first round": 1,
        "member lost": 1,
        "late members": 1,  # one of them takes the place that is free
        "leader lost": 1,
    }
    records = samples[size]["leader lost"]["records"]
    assert records["members"][0] == size - 2 + max(2, size // 8)
    assert records["ctl/round"][0] == 1


@pytest.mark.parametrize("step", STEPS)
def test_requests_and_bytes_per_member_do_not_grow_with_the_job(
    samples: dict[int, dict[str, dict[str, Any]]], step: str
) -> None:
    few, many = samples[8][step], samples[32][step]
    assert sum(many["requests"].values()) / 32 <= SLACK * sum(few["requests"].values()) / 8
    for way in ("bytes_in", "bytes_out"):
        assert many[way] / 32 <= SLACK * few[way] / 8
