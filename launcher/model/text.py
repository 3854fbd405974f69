"""Numbers as people read them."""

from __future__ import annotations

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(count: float) -> str:
    """ "64 MiB", "1.5 GiB" """
    count = max(0.0, count)
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            break
        count /= 1024
    return f"{format_number(count)} {unit}"


def format_number(count: float) -> str:
    """ "8", "1.5", "20,000" """
    if count >= 100 or count == int(count):
        return f"{round(count):,}"
    return f"{count:.1f}".removesuffix(".0")
