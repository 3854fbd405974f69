"""Which faults of the storm come together: rules that answer several in a row are met more often so."""

from __future__ import annotations

# Which strokes and gusts, none for all, and how many bursts bring strokes and a gust.
THEMES = {
    "all": ("", "", 1.0, 0.3),
    "outages": ("short pair cut, short pause, store cut, crash, stall, leave", "outage, rack cut", 0.3, 0.8),
    "failures": (
        "crash, power off, crash loop, leave, hang, short pause, store cut",
        "poison, drain, undrain, takeover, slow writes, blackout",
        1.0,
        0.4,
    ),
}
