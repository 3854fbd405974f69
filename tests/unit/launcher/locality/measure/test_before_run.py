"""What agents make of a measurement before their first round."""

from __future__ import annotations

import pytest

from launcher.locality.contract import Level
from launcher.locality.gather import Locality
from launcher.locality.measure.before_run import add_measured, is_begun
from launcher.locality.measure.procedure import TreeFinding
from launcher.locality.measure.session import Answer, Participant
from launcher.locality.merge import SourceResult
from rendezvous.stores.memory.store import MemoryStore

LEVELS = ("spine", "leaf")
MBIT = 10**6
FINDING = TreeFinding(
    kind="tree",
    levels=(((0, 1), (2, 3)),),
    rates_bps=((40 * MBIT, 0),),
    host_rates_bps=(20 * MBIT, 20 * MBIT, 20 * MBIT, 0),
)
ANSWER = Answer(
    participants=tuple(Participant(name=f"h{n}", address="", echo_port=1, bulk_port=1) for n in range(4)),
    finding=FINDING,
)


def make_locality(*levels: tuple[str, str]) -> Locality:
    said = tuple(Level(name, domain, "--locality") for name, domain in levels)
    return Locality(said, (), (SourceResult("--locality", said, ""),))


def test_measured_levels_and_rates_become_this_nodes() -> None:
    measured = add_measured(make_locality(("zone", "a")), ANSWER, 1, LEVELS)
    assert measured.path == (("zone", "a"), ("leaf", "l0"))
    assert measured.rates == (("leaf", 40 * MBIT), ("host", 20 * MBIT))
    assert measured.remarks == ()


def test_a_rate_that_was_not_measured_is_left_out() -> None:
    assert add_measured(make_locality(), ANSWER, 3, LEVELS).rates == ()


def test_what_was_measured_counts_for_more_than_what_is_said() -> None:
    measured = add_measured(make_locality(("leaf", "west")), ANSWER, 0, LEVELS)
    assert measured.path == (("leaf", "l0"),)
    assert measured.remarks == ("leaf is l0 by measuring, which counts, and west by --locality",)


@pytest.mark.parametrize(
    ("keys", "is_so"),
    [
        ((), False),
        (("current",), False),
        (("current", "job/members/m1"), True),
        (("current", "job/members/m1", "job/ctl/verdict"), False),
        (("job/members/m1",), False),
    ],
)
def test_a_run_has_begun_once_its_job_has_members_and_no_end(keys: tuple[str, ...], is_so: bool) -> None:
    store = MemoryStore(clock=lambda: 0.0, threaded=False)
    for key in keys:
        store.put(f"/meshrun/run/{key}", b"job")
    assert is_begun(store, "meshrun", "run") == is_so
