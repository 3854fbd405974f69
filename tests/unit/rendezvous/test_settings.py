"""Settings: what cannot work is refused with its figures, and the times that follow from others."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import fields

from rendezvous.errors import SettingsError
from rendezvous.settings import Settings


@pytest.mark.parametrize("name", [item.name for item in fields(Settings)])
@pytest.mark.parametrize("value", [-1, math.nan])
def test_no_setting_is_negative_or_not_a_number(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=f"^{name} is {value}, it cannot be negative$"):
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("given", "least"),
    [
        ({"lease_ttl_s": 2.5}, "2.5"),
        ({"lease_ttl_s": 0.0}, "2.5"),
        ({"lease_ttl_s": 5.0, "call_parts": 3}, "7.5"),
        ({"lease_ttl_s": 5.0, "kill_margin_s": 4.0}, "10"),
        ({"lease_ttl_s": 4.0, "keep_alive_parts": 2}, "10"),
    ],
)
def test_a_lease_that_is_over_before_a_renewal_can_fail_is_refused(given: dict[str, float], least: str) -> None:
    with pytest.raises(SettingsError, match=f"a lease of {given['lease_ttl_s']:g} s is too short") as caught:
        Settings(**given)  # type: ignore[arg-type]
    assert caught.value.hint == f"give more than {least} s"
    Settings(**{**given, "lease_ttl_s": float(least) + 0.01})  # type: ignore[arg-type]


@pytest.mark.parametrize("parts", [0, 1])
def test_a_lease_is_renewed_more_than_once(parts: int) -> None:
    with pytest.raises(SettingsError, match=f"keep_alive_parts is {parts}"):
        Settings(keep_alive_parts=parts)


@pytest.mark.parametrize(
    ("mode", "grace_s", "gone_within_s"), [("kill", 5.0, 28.0), ("grace", 30.0, 31.0), ("fence", 0.0, 28.0)]
)
def test_each_way_to_stop_has_its_grace_and_a_safe_end(mode: str, grace_s: float, gone_within_s: float) -> None:
    settings = Settings(stop_limit_s=1.0, lease_ttl_s=4.0)
    assert (settings.get_grace_s(mode), settings.compute_gone_within_s(mode)) == (grace_s, gone_within_s)


def test_a_longer_lease_waits_longer_for_a_read_and_one_without_end_suits_a_private_store() -> None:
    assert [Settings(lease_ttl_s=ttl_s).call_limit_s for ttl_s in (3.0, 5.0, 10.0, 60.0, math.inf)] == [0.6, 1, 2, 5, 5]
    assert Settings(lease_ttl_s=math.inf).compute_gone_within_s("kill") == 35.0


@pytest.mark.parametrize("parts", [0, 2])
def test_two_calls_must_leave_time_within_a_lease(parts: int) -> None:
    with pytest.raises(SettingsError, match=f"call_parts is {parts}, "):
        Settings(call_parts=parts)


def test_pauses_double_up_to_their_limit() -> None:
    settings = Settings(retry_delay_s=0.5, retry_delay_max_s=3.0)
    assert [settings.compute_retry_s(count) for count in (1, 2, 3, 4, 100_000)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert Settings(retry_delay_s=5.0).compute_retry_s(9) == 5.0
    settings = Settings(backoff_first_s=1.5, backoff_max_s=10.0)
    pauses = [settings.compute_backoff_s(count) for count in (0, 1, 2, 3, 4, 5, 100_000)]
    assert pauses == [0.0, 0.0, 1.5, 3.0, 6.0, 10.0, 10.0]
