"""What would happen if a node were lost, for runs in different states."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from launcher.model.errors import UsageError
from launcher.observe.page.what_if import plan_without
from tests.support.page.fake_run import make_report, silence


def test_a_spare_may_take_the_ranks_of_a_lost_node() -> None:
    found = plan_without(make_report(64, 8, 0.0), ["h9"])
    assert found.is_possible
    assert found.sentence.startswith("without h9: mesh pp=2, dp=31, tp=8: 496 ranks on 62 nodes; 16 fewer than now")
    assert found.spares
    assert "h9" not in (*found.spares, *found.receiving)


def test_nothing_moves_where_the_smaller_world_leaves_all_in_place() -> None:
    report = make_report(4, 8, 0.0, calm=True)
    found = plan_without(replace(report, nodes=report.nodes), ["h3"])
    assert (found.receiving, len(found.spares)) == ((), 1)
    assert "no rank would move" in found.sentence


def test_limits_of_the_leader_count() -> None:
    report = make_report(4, 8, 0.0, calm=True)
    leader = replace(report.nodes[0], placement="--nnodes 4:8 --move-cost 3 --level-costs leaf=4,host=1 --lease-ttl 5")
    found = plan_without(replace(report, nodes=(leader, *report.nodes[1:])), ["h3"])
    assert not found.is_possible
    assert found.sentence.startswith("without h3 no world can be formed: ")


def test_without_the_only_node_nothing_is_left() -> None:
    report = make_report(1, 8, 0.0, calm=True)
    assert plan_without(report, ["h0"]).sentence == "without h0 no node is left"


@pytest.mark.parametrize("name", ["h64", "nobody", ""])
def test_a_node_that_does_not_take_part_cannot_be_lost(name: str) -> None:
    with pytest.raises(UsageError, match="does not take part now"):
        plan_without(make_report(64, 8, 0.0), [name])


def test_agents_that_do_not_tell_the_mesh_are_not_planned_for() -> None:
    report = make_report(4, 8, 0.0)
    told = tuple(replace(one, mesh="") for one in report.nodes)
    with pytest.raises(UsageError, match="has not told the mesh"):
        plan_without(replace(report, nodes=told), ["h0"])


def test_ranks_of_silent_and_leaving_nodes_count_as_they_are() -> None:
    report = silence(make_report(64, 8, 30.0))
    assert report.missing
    assert "; 16 fewer than now; " in plan_without(report, ["h9"]).sentence
