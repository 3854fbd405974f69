"""Tables of a terminal: columns as wide as needed, the table of workers, and what is said below it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from launcher.meshctl.live.ranks import describe_ranks
from launcher.meshctl.table import Column, align, format_table, measure_width, pad
from launcher.views.rows import format_size
from launcher.views.run_view import NodeView, RunView
from tests.support.reasons import because
from tests.support.run_reports import REPORT, make_node, make_rank, make_silent


def test_columns_are_as_wide_as_a_terminal_shows_their_widest_cell() -> None:
    rows = [("node", "cpu", "state"), ("h10", "1.5", ""), ("h9", "12.0", "lost")]
    assert align(rows, right=(1,)) == ["node   cpu  state", "h10    1.5", "h9    12.0  lost"]
    assert align(rows[:2], gap="|") == ["node|cpu|state", "h10 |1.5|"]
    assert align([]) == []
    assert align([(), ()]) == ["", ""]
    assert [measure_width(text) for text in ("", "node", "節点", "e\u0301", "\uff21", "é")] == [0, 4, 4, 1, 2, 1]
    assert align([("節点", "x"), ("h0", "y")]) == ["節点  x", "h0    y"]
    assert (pad("abc", 2), pad("abc", 4), pad("abc", 4, is_right=True)) == ("abc", "abc ", " abc")


BUSY = make_rank(
    0, pid=4711, place="dp=0,tp=0", cores=1.04, rss_bytes=3 << 29, step=12, progress_age_s=184.0, phase="save",
    device="cuda0", device_memory_bytes=20 << 30, device_memory_total_bytes=80 << 30, read_bytes=5000,
)  # fmt: skip
FAILED = make_rank(1, pid=4712, state="failed", exit_code=-9)
RUN = replace(
    REPORT,
    nodes=(
        make_node(0, ranks=(FAILED, BUSY)),
        make_node(3, state="spare", ranks=(), why=because("full")),
        make_silent("h7"),
    ),
)


def test_every_worker_has_a_line_and_a_sentence_that_begins_with_its_state_stands_alone() -> None:
    assert (
        describe_ranks(RUN)
        == """\
rank  node   pid  state        cpu  memory  step  progress       place      phase   devmem  device  read
   0  h0    4711  running      1.0    1.5G    12  3 min 4 s ago  dp=0,tp=0  save   20G/80G  cuda0   4.9K
   1  h0    4712  failed (-9)    -       -     -  -              -          -            -  -          -

h3: spare: full
h7: no answer"""
    )
    waiting = make_node(0, ranks=(), state="waiting", why=because("waiting for nodes: 1 of 2"))
    spare = make_node(1, ranks=(), state="spare", why=because("all places are taken"))
    assert describe_ranks(replace(REPORT, nodes=(waiting, spare))).split("\n") == [
        f"{spare.name}: spare: all places are taken",
        f"{waiting.name}: waiting for nodes: 1 of 2",
    ]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_has_fewer_columns_and_no_longer_lines(width: int) -> None:
    table = describe_ranks(RUN, width).partition("\n\n")[0]
    assert max(map(len, table.splitlines())) <= width
    assert table.startswith("rank  node   pid  state        cpu  memory")


def test_names_and_what_nodes_say_cannot_control_a_terminal() -> None:
    text = format_table([Column("node", ("\x1b[2J\n", "b" * 60))])
    assert text == "node\n\\x1b[2J\\n\n" + "b" * 37 + "..."
    node = NodeView(
        name="h0", member_id="h0-1", run_id="exp", version="1", at=1.0, started_at=0.0, agent_pid=1, state="waiting",
        why=because("for\n\x1b[2Jh1\u202e"),
    )  # fmt: skip
    report = RunView(run_id="exp", at=1.0, leader="h0", nodes=(node, make_silent("h2\n")))
    assert describe_ranks(report).split("\n") == ["h0: for\\n\\x1b[2Jh1\\u202e", "h2\\n: no answer"]


@pytest.mark.parametrize(
    ("count", "text"), [(-1, "-"), (999, "999"), (1024, "1.0K"), (10 << 20, "10M"), (1 << 60, "1024P")]
)
def test_sizes(count: int, text: str) -> None:
    assert format_size(count) == text
