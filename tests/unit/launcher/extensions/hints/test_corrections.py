"""Values that are nearly right."""

from __future__ import annotations

import pytest

from launcher.config.options.readers import Value
from launcher.config.options.table import find_row
from launcher.model.errors import UsageError


@pytest.mark.parametrize(
    ("option", "text", "hint"),
    [
        ("nnodes", "2-4", "write 2:4"),
        ("nnodes", "2..4", "write 2:4"),
        ("nnodes", "2 to 4", "write 2:4"),
        ("nnodes", "two", "did you mean 2?"),
        ("nproc-per-node", "0,1", "set CUDA_VISIBLE_DEVICES=0,1 to choose devices, and --nproc-per-node 2"),
        ("nproc-per-node", "2-4", "set --nproc-per-node to one number: --nnodes MIN:MAX lets the number of nodes vary"),
        ("nproc-per-node", "2x8", "write --nnodes 2 --nproc-per-node 8"),
        ("nproc-per-node", "8gpus", "did you mean 8?"),
        ("nproc-per-node", '"8"', "write 8 without quotes: they are part of the value"),
        ("shutdown-timeout", "10m", "write 600, in seconds"),
        ("shutdown-timeout", "1h30min", "write 5400, in seconds"),
        ("shutdown-timeout", "0.5 h", "write 1800, in seconds"),
        ("shutdown-timeout", "01:30:00", "write 5400, in seconds"),
        ("hang-timeout", "10m,start=1h", "write 600,start=3600, in seconds"),
        ("grow", "delay=5m", "write delay=300, in seconds"),
        ("grow", "300", "write --grow delay=300"),
        ("grow", "5m", "write --grow delay=300"),
        ("rdzv-conf", "timeout=10m", "write timeout=600, in seconds"),
        ("mesh", "dp=2 tp=4", "write --mesh dp=2,tp=4"),
        ("mesh", "dp:2,tp:4", "write --mesh dp=2,tp=4"),
        ("mesh", "dp2tp4", "write --mesh dp=2,tp=4"),
        ("mesh", "dp=,tp=2", "use for example --mesh pp=4,dp=*,tp=8; * is as large as possible"),
        (
            "mesh",
            "dp=$DP",
            "let a shell replace $DP, or write its value: single quotes, YAML and env files leave it as it is",
        ),
        ("max-restarts", "", "give it a value, or leave it out: a variable may be empty"),
        ("master-addr", "'h1'", "write h1 without quotes: they are part of the value"),
        ("port-range", "1:2:3", None),
        # What the option would refuse as well.
        ("nnodes", "4-2", "write 2:4"),
        ("nproc-per-node", "0x8", None),
        ("nproc-per-node", "2x0", None),
        ("nproc-per-node", "99999gpus", None),
        ("hang-timeout", "start=10m", "write for example 600,start=600"),
        ("hang-timeout", "1,5m", None),
        ("hang-timeout", "10m,init=5m", None),
        ("hang-timeout", "10m,start=5m,start=6m", None),
        ("shutdown-timeout", "1,5m", None),
        ("shutdown-timeout", "90000d", None),
        ("mesh", "dp=2 dp=4", "use for example --mesh pp=4,dp=*,tp=8; * is as large as possible"),
        # What is no time, or not surely one.
        ("shutdown-timeout", "500ms", "write 0.5, in seconds"),
        ("shutdown-timeout", "5months", None),
        ("shutdown-timeout", f"{'1' * 60}m", None),
        ("shutdown-timeout", f"{'1h' * 60}", None),
        ("mesh", "dp2xtp4", "write --mesh dp=2,tp=4"),
        ("mesh", "dp2  x  tp4", "write --mesh dp=2,tp=4"),
        # Of a list that may hold a secret, no more than what is wrong.
        ("rdzv-conf", "token=hunter2,timeout=10m,close_timeout=5", "write timeout=600, in seconds"),
    ],
)
def test_a_value_that_is_refused_has_the_hint_that_fits(option: str, text: str, hint: str | None) -> None:
    row = find_row(option)
    assert row is not None
    with pytest.raises(UsageError) as caught:
        Value(row, text, row.flag).read()
    assert caught.value.hint == hint


@pytest.mark.parametrize("unit", ["x1", "a1 ", "a1  x ", "a" * 9, "a1x", "1h", "1:", " "])
@pytest.mark.parametrize("option", ["mesh", "hang-timeout", "nnodes", "nproc-per-node"])
def test_a_text_of_any_length_is_refused_at_once(option: str, unit: str) -> None:
    row = find_row(option)
    assert row is not None
    for length in (99, 100_000):
        with pytest.raises(UsageError):
            Value(row, f"{(unit * length)[:length]}!", row.flag).read()
