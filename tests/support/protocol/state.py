"""The state inside a machine, for tests and for the simulation's invariants: more than a machine shows to others."""

from __future__ import annotations

from rendezvous.machine import MemberMachine
from rendezvous.state.state import MemberState


def get_state(machine: MemberMachine) -> MemberState:
    return machine._state
