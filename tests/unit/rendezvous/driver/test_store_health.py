"""What people are told of a store in trouble: once, in the words that stay, and that it is over."""

from __future__ import annotations

from rendezvous.driver.store_health import StoreHealthLog
from rendezvous.errors import LeaseNotFound, OutcomeUnknown, StoreError
from rendezvous.settings import Settings

AWAY = StoreError("the store at h:1 cannot be reached: connection refused")
FULL = StoreError("the store at h:1 has no space left in its database", "disarm it")
OVER = "the store answers again"


def told(*taken: tuple[float, str, StoreError | None]) -> list[str]:
    trouble = StoreHealthLog(Settings())
    return [sentence for at, purpose, error in taken if (sentence := trouble.note(purpose, error, at))]


def test_what_lasts_is_told_once_in_its_last_words_and_so_is_its_end() -> None:
    broken = OutcomeUnknown("the store at h:1 broke off before its answer came")
    failures = [(0.0, "renew", broken), (0.2, "renew", AWAY), (1.1, "renew", AWAY), (1.3, "renew", broken)]
    assert told(*failures, (2.0, "renew", None), (3.0, "renew", None)) == [str(AWAY), OVER]


def test_what_is_over_in_a_moment_is_not_told() -> None:
    assert told((0.0, "write", AWAY), (0.9, "write", AWAY), (1.1, "write", None), (5.0, "write", AWAY)) == []


def test_a_store_that_can_be_read_but_not_written_is_reported_until_it_can() -> None:
    failures = [(float(at), "write", FULL) for at in range(4)]
    answers = [(at + 0.5, "read", None) for at in range(4)]
    taken = sorted([*failures, *answers], key=lambda one: one[0])
    assert told(*taken) == [f"{FULL} (disarm it)"]
    assert told(*taken, (9.0, "write", None)) == [f"{FULL} (disarm it)", OVER]


def test_one_sentence_covers_all_requests_until_all_are_answered() -> None:
    failures = [(at, purpose, AWAY) for at in (0.0, 2.0) for purpose in ("renew", "write")]
    assert told(*failures, (3.0, "renew", None), (4.0, "write", None)) == [str(AWAY), OVER]


def test_a_lease_that_is_gone_is_an_answer() -> None:
    assert told((0.0, "renew", LeaseNotFound("gone")), (2.0, "renew", LeaseNotFound("gone"))) == []


def test_slow_writes_are_logged_once_when_twice_as_slow_and_when_over() -> None:
    trouble = StoreHealthLog(Settings())
    said = [trouble.note("write", None, float(at), took_s) for at, took_s in enumerate((0.9, 1.2, 2.3, 2.4, 0.6, 0.1))]
    slow = [
        f"writes to the store take {took_s} s: joining and restarts take several of them; "
        f"if nodes lose their membership meanwhile, --lease-ttl {ttl_s} waits longer"
        for took_s, ttl_s in (("1.2", 10), ("2.4", 15))
    ]
    assert said == ["", slow[0], "", slow[1], "", "writes to the store are fast again"]
    assert [trouble.note(purpose, None, 9.0, 3.0) for purpose in ("read", "renew")] == ["", ""]


def test_a_lease_that_is_made_for_slow_writes_needs_no_longer_one() -> None:
    trouble = StoreHealthLog(Settings(lease_ttl_s=15.0))
    slow = "writes to the store take 2.4 s: joining and restarts take several of them"
    assert trouble.note("write", None, 0.0, 2.4) == slow


def test_no_lease_is_named_that_would_wait_no_longer() -> None:
    """After a pause of the whole node a write may seem to have taken minutes."""
    said = [StoreHealthLog(Settings(lease_ttl_s=ttl_s)).note("write", None, 0.0, 600.0) for ttl_s in (5.0, 25.0)]
    assert ["--lease-ttl 25 " in sentence for sentence in said] == [True, False]
    assert "--lease-ttl" not in said[1]


def test_the_lease_that_is_named_is_as_long_as_its_calls_need() -> None:
    assert "--lease-ttl 20 " in StoreHealthLog(Settings(lease_ttl_s=10.0, call_parts=10)).note("write", None, 0.0, 1.2)
