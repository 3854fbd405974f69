"""The recorded session that the guide names can be played, and shows what it claims."""

import json
import re
from pathlib import Path

CAST = Path(__file__).parents[2] / "docs/casts/node-death.cast"


def test_the_cast_is_of_version_2_and_shows_the_lost_node() -> None:
    header, *events = map(json.loads, CAST.read_text().splitlines())
    assert (header["version"], header["width"], header["height"]) == (2, 100, 30)
    assert all(kind == "o" and isinstance(text, str) for _, kind, text in events)
    times = [at_s for at_s, _, _ in events]
    assert times == sorted(times)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", "".join(text for _, _, text in events))
    assert "node blue lost in round 1" in shown
    assert CAST.stat().st_size < 200_000
