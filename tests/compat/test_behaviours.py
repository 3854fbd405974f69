"""Every behaviour of the table, by torchrun and by meshrun.

torchrun is the yardstick: what the table says is what it does, and is checked where torch is installed. meshrun does
the same, or what the list of differences says. A difference that is gone must leave the list.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.differences import differences, plain
from tests.compat.runs import LAUNCHERS, Case, Seen, run
from tests.compat.table import CASES, duplicate_sentences, values

DIFFERENCES = differences()
LOOKS = [(case, sentence, launcher) for case in CASES for launcher in LAUNCHERS for sentence in case.looks]
needs_torchrun = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


class Runs:
    """Each case is run once by each launcher, however much is looked at; one that fails fails all its looks."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._done: dict[tuple[str, str], Seen | BaseException] = {}

    def of(self, case: Case, launcher: str) -> Seen:
        key = case.name, launcher
        if key not in self._done:
            directory = self._directory / f"{len(self._done)}"
            directory.mkdir()
            try:
                self._done[key] = run(case, launcher, directory)
            except AssertionError as error:
                self._done[key] = error
        seen = self._done[key]
        if isinstance(seen, BaseException):
            raise seen
        return seen


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    return Runs(tmp_path_factory.mktemp("compat"))


def _marks(launcher: str) -> list[pytest.MarkDecorator]:
    return [needs_torchrun] if launcher == "torchrun" else []


@pytest.mark.parametrize(
    ("case", "sentence", "launcher"),
    [
        pytest.param(*look, marks=_marks(look[2]), id=f"{look[2]}: {look[0].name}: {look[1]}".replace("/", " "))
        for look in LOOKS
    ],
)
def test_a_behaviour_is_torchruns_or_a_listed_difference(case: Case, sentence: str, launcher: str, runs: Runs) -> None:
    see, torchruns = case.looks[sentence]
    expected = plain(torchruns)
    row = DIFFERENCES.get(plain(sentence))
    if launcher == "meshrun" and row is not None:
        expected = row.meshrun
    seen = runs.of(case, launcher)
    shown = plain(see(seen))
    listed = f"\nlisted: {row}" if row else "\nnot in the list of differences"
    assert shown == expected, f"{sentence}{listed}\n{seen.said}"


def test_every_listed_difference_is_one_that_the_table_shows() -> None:
    shown = {plain(sentence): plain(case.looks[sentence][1]) for case in CASES for sentence in case.looks}
    for behaviour, row in DIFFERENCES.items():
        assert behaviour in shown or behaviour in values.SENTENCES, f"nothing looks at: {behaviour}"
        assert row.torchrun == shown.get(behaviour, row.torchrun), behaviour
        assert row.meshrun != row.torchrun, f"no difference: {behaviour}"
        assert row.why, f"no reason: {behaviour}"


def test_a_sentence_means_one_behaviour() -> None:
    assert not duplicate_sentences(CASES)
