"""Tables of workers and small quantities, as a terminal shows them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from launcher.meshctl.live.ranks import describe_ranks
from launcher.meshctl.table import Column, format_age, format_size, format_table
from tests.support.reasons import because
from tests.support.run_reports import REPORT, make_node, make_rank

BUSY = make_rank(
    0, pid=4711, place="dp=0,tp=0", cores=1.04, rss_bytes=3 << 29, step=12, progress_age_s=184.0, phase="save",
    device="cuda0", device_memory_bytes=20 << 30, device_memory_total_bytes=80 << 30, read_bytes=5000,
)  # fmt: skip
FAILED = make_rank(1, pid=4712, state="failed", exit_code=-9)
RUN = replace(
    REPORT, nodes=(make_node(0, ranks=(FAILED, BUSY)), make_node(3, state="spare", ranks=(), waiting=because("full")))
)


def test_every_worker_has_a_line_and_other_nodes_are_named() -> None:
    assert (
        describe_ranks(RUN)
        == """\
rank  node   pid  state        cpu  memory  step  progress   place      phase   devmem  device  read
   0  h0    4711  running      1.0    1.5G    12  3m04s ago  dp=0,tp=0  save   20G/80G  cuda0   4.9K
   1  h0    4712  failed (-9)    -       -     -  -                     -            -  -          -

h3: spare: full
h7: no answer"""
    )


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_has_fewer_columns_and_no_longer_lines(width: int) -> None:
    table = describe_ranks(RUN, width).partition("\n\n")[0]
    assert max(map(len, table.splitlines())) <= width
    assert table.startswith("rank  node   pid  state        cpu  memory")


def test_names_cannot_control_a_terminal() -> None:
    text = format_table([Column("node", ("\x1b[2J\n", "b" * 60))])
    assert text == "node\n\\x1b[2J\\n\n" + "b" * 37 + "..."


@pytest.mark.parametrize(
    ("count", "text"),
    [(-1, "-"), (0, "0"), (999, "999"), (1024, "1.0K"), (1536, "1.5K"), (10 << 20, "10M"), (1 << 60, "1024P")],
)  # fmt: skip
def test_sizes(count: int, text: str) -> None:
    assert format_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "-"), (0.9, "0s"), (59, "59s"), (185, "3m05s"), (9600, "2h40m"), (273600, "3d04h")]
)
def test_ages(seconds: float, text: str) -> None:
    assert format_age(seconds) == text
