"""Events as lines of JSON: what a reader gets back."""

from __future__ import annotations

import json

from launcher.model.console import format_time
from launcher.views.run_events import RemarkMade, RoundEnded, WorkerEnded, decode_event, encode_event, parse_time
from tests.support.run_reports import EVENT_NAMES

AT = 1_767_225_600.25
ENDED = RoundEnded(at=AT, run_id="digits", node="n0", round=2, cause="loss", reason="n3 lost", ran_s=12.5, step=400)


def test_a_line_is_read_again_and_bytes_that_are_no_text_cost_no_agent() -> None:
    fields = json.loads(encode_event(ENDED))
    assert list(fields)[:3] == ["schema", "event", "time"]
    assert (fields["schema"], fields["event"], fields["time"]) == (1, "round_ended", "2026-01-01T00:00:00.250Z")
    assert (fields["cause"], fields["ran_s"], fields["step"]) == ("loss", 12.5, 400)
    killed = WorkerEnded(
        at=AT, run_id="a", node="n", round=1, rank=3, local_rank=1, pid=7, outcome="failed", exit_code=-9
    )
    for event in (ENDED, killed):
        assert decode_event(encode_event(event)) == event
    assert format_time(0.0) == "1970-01-01T00:00:00.000Z"
    assert format_time(AT + 0.0009) == "2026-01-01T00:00:00.251Z"
    assert parse_time(format_time(AT)) == AT
    assert parse_time("yesterday") == 0.0
    assert len(set(EVENT_NAMES)) == len(EVENT_NAMES)
    event = RemarkMade(at=1.0, run_id="r", node="n\udcff", sentence="a \udc80 file")
    found = decode_event(encode_event(event))
    assert isinstance(found, RemarkMade)
    assert (found.node, found.sentence) == ("n?", "a ? file")
