"""torchrun's rules for -r, -t and --local-ranks-filter, and the prefix of a line."""

from __future__ import annotations

import pytest

from launcher.logs.routes import Destination, choose_destination, format_line_prefix

INHERITED = Destination(inherits=True, to_file=False, to_console=False)
DISCARDED = Destination(inherits=False, to_file=False, to_console=False)
FILE = Destination(inherits=False, to_file=True, to_console=False)
CONSOLE = Destination(inherits=False, to_file=False, to_console=True)
BOTH = Destination(inherits=False, to_file=True, to_console=True)


@pytest.mark.parametrize(
    ("is_redirected", "is_teed", "is_filtered_out", "keeps_files", "expected"),
    [
        # What torch 2.13's DefaultLogsSpecs.reify gives.
        (False, False, False, True, INHERITED),
        (True, False, False, True, FILE),
        (False, True, False, True, BOTH),
        (True, True, False, True, BOTH),
        (False, False, True, True, DISCARDED),
        (True, False, True, True, FILE),
        (False, True, True, True, FILE),
        # --log-dir /dev/null. torchrun drops the prefixes of a tee'd stream there; we keep them.
        (False, False, False, False, INHERITED),
        (True, False, False, False, INHERITED),
        (False, True, False, False, CONSOLE),
        (False, True, True, False, DISCARDED),
    ],
)
def test_flags_decide_where_a_stream_goes(
    is_redirected: bool, is_teed: bool, is_filtered_out: bool, keeps_files: bool, expected: Destination
) -> None:
    answer = choose_destination(
        is_redirected=is_redirected, is_teed=is_teed, is_filtered_out=is_filtered_out, keeps_files=keeps_files
    )
    assert answer == expected
    if not (is_teed and is_filtered_out):
        assert answer.is_captured == (answer.to_file or answer.to_console)


@pytest.mark.parametrize(
    ("host", "template", "expected"),
    [
        (None, None, b"[trainer2]:"),
        ("node-a", None, b"node-a [trainer2]:"),
        (None, "", b"[trainer2]:"),
        (None, "[${rank}]:", b"[10]:"),
        ("node-a", "${role_name}/${local_rank}@${host} ", b"trainer/2@node-a "),
        (None, "$$ ${other} ", b"$ ${other} "),
    ],
)
def test_the_prefix_names_role_and_local_rank_or_follows_the_template(
    host: str | None, template: str | None, expected: bytes
) -> None:
    assert format_line_prefix(role="trainer", local_rank=2, rank=10, host=host, template=template) == expected
