"""Columns of a terminal: as wide as needed, numbers at the right, wide letters counted twice."""

from __future__ import annotations

from launcher.meshctl.table import align, measure_width, pad


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("node", "cpu", "state"), ("h10", "1.5", ""), ("h9", "12.0", "lost")]
    assert align(rows, right=(1,)) == ["node   cpu  state", "h10    1.5", "h9    12.0  lost"]
    assert align(rows[:2], gap="|") == ["node|cpu|state", "h10 |1.5|"]


def test_a_table_without_rows_or_columns_has_nothing_to_align() -> None:
    assert align([]) == []
    assert align([(), ()]) == ["", ""]


def test_wide_and_combining_letters_are_counted_as_a_terminal_shows_them() -> None:
    assert [measure_width(text) for text in ("", "node", "節点", "e\u0301", "\uff21", "é")] == [0, 4, 4, 1, 2, 1]
    assert align([("節点", "x"), ("h0", "y")]) == ["節点  x", "h0    y"]


def test_a_wider_text_is_left_as_it_is() -> None:
    assert (pad("abc", 2), pad("abc", 4), pad("abc", 4, is_right=True)) == ("abc", "abc ", " abc")
