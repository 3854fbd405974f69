"""A reason for tests in which it does not matter: of a kind that is shown as its text."""

from __future__ import annotations

from rendezvous.reasons import Reason


def because(text: str) -> Reason:
    return Reason.of("store-error", error=text)
