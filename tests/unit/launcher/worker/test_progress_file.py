"""The step that a script has written to the file of --progress-file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.model.concurrency import NO_THREAD
from launcher.worker.progress_file import read_progress_file
from tests.support.threads import no_threads


@pytest.mark.parametrize(
    ("text", "step"), [("1200\n", 1200), ("7 of 100", 7), ("", -1), ("step 7", -1), ("-3", -1), ("9" * 40, -1)]
)
def test_the_file_begins_with_the_step(text: str, step: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "step").write_text(text)
    assert read_progress_file(str(tmp_path / "step")) == step
    assert ("does not begin with a step" in capfd.readouterr().err) == (step < 0)


def test_a_file_that_is_missing_or_never_answers_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert read_progress_file(str(tmp_path / "none")) == -1
    assert "cannot be read: No such file or directory" in capfd.readouterr().err
    os.mkfifo(tmp_path / "fifo")  # the opening waits for a writer
    assert read_progress_file(str(tmp_path / "fifo")) == -1
    assert "cannot be read: no answer within 1 s" in capfd.readouterr().err
    os.close(os.open(tmp_path / "fifo", os.O_RDWR))  # lets the reader go


def test_without_a_thread_no_step_is_known(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "step").write_text("7")
    with no_threads():
        assert read_progress_file(str(tmp_path / "step")) == -1
    assert f"cannot be read: {NO_THREAD}" in capfd.readouterr().err
