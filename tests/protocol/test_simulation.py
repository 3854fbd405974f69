"""Random faults against simulated clusters: the invariants hold, and a missing guard does not stay hidden."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.simulation import simulate
from tests.support.protocol.rules import take_out

SEEDS_EACH = 100  # in two processes side by side, ten seconds; `make slow WHAT=soak` runs 20,000
RESTORED_SEEDS = 30  # another ten seconds
REQUEUED_SEEDS = 40  # likewise
PLANTED_SEEDS = 60  # far fewer than above: each planted bug shows within the first few
FOUND = (
    6406,  # a node succeeded and was lost, and the leader read of the loss first: the round was ended for it
    18582,  # a lease ended early in an outage: its node registered again when its place was no longer held
)

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
    "spare promoted", "takeover put off", "takeover of the leader", "verdict: failure", "verdict: stopped",
    "verdict: success", "world grown", "world shrunk",
}  # fmt: skip


def test_the_invariants_hold_under_faults() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds"]
    runs = [
        subprocess.Popen([*command, f"{first}:{first + SEEDS_EACH}"], stdout=subprocess.PIPE, text=True)
        for first in (0, 1_000_000)
    ]
    outputs = [run.communicate()[0] for run in runs]
    print(*outputs, sep="")
    assert [run.returncode for run in runs] == [0, 0]
    results = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert [result["seeds"] for result in results] == [SEEDS_EACH] * 2
    met = set().union(*(result["met"] for result in results))
    assert not (FAULTS | RULES) - met


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_once_stays_mended(seed: int) -> None:
    simulate.run(seed)


def test_the_invariants_hold_over_a_store_that_is_restored() -> None:
    _run_seeds(RESTORED_SEEDS, is_restored=True)


def test_a_store_that_goes_back_and_is_believed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_out(monkeypatch, "a store that goes back is believed")
    with pytest.raises(simulate.Violation):
        _run_seeds(PLANTED_SEEDS, is_restored=True)


def test_the_invariants_hold_while_later_attempts_begin() -> None:
    met = _run_seeds(REQUEUED_SEEDS, is_requeued=True)
    assert {"requeue", "attempt told to end", "attempt found to be over", "verdict: success"} <= met


def test_an_attempt_that_does_not_wait_for_the_earlier_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_out(monkeypatch, "a later attempt waits for nobody")
    with pytest.raises(simulate.Violation):
        _run_seeds(PLANTED_SEEDS, is_requeued=True)


def _run_seeds(count: int, **mode: bool) -> set[str]:
    """Run them; return what they have met."""
    return set().union(*(simulate.run(seed, **mode).counts for seed in range(count)))
