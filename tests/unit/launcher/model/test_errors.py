"""What the errors of the command tell beside their sentence."""

from __future__ import annotations

import errno

import pytest

from launcher.model.errors import find_shortage_hint


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.EMFILE, "check ulimit -n"), (errno.EAGAIN, "check ulimit -u"), (errno.ENOENT, None), (None, None)],
)
def test_a_call_that_failed_for_want_of_something_names_where_to_look(number: int | None, hint: str | None) -> None:
    assert find_shortage_hint(number) == hint
