"""A run as JSON: sentences for its reasons, texts for its times, rows for the page."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from launcher.views.run_json import encode_run
from launcher.views.run_view import RankView
from rendezvous.reasons import Reason
from tests.support.run_reports import NOW, REPORT, make_node, make_round


def test_programs_read_sentences_with_their_kinds_and_times_as_texts() -> None:
    how = Reason.of("logs/failure", failure_class="user code", why=Reason.of("logs/exception", type="KeyError"))
    failed = make_round(1, ended_at=NOW, ended=Reason.of("all-succeeded"), failure_class=how)
    node = make_node(0, why=Reason.of("placement/not-joined"), last=failed, locality=(("pod", "p1"),))
    content = msgspec.json.decode(msgspec.json.encode(encode_run(replace(REPORT, nodes=(node,), rounds=(failed,)))))
    (first,) = content["nodes"]
    assert (first["why"], first["why_kind"]) == ("this machine has not joined yet", "placement/not-joined")
    assert (first["locality"], content["levels"]) == ({"pod": "p1"}, ["pod"])
    for one in content["rounds"]:
        assert (one["ended"], one["failure_class"]) == ("all workers succeeded", "user code: KeyError")
        assert one["ended_at"].startswith("2027-01-15T")
    assert (first["ranks"][1]["rank"], content["now"]) == (1, "round 2 runs 4 ranks on 1 node")


def test_the_page_gets_a_row_for_each_rank() -> None:
    content = msgspec.json.decode(msgspec.json.encode(encode_run(REPORT, has_rows=True)))
    row = content["nodes"][1]["ranks"][0]
    assert dict(zip(RankView.__struct_fields__, row, strict=True))["pid"] == 102
