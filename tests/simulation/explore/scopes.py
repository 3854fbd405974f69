"""The small clusters that are explored: their members, and which faults may occur."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from rendezvous.settings import Settings
from tests.simulation.config import Shape

ANY = 1 << 30


class Scope(Struct, frozen=True, kw_only=True):
    """What is explored: how many members, which faults how often, and how far time advances."""

    name: str
    members: int = 2
    shape: Shape
    settings: Settings
    faults: tuple[tuple[str, int], ...] = ()
    faults_max: int = 0
    detours_max: int = ANY
    """How often a schedule may deviate from the usual one; a limit lets whole jobs be explored, not only beginnings."""
    share: float = 1.0
    """Its share of the processor time, relative to the other scopes."""
    jumps_max: int = 12
    """How often time may advance."""
    starts_together: bool = True
    """Whether all agents start at once; else all but the first start at any time."""
    ends_any_time: bool = False
    """Whether workers succeed at any time; else only while nothing is under way."""
    has_one_stream: bool = True
    """Whether all watches of a member share one order of events, as over the one stream of an etcd client; else they
    do not wait for each other."""
    begins_running: bool = False
    """Whether exploration begins when the first round runs on all nodes, formed in one of the possible orders."""


# Few timers, since each doubles the number of states, and limits that are reached within a few of them.
SETTINGS = Settings(
    lease_ttl_s=10.0,
    keep_alive_parts=2,
    call_parts=10,
    join_grace_s=1.0,
    rejoin_timeout_s=30.0,
    start_timeout_s=60.0,
    restart_grace_s=1.0,
    shutdown_timeout_s=1.0,
    stop_limit_s=2.0,
    max_restarts=1,
    min_round_time_s=0.0,
    on_finished="exit",
    observe_pause_s=0.0,
)

ONE_OF = ("crash", "power", "leave", "fail", "deafen", "pause", "lost answer", "lost request", "late request")

TWO = Shape(nodes_min=2, nodes_max=2)
ONE_OR_TWO = Shape(nodes_min=1, nodes_max=2)
TWO_OR_THREE = Shape(nodes_min=2, nodes_max=3)
ANY_ONE = (*((kind, 1) for kind in ONE_OF), ("restart", 1))
ONE_OF_EACH = (("crash", 1), ("lost answer", 1), ("pause", 1), ("restart", 1))  # the pause is longer than the lease


def _make_two_node_scope(name: str, faults: tuple[tuple[str, int], ...] = ANY_ONE, **more: Any) -> Scope:
    return Scope(name=name, shape=ONE_OR_TWO, settings=SETTINGS, faults=faults, faults_max=1, **more)


def _make_three_node_scope(name: str, **more: Any) -> Scope:
    return Scope(name=name, members=3, shape=TWO_OR_THREE, settings=SETTINGS, faults=ONE_OF_EACH, faults_max=3, **more)


SCOPES = {
    scope.name: scope
    for scope in (
        Scope(name="two, no fault", shape=TWO, settings=SETTINGS, ends_any_time=True, jumps_max=0, share=2.0),
        _make_two_node_scope("two, any one fault"),
        _make_two_node_scope("two, one fault, 1 detour", begins_running=True, detours_max=1, share=3.0),
        _make_two_node_scope("two, a lease ends early", (("lease", 1),), begins_running=True, detours_max=1),
        _make_three_node_scope("three, three faults"),
        _make_three_node_scope("three, three faults, 0 detours", begins_running=True, detours_max=0, share=2.0),
    )
}
