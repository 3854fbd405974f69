"""`phase`: what the agent reads on the shared page of the phases that a worker enters."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from launcher.hardware.linux.shared_page import VARIABLE, SharedPage, make
from launcher.worker import client, phase


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedPage]:
    """This process is the second worker of two."""
    made = make()
    made.begin(2, None)
    monkeypatch.setattr(client, "_page", None)
    monkeypatch.setattr(client, "_is_resolved", False)
    monkeypatch.setenv("LAUNCHER_ROUND", "1")
    monkeypatch.setenv(VARIABLE, made.list_variables(1)[VARIABLE])
    yield made
    os.close(made.descriptor)


def find(page: SharedPage) -> tuple[int, float, str]:
    other, own = page.read_phases()
    assert other == (0, 0.0, "")
    return own


def test_of_nested_phases_the_innermost_counts(page: SharedPage) -> None:
    with phase("eval", limit_s=900):
        assert find(page) == (1, 900.0, "eval")
        with phase("save", limit_s=0.5):
            assert find(page) == (2, 0.5, "save")
        assert find(page) == (3, 900.0, "eval")
    assert find(page)[:2] == (4, 0.0)


def test_a_phase_within_itself_leaves_the_innermost_first(page: SharedPage) -> None:
    evaluate, save = phase("eval", limit_s=900), phase("save", limit_s=60)
    with evaluate, save:
        with evaluate:
            assert find(page)[1:] == (900.0, "eval")
        assert find(page)[1:] == (60.0, "save")


def test_an_exception_leaves_its_phases(page: SharedPage) -> None:
    with pytest.raises(KeyError), phase("eval", limit_s=900), phase("save", limit_s=60):
        raise KeyError
    assert find(page)[:2] == (4, 0.0)


def test_phases_of_two_threads_may_overlap(page: SharedPage) -> None:
    first, second = phase("eval", limit_s=900), phase("save", limit_s=60)
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert find(page)[1:] == (60.0, "save")
    second.__exit__()
    assert find(page)[1] == 0.0


def test_a_new_round_is_in_no_phase(page: SharedPage) -> None:
    with phase("eval", limit_s=900):
        page.begin(2, None)
        assert find(page) == (0, 0.0, "")


@pytest.mark.parametrize(
    ("name", "limit_s", "found"),
    [
        ("x" * 40, 1e-9, (1, 0.001, "x" * 16)),
        ("évaluation longue", float("inf"), (1, float("inf"), "évaluation long")),
        ("", 1e11, (1, 1e11, "")),
        ("\udce9", 1, (1, 1.0, "?")),
    ],
)
def test_names_are_cut_and_limits_may_be_any(name: str, limit_s: float, found: object, page: SharedPage) -> None:
    with phase(name, limit_s=limit_s):
        assert find(page) == found


@pytest.mark.parametrize("limit_s", [0, -1, float("nan")])
def test_a_limit_is_greater_than_zero(limit_s: float) -> None:
    with pytest.raises(ValueError, match="phase 'eval': limit_s is"):
        phase("eval", limit_s=limit_s)


def test_without_a_shared_page_a_phase_does_nothing(page: SharedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    with phase("eval", limit_s=900):
        assert find(page) == (0, 0.0, "")
