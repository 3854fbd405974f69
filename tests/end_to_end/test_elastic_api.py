"""Workers of every kind see what torch.distributed.elastic looks for: that there is a launcher, and where to leave an
exception."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from launcher import launch
from tests.support.jobs import call_targets
from tests.support.jobs.single_node import run

torch = pytest.importorskip("torch")

DUMP = """
with open(f"environment-{os.getppid()}-{RANK}", "w") as file:
    import json
    json.dump(dict(os.environ), file)
"""


@pytest.mark.parametrize(
    "words", [(), ("--run-path",), ("-m", "train", "--"), ("--no-python", sys.executable)], ids=lambda words: words[:1]
)
def test_workers_of_every_kind_know_that_they_were_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    run(tmp_path, *words, script=DUMP)
    (file,) = tmp_path.glob("environment-*")
    for name, value in json.loads(file.read_text()).items():
        monkeypatch.setenv(name, value)
    assert torch.distributed.is_torchelastic_launched()
    assert os.path.isabs(os.environ["TORCHELASTIC_ERROR_FILE"])


def test_a_function_in_a_worker_knows_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in launch(call_targets.variables, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")[0].items():
        assert value
        monkeypatch.setenv(name, value)
    assert torch.distributed.is_torchelastic_launched()
    assert os.path.isabs(os.environ["TORCHELASTIC_ERROR_FILE"])
