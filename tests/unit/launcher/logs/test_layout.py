"""Where files lie: torchrun's layout, and nothing that was there is touched."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from pathlib import Path

import pytest

from launcher.logs.layout import INCIDENTS_MAX, LogLayout, draw_temporary_dirs
from launcher.model.errors import UsageError
from launcher.supervisor.keeper import remove_leftovers


def test_files_lie_where_torchrun_puts_them(tmp_path: Path) -> None:
    layout = LogLayout(log_dir=f"{tmp_path}/logs", run_id="night")
    assert re.fullmatch(rf"{tmp_path}/logs/night_[0-9a-f]{{8}}", layout.root)
    assert layout.make_stream_path(1, 0, 3, "stdout") == f"{layout.root}/attempt_0/3/stdout.log"
    assert layout.make_error_path(1, 0, 3) == f"{layout.root}/attempt_0/3/error.json"
    assert os.listdir(f"{layout.root}/attempt_0") == ["3"]
    assert not layout.is_temporary


def test_a_later_round_and_another_job_with_the_same_numbers_have_their_own_directories(tmp_path: Path) -> None:
    layout = LogLayout(log_dir=str(tmp_path), run_id="night")
    paths = [layout.make_error_path(round, count, 0) for round, count in [(1, 0), (2, 0), (3, 1), (5, 1), (2, 0)]]
    names = [path.split("/")[-3] for path in paths]
    assert names == ["attempt_0", "attempt_0.round_2", "attempt_1", "attempt_1.round_5", "attempt_0.round_2"]
    first, second = (LogLayout(log_dir=str(tmp_path), run_id="night") for _ in range(2))
    assert first.root != second.root


def test_paths_are_absolute_if_workers_change_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LogLayout(log_dir="logs", run_id="night").make_error_path(1, 0, 0).startswith(f"{tmp_path}/logs/")


@pytest.mark.parametrize("run_id", ["a/b", "../up", "x" * 300, "\udcff", "\N{SNOWMAN}" * 100])
def test_any_run_id_makes_one_directory_below_the_log_dir(tmp_path: Path, run_id: str) -> None:
    layout = LogLayout(log_dir=str(tmp_path), run_id=run_id)
    assert os.path.dirname(layout.root) == str(tmp_path)
    assert os.path.isdir(layout.root)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogLayout:
    """The layout of a job without a log directory."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return LogLayout(log_dir=None, run_id="night")


def test_without_a_log_dir_error_files_lie_in_a_private_temporary_place(temporary: LogLayout, tmp_path: Path) -> None:
    assert re.fullmatch(rf"{tmp_path}/meshrun_[0-9a-f]{{8}}", temporary.root)
    assert os.stat(temporary.root).st_mode & 0o777 == 0o700
    Path(temporary.make_error_path(1, 0, 0)).write_text("{}")
    temporary.make_error_path(2, 1, 0)
    temporary.remove_after_success()
    assert os.listdir(tmp_path) == []


def test_a_temporary_directory_with_an_incident_or_output_stays_whole(temporary: LogLayout) -> None:
    incident = Path(temporary.make_incident_path(3)) / "rank_0.json"
    incident.parent.mkdir()
    log = Path(temporary.make_stream_path(2, 1, 0, "stderr") or "")
    for kept in (incident, log):
        kept.write_text("hello\n")
        error_file = Path(temporary.make_error_path(1, 0, 0))
        error_file.write_text("{}")
        temporary.remove_after_success()
        assert error_file.exists()
        assert kept.read_text() == "hello\n"
        kept.unlink()


def test_all_temporary_directories_are_those_of_the_keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for log_dir in (None, str(tmp_path / "logs")):
        given = draw_temporary_dirs()
        layout = LogLayout(log_dir=log_dir, run_id="night", temporary_dirs=given)
        assert os.path.dirname(layout.make_recorder_path(1, 0)) in given
        assert (layout.root in given) == (log_dir is None)
        remove_leftovers(given)


def test_each_incident_has_a_folder_of_its_own_and_few_do(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    layout = LogLayout(log_dir=str(tmp_path), run_id="night")
    paths = [layout.make_incident_path(1 + number // 2) for number in range(INCIDENTS_MAX)]
    assert [os.path.basename(path) for path in paths[:3]] == ["incident_1_1", "incident_1_2", "incident_2_3"]
    assert len(set(paths)) == INCIDENTS_MAX
    assert capfd.readouterr().err == ""
    assert [layout.make_incident_path(9) for _ in range(3)] == [""] * 3
    assert capfd.readouterr().err.count("no further incident folders are written: ") == 1
    assert LogLayout(log_dir=os.devnull, run_id="night").make_incident_path(1) == ""


@pytest.mark.parametrize("name", ["short", "long" * 20])
def test_recorder_sockets_have_short_paths_in_a_private_directory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own has a long path where tests run in several processes
        place = Path(folder) / name
        place.mkdir()
        monkeypatch.setenv("TMPDIR", str(place))
        layout = LogLayout(log_dir=f"{folder}/logs", run_id="night")
        path = Path(layout.make_recorder_path(1_000_000, 127))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
        assert (path.parent.parent == place) == (name == "short")
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert layout.make_recorder_path(2, 0) == f"{path.parent}/2.0"
        remove_leftovers([str(path.parent)])
        assert not path.parent.exists()


def test_a_directory_that_was_asked_for_is_never_removed_and_may_be_full(tmp_path: Path) -> None:
    layout = LogLayout(log_dir=str(tmp_path), run_id="night")
    layout.remove_after_success()
    assert os.path.isdir(layout.root)
    Path(layout.root).rmdir()
    Path(layout.root).touch()  # as good as a full disk: nothing can be made below
    assert layout.make_error_path(1, 0, 0) == f"{layout.root}/attempt_0/0/error.json"


def test_dev_null_as_log_dir_keeps_no_files() -> None:
    layout = LogLayout(log_dir="/dev/null", run_id="night")
    assert not layout.keeps_files
    assert layout.make_stream_path(1, 0, 0, "stdout") is None
    assert layout.make_error_path(1, 0, 0) == ""
    assert layout.make_filter_path(1, 0, "stdout") is None


def test_a_log_dir_that_is_a_file_or_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=r"^--log-dir .*/file.* is not a directory$"):
            LogLayout(log_dir=str(path), run_id="night")
    with pytest.raises(UsageError, match=r"^--log-dir /proc/logs cannot be written: ") as caught:
        LogLayout(log_dir="/proc/logs", run_id="night")
    assert caught.value.hint
