"""Every behaviour of the table, by torchrun and by meshrun.

torchrun is the yardstick: what the table says is what it does, and is checked where torch is installed. meshrun does
the same, or what the list of differences says. A difference that is gone must leave the list.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.differences import differences, expected, plain
from tests.compat.runs import LAUNCHERS, Case, Seen, run
from tests.compat.table import CASES, duplicate_sentences, values

DIFFERENCES = differences()
LOOKS = [(case, sentence, launcher) for case in CASES for launcher in LAUNCHERS for sentence in case.looks]
needs_torchrun = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


class Runs:
    """Each case is run once by each launcher, however much is looked at; one that hangs fails all its looks.

    torchrun gets a second chance: its agents do not always find their way out together.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._done: dict[tuple[str, str], Seen | AssertionError] = {}

    def of(self, case: Case, launcher: str) -> Seen:
        key = case.name, launcher
        if key not in self._done:
            self._done[key] = self._run(case, launcher, 2 if launcher == "torchrun" else 1)
        seen = self._done[key]
        if isinstance(seen, AssertionError):
            raise seen
        return seen

    def _run(self, case: Case, launcher: str, chances: int) -> Seen | AssertionError:
        directory = Path(tempfile.mkdtemp(dir=self._directory))
        try:
            return run(case, launcher, directory)
        except AssertionError as error:
            return error if chances == 1 else self._run(case, launcher, chances - 1)


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
    seen = runs.of(case, launcher)
    row = DIFFERENCES.get(plain(sentence))
    assert plain(see(seen)) == expected(launcher, sentence, torchruns, DIFFERENCES), (
        f"{sentence}\n{f'listed: {row}' if row else 'not in the list of differences'}\n{seen.said}"
    )


def test_every_listed_difference_is_one_that_the_table_shows() -> None:
    shown = {plain(sentence): plain(case.looks[sentence][1]) for case in CASES for sentence in case.looks}
    for behaviour, row in DIFFERENCES.items():
        assert behaviour in shown or behaviour in values.SENTENCES, f"nothing looks at: {behaviour}"
        assert row.torchrun == shown.get(behaviour, row.torchrun), behaviour
        assert row.meshrun != row.torchrun, f"no difference: {behaviour}"
        assert row.why, f"no reason: {behaviour}"


def test_a_sentence_means_one_behaviour() -> None:
    assert not duplicate_sentences(CASES)
