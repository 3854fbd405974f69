"""The checker of the soak finds what it looks for: each rule, broken once in a made-up history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from launcher.placement.adapter.description import NodeAssignment, encode_assignment
from tests.support.jobs.multi_node import Life
from tests.support.soak import history, lives
from tests.support.soak.history import Change
from tests.support.soak.lives import World


def share(*ranks: int, world_size: int = 2, port: int = 7) -> str:
    return encode_assignment(
        NodeAssignment(
            ranks=ranks, world_size=world_size, shape=(world_size,), group_rank=0, group_world_size=2, role_ranks=ranks,
            role_world_size=world_size, master_addr="a", master_port=port,
        )
    )  # fmt: skip


def seal(round: int, restart_count: int = 0) -> dict[str, Any]:
    return {
        "round": round, "plan_token": f"t{round}", "world_size": 2, "coordinator": "a:7",
        "restart_count": restart_count, "provisional_round": 0,
    }  # fmt: skip


def status(round: int, **more: Any) -> dict[str, Any]:
    return {"round": round, "outcome": "", "is_stopped": False, "leaving": "", "is_port_taken": False, **more}


def sealed(round: int, *shares: str, restart_count: int = 0) -> list[tuple[str, dict[str, Any] | None]]:
    made: list[tuple[str, dict[str, Any] | None]] = [
        (f"assign/{round}/t{round}/m{index}", {"content": text}) for index, text in enumerate(shares)
    ]
    return [*made, ("ctl/round", seal(round, restart_count))]


ROUND_1 = sealed(1, share(0), share(1))
STOP = [("ctl/stop", {"round": 1})]
STOPPED = [(f"status/m{index}", status(1, is_stopped=True)) for index in range(2)]
FAILED = [("status/m0", status(1, outcome="failed"))]
GONE = [("members/m0", None)]


def broken(*parts: Sequence[tuple[str, dict[str, Any] | None]]) -> list[str]:
    """The rules that are broken by this history, by their letters."""
    joined = [item for part in parts for item in part]
    changes = [Change(revision, f"job/{key}", record) for revision, (key, record) in enumerate(joined, 1)]
    return [sentence.removeprefix("job: ")[:2] for sentence in history.broken_rules(changes)]


def round_2(restart_count: int = 0) -> list[tuple[str, dict[str, Any] | None]]:
    return sealed(2, share(0), share(1), restart_count=restart_count)


def test_a_history_as_it_should_be_breaks_nothing() -> None:
    assert broken(ROUND_1, FAILED, STOP, STOPPED, round_2(1)) == []
    assert broken(ROUND_1, FAILED, STOP, GONE, STOPPED[1:], round_2()) == []
    assert broken(ROUND_1, [("ctl/verdict", {"kind": "success"}), ("ctl/verdict", None)]) == []


def test_each_broken_rule_of_the_store_is_found() -> None:
    assert broken(sealed(1, share(0), share(0))) == ["S1"]
    assert broken(sealed(1, share(0), share(1, port=8))) == ["S1"]
    assert broken(ROUND_1, STOPPED, round_2()) == ["S2"]
    assert broken(ROUND_1, STOP, STOPPED[1:], round_2()) == ["S2"]
    assert broken(ROUND_1, [("ctl/verdict", {}), ("ctl/verdict", {})]) == ["S3"]
    assert broken(ROUND_1, [("ctl/verdict", {})], STOP, STOPPED, round_2()) == ["S3"]
    assert broken(ROUND_1, STOP, STOPPED, round_2(1)) == ["S5"]
    assert broken(ROUND_1, FAILED, STOP, STOPPED, round_2(2)) == ["S5"]
    assert broken(ROUND_1, FAILED, STOP, STOPPED, round_2(0)) == ["S5"]
    assert broken(ROUND_1, STOP, STOPPED, sealed(3, share(0), share(1))) == ["S7"]


def life(rank: int, round: int, begun_s: float, last_s: float, pid: int = 1) -> Life:
    return Life("n1", rank, round, pid, begun_s, last_s)


def test_each_broken_rule_of_the_workers_is_found() -> None:
    rounds = [history.Round(1, 1, seal(1), {})]
    world = World(0, 1, 2, "a:7", 0)
    well = [life(0, 1, 0, 1), life(1, 1, 0, 1), life(0, 2, 2, 3)]
    assert list(lives.broken_rules(well, [life(0, 1, 0, 1.5)], [world], rounds)) == []

    def letters(*found: Life, kin: tuple[Life, ...] = (), said: World = world) -> list[str]:
        return [sentence[:2] for sentence in lives.broken_rules(found, kin, [said], rounds)]

    assert letters(life(0, 1, 0, 1), life(0, 1, 5, 6, pid=2)) == ["S1"]
    assert letters(life(0, 1, 0, 2.001), life(1, 2, 2, 3)) == ["S2"]
    assert letters(life(0, 2, 2, 3), kin=(life(1, 1, 0, 2.5),)) == ["S2"]
    assert letters(said=world._replace(world_size=3)) == ["S1"]
    assert letters(said=world._replace(master="a:8")) == ["S1"]
    assert letters(said=world._replace(restart_count=1)) == ["S1"]
    assert letters(said=world._replace(rank=2)) == ["S1"]
    assert letters(said=world._replace(round=9)) == ["S1"]
