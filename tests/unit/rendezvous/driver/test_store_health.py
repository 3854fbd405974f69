"""What people are told of a store in trouble: once, in the words that stay, and that it is over."""

from __future__ import annotations

from typing import Any

from rendezvous.driver.store_health import StoreHealthLog
from rendezvous.errors import LeaseNotFound, OutcomeUnknown, StoreError
from rendezvous.reasons import Reason
from rendezvous.settings import Settings

AWAY = StoreError("the store at h:1 cannot be reached: connection refused")
FULL = StoreError("the store at h:1 has no space left in its database", "disarm it")
OVER = "store-answers-again"
AWAY_SAID = f"store-failing error={AWAY} hint="
FULL_SAID = f"store-failing error={FULL} hint=disarm it"


def told(*taken: tuple[float, str, StoreError | None]) -> list[str]:
    trouble = StoreHealthLog(Settings())
    return [str(reason) for at, purpose, error in taken if (reason := trouble.note(purpose, error, at))]


def list_leases(reason: Reason | None) -> list[Any]:
    """The leases that are advised."""
    assert reason is not None
    return [other.values["lease_ttl_s"] for other in reason.also]


def test_what_lasts_is_told_once_for_all_requests_and_a_gone_lease_is_an_answer() -> None:
    broken = OutcomeUnknown("the store at h:1 broke off before it answered")
    failures = [(0.0, "renew", broken), (0.2, "renew", AWAY), (1.1, "renew", AWAY), (1.3, "renew", broken)]
    assert told(*failures, (2.0, "renew", None), (3.0, "renew", None)) == [AWAY_SAID, OVER]
    assert told((0.0, "write", AWAY), (0.9, "write", AWAY), (1.1, "write", None), (5.0, "write", AWAY)) == []
    failures = [(at, purpose, AWAY) for at in (0.0, 2.0) for purpose in ("renew", "write")]
    assert told(*failures, (3.0, "renew", None), (4.0, "write", None)) == [AWAY_SAID, OVER]
    assert told((0.0, "renew", LeaseNotFound("gone")), (2.0, "renew", LeaseNotFound("gone"))) == []


def test_a_store_that_is_read_but_not_written_or_slow_is_told() -> None:
    failures = [(float(at), "write", FULL) for at in range(4)]
    answers = [(at + 0.5, "read", None) for at in range(4)]
    taken = sorted([*failures, *answers], key=lambda one: one[0])
    assert told(*taken) == [FULL_SAID]
    assert told(*taken, (9.0, "write", None)) == [FULL_SAID, OVER]
    trouble = StoreHealthLog(Settings())
    said = [trouble.note("write", None, float(at), took_s) for at, took_s in enumerate((0.9, 1.2, 2.3, 2.4, 0.6, 0.1))]
    slow = [
        Reason.of("store-slow", write_s=took_s).add(Reason.of("longer-lease-waits", lease_ttl_s=ttl_s))
        for took_s, ttl_s in ((1.2, 10), (2.4, 15))
    ]
    assert said == [None, slow[0], None, slow[1], None, Reason.of("store-fast-again")]
    assert [trouble.note(purpose, None, 9.0, 3.0) for purpose in ("read", "renew")] == [None, None]


def test_the_lease_that_is_named_is_as_long_as_its_calls_need_and_none_if_it_is_already() -> None:
    trouble = StoreHealthLog(Settings(lease_ttl_s=10.0, call_parts=10))
    assert list_leases(trouble.note("write", None, 0.0, 1.2)) == [20]
    trouble = StoreHealthLog(Settings(lease_ttl_s=15.0))
    assert trouble.note("write", None, 0.0, 2.4) == Reason.of("store-slow", write_s=2.4)
    # After a pause of the whole node a write may seem to have taken minutes.
    said = [StoreHealthLog(Settings(lease_ttl_s=ttl_s)).note("write", None, 0.0, 600.0) for ttl_s in (5.0, 25.0)]
    assert [list_leases(reason) for reason in said] == [[25], []]
