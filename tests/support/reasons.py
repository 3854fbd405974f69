"""A reason for tests in which it does not matter."""

from __future__ import annotations

from rendezvous.reasons import Reason


def because(text: str) -> Reason:
    return Reason.of("text", text=text)
