"""Random faults against simulated clusters: the invariants hold, and a missing guard does not stay hidden."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from rendezvous.leader.guarded_writer import GuardedWriter
from rendezvous.policy.budget import RestartBudget
from rendezvous.policy.view import View
from rendezvous.stores.contract import Compare
from rendezvous.testing import simulate
from rendezvous.testing.simulation import processes

SECONDS = 90  # two processes side by side; each does its seeds' minimum however long that takes
SEEDS_EACH = 250
PLANTED_SEEDS = 60  # far fewer than above: each planted bug shows within the first few

# What the seeds above must have met at least once: every kind of fault, and every rule that answers one.
FAULTS = {
    "all leave", "asked to drain", "asked to stop", "asked to takeover", "asked to undrain", "blackout", "compaction",
    "crash", "crash loop", "cut off", "deaf", "failure", "forged resets", "hang", "lagging watch",
    "lease ended early", "leases ended early", "leave", "long pause", "one-way cut", "only renewals pass", "outage",
    "pair cut", "peer loss", "peers cut", "poison", "port taken", "power off", "rack cut", "short pair cut",
    "short pause", "slow writes", "stale leader", "stall", "store cut",
}  # fmt: skip
RULES = {
    "backoff", "bench", "charge put off", "election", "fenced", "host stays", "isolated leader", "isolated member",
    "watchdog ended", "watchdog extended in an outage", "loss proven", "omission put off", "place taken by a newcomer",
    "presence proof", "re-registration", "restart charged", "restart given back", "round survived an outage",
    "spare promoted", "stranger does not lead", "takeover of the leader", "verdict: failure", "verdict: stopped",
    "verdict: success", "world grown", "world shrunk",
}  # fmt: skip


def test_the_invariants_hold_under_faults() -> None:
    command = [sys.executable, "-m", "rendezvous.testing", "--seconds", str(SECONDS), "--at-least", str(SEEDS_EACH)]
    runs = [
        subprocess.Popen([*command, "--seeds", f"{first}:{first + 100_000}"], stdout=subprocess.PIPE, text=True)
        for first in (0, 1_000_000)
    ]
    outputs = [run.communicate()[0] for run in runs]
    print(*outputs, sep="")
    assert [run.returncode for run in runs] == [0, 0]
    results = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert sum(result["seeds"] for result in results) >= 2 * SEEDS_EACH
    met = set().union(*(result["met"] for result in results))
    assert not (FAULTS | RULES) - met


def test_a_seed_replays_exactly() -> None:
    first: list[str] = []
    second: list[str] = []
    assert simulate.run(7, first.append) == simulate.run(7, second.append)
    assert first == second
    assert len(first) > 10


def _without_revision_guards(patch: pytest.MonkeyPatch) -> None:
    def anything(self: GuardedWriter, *names: str) -> tuple[Compare, ...]:
        return tuple(Compare(name, "mod", ">", -1) for name in names)

    patch.setattr(GuardedWriter, "guard_unchanged", anything)


def _without_watchdog(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(processes.SimulatedProcesses, "_check_watchdog", lambda self: None)


def _with_two_charges_per_failure(patch: pytest.MonkeyPatch) -> None:
    charge = RestartBudget.charge

    def twice(self: RestartBudget, round: int, failed_at: float, now: float) -> RestartBudget:
        return charge(charge(self, round, failed_at, now), round, failed_at, now)

    patch.setattr(RestartBudget, "charge", twice)


def _without_stop_before_seal(patch: pytest.MonkeyPatch) -> None:
    def nobody_runs(self: View, member_id: str) -> bool:
        return True

    patch.setattr(View, "has_stopped", nobody_runs)


def _without_settling(patch: pytest.MonkeyPatch) -> None:
    """A success is believed when one member has succeeded."""
    outcome = View.get_outcome

    def of_anyone(self: View, member_id: str) -> str:
        return next(
            (found for m in self.active if (found := outcome(self, m)) == "succeeded"), outcome(self, member_id)
        )

    patch.setattr(View, "get_outcome", of_anyone)


@pytest.mark.parametrize(
    "plant",
    [
        _without_revision_guards,
        _without_watchdog,
        _with_two_charges_per_failure,
        _without_stop_before_seal,
        _without_settling,
    ],
)
def test_a_planted_bug_is_found(plant: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(simulate.Violation):
        _run_seeds(PLANTED_SEEDS)


def _run_seeds(count: int) -> None:
    for seed in range(count):
        simulate.run(seed)
