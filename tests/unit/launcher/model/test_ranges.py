"""Names and numbers as ranges."""

from __future__ import annotations

import pytest

from launcher.model import ranges


@pytest.mark.parametrize(
    ("values", "text"),
    [([0, 1, 2, 3], "0-3"), ([0, 1, 6, 7, 9], "0-1, 6-7, 9"), ([4], "4"), ([], ""), ([3, 2, 1], "3, 2, 1")],
)
def test_consecutive_ranks_are_a_range_in_the_order_given(values: list[int], text: str) -> None:
    assert ranges.format_ranges(values) == text


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (["h10", "h9", "h8", "h12"], ["h8-h10", "h12"]),
        (["h0", "h1"], ["h0-h1"]),
        (["h09", "h10", "h11"], ["h09-h11"]),
        (["h099", "h100", "h1000"], ["h1000", "h099-h100"]),
        (["ip-10-0-0-1", "ip-10-0-0-2", "ip-10-0-1-3"], ["ip-10-0-0-1 to ip-10-0-0-2", "ip-10-0-1-3"]),
        (["a", "b", "a"], ["a", "b"]),
        (["h", "h0"], ["h", "h0"]),
        (["x" + "9" * 40], ["x" + "9" * 40]),
        ([], []),
    ],
)
def test_names_that_differ_only_in_the_number_at_their_end_are_a_range(values: list[str], found: list[str]) -> None:
    assert ranges.merge_names(values) == found
