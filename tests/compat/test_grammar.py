"""Which values an option takes: torchrun's own parser and checks decide, in this process, and meshrun's do the same.

Each value is tried as a flag and as a PET_ variable. A value that one takes and the other refuses is in the list of
differences, as `--option value`. A whole run of either is in the table; here nothing is started.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from launcher.agent import command
from launcher.model.errors import UsageError
from tests.compat.differences import differences
from tests.compat.table import values

torch_is_there = importlib.util.find_spec("torch") is not None
pytestmark = pytest.mark.skipif(not torch_is_there, reason="torch is not installed")

DIFFERENCES = differences()


def torchruns(words: list[str], environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    from torch.distributed import run

    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # it would set this for good
    try:
        run.config_from_args(run.parse_args([*words, "train.py"]))
    except (SystemExit, Exception):
        return "refused"
    return "accepted"


def ours(words: list[str], environ: dict[str, str]) -> str:
    try:
        command.parse([*words, "train.py"], environ)
    except UsageError:
        return "refused"
    return "accepted"


@pytest.mark.parametrize(("name", "value"), values.TRIALS, ids=[f"{name} {value!a}" for name, value in values.TRIALS])
def test_a_value_is_taken_or_refused_as_by_torchrun(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ways = values.ways(name, value)
    for sentence, words, environ in ways:
        theirs = torchruns(words, environ, monkeypatch)
        row = DIFFERENCES.get(sentence)
        if row is None and (flags := DIFFERENCES.get(ways[0][0])) and flags.torchrun == theirs:
            row = flags  # what is said of the flag holds for its variable too
        expected = row.meshrun if row else theirs
        assert row is None or row.torchrun == theirs, f"{sentence}: torchrun, listed as {row}"
        assert ours(words, environ) == expected, f"{sentence}: torchrun has it {theirs}; listed: {row}"
