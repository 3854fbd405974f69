"""Where files lie: torchrun's layout, and nothing that was there is touched."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from launcher.logs.layout import INCIDENTS_MAX, LogLayout, draw_temporary_dirs
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
    layout.enter_job("job")
    assert os.path.dirname(layout.root) == str(tmp_path)
    assert os.path.isdir(layout.root)


KEY = "/meshrun/night/0123456789abcdef"
OTHER_KEY = "/meshrun/night/3-0123456700000000"


def enter(log_dir: Path, node: str, key: str = KEY, run_id: str = "night") -> tuple[LogLayout, str]:
    """The layout of a node of several at its first round, and the place that is news."""
    layout = LogLayout(log_dir=str(log_dir), run_id=run_id, node=node)
    assert layout.root == ""
    return layout, layout.enter_job(key)


def test_nodes_of_a_job_share_a_directory_and_one_of_them_says_so(tmp_path: Path) -> None:
    found = [enter(tmp_path, node) for node in ("a", "b", "c")]
    assert [place for _, place in found] == [f"{tmp_path}/night_89abcdef", "", ""]
    assert {layout.job_dir for layout, _ in found} == {f"{tmp_path}/night_89abcdef"}
    paths = [layout.make_stream_path(1, 0, 0, "stderr") for layout, _ in found]
    assert paths == [f"{tmp_path}/night_89abcdef/{node}/attempt_0/0/stderr.log" for node in ("a", "b", "c")]
    assert not found[0][0].enter_job(OTHER_KEY)  # a later round
    assert found[0][0].job_dir == f"{tmp_path}/night_89abcdef"


def test_an_agent_never_gets_the_folder_of_another_one_with_its_name(tmp_path: Path) -> None:
    found = [enter(tmp_path, node) for node in ("a", "a", "a", "a.2", "..", "x/../..")]
    names = [os.path.relpath(layout.root, f"{tmp_path}/night_89abcdef") for layout, _ in found]
    assert names == ["a", "a.2", "a.3", "a.2.2", "...2", "x_.._.."]
    is_odd = [place == layout.root for layout, place in found]  # where the files of an agent are is said once
    assert is_odd == [False, True, True, True, True, False]
    assert [layout.enter_job(OTHER_KEY) for layout, _ in found] == [""] * 6


def test_the_next_job_of_a_run_has_another_directory(tmp_path: Path) -> None:
    first, second = (enter(tmp_path, "a", key)[0] for key in (KEY, OTHER_KEY))
    assert first.job_dir != second.job_dir


def test_latest_leads_to_the_run_that_began_last(tmp_path: Path) -> None:
    def read_latest() -> str:
        return os.readlink(tmp_path / "latest-run")

    for node in ("a", "b"):
        enter(tmp_path, node)
    assert read_latest() == "night_89abcdef"
    enter(tmp_path, "a", OTHER_KEY)
    enter(tmp_path, "c")  # joins the older one
    assert read_latest() == "night_00000000"
    alone = LogLayout(log_dir=str(tmp_path), run_id="alone")
    assert alone.enter_job("")
    assert (read_latest(), (tmp_path / "latest-run").samefile(alone.root)) == (os.path.basename(alone.root), True)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize(
    "what", ["file", "directory", "/data/model", "model", "model_final", "/data/night_01234567", "without links"]
)
def test_what_is_called_latest_already_stays_and_the_run_begins(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = tmp_path / "latest-run"
    match what:
        case "file":
            latest.write_text("mine")
        case "directory":
            (latest / "below").mkdir(parents=True)
        case target if target != "without links":
            latest.symlink_to(target)
        case _:
            monkeypatch.setattr(os, "symlink", Mock(side_effect=PermissionError(1, "not permitted")))
    before = (os.path.lexists(latest), latest.is_symlink() and os.readlink(latest), latest.is_dir())
    assert enter(tmp_path, "a")[1]
    assert (os.path.lexists(latest), latest.is_symlink() and os.readlink(latest), latest.is_dir()) == before
    assert {path.name for path in tmp_path.iterdir()} <= {"latest-run", "night_89abcdef"}


def test_a_checkpoint_directory_may_be_the_log_dir(tmp_path: Path) -> None:
    enter(tmp_path, "a")
    assert not os.path.lexists(tmp_path / "latest")  # DeepSpeed writes the name of the newest checkpoint there


def test_a_round_starts_though_the_directory_of_the_job_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "night_89abcdef").touch()  # as good as a full disk
    layout, place = enter(tmp_path, "a")
    assert not place
    assert layout.make_error_path(1, 0, 0) == f"{tmp_path}/night_89abcdef/a/attempt_0/0/error.json"


def test_directories_that_stay_empty_are_removed_and_nothing_else(tmp_path: Path) -> None:
    layout, _ = enter(tmp_path, "a")
    layout.make_error_path(1, 0, 0)
    kept = Path(layout.make_stream_path(1, 0, 1, "stdout") or "")
    kept.touch()
    (Path(layout.root) / "mine").mkdir()
    layout.remove_needless(is_success=True)
    assert sorted(path.name for path in Path(layout.root).rglob("*")) == ["1", "attempt_0", "mine", "stdout.log"]
    kept.unlink()
    (Path(layout.root) / "mine").rmdir()
    layout.remove_needless(is_success=True)
    assert not os.path.exists(layout.root)


def test_after_a_failure_the_log_directory_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, _ = enter(tmp_path, "a")
    layout.make_error_path(1, 0, 0)
    calls: list[object] = []  # storage that hangs would keep the agent
    for name in ("walk", "rmdir", "unlink"):
        monkeypatch.setattr(os, name, calls.append)
    layout.remove_needless(is_success=False)
    assert calls == []
    monkeypatch.setattr(os, "rmdir", Mock())
    layout.remove_needless(is_success=True)
    assert calls == []


def test_a_node_that_never_had_a_round_leaves_nothing(tmp_path: Path) -> None:
    for node in ("", "a"):
        layout = LogLayout(log_dir=str(tmp_path), run_id="night", node=node)
        layout.remove_needless(is_success=False)
    assert os.listdir(tmp_path) == []


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
    Path(temporary.make_stream_path(2, 1, 0, "stdout") or "").touch()  # a worker that printed nothing
    temporary.remove_needless(is_success=True)
    assert os.listdir(tmp_path) == []


def test_a_temporary_directory_with_an_incident_or_output_stays_whole(temporary: LogLayout) -> None:
    incident = Path(temporary.make_incident_path(3)) / "rank_0.json"
    incident.parent.mkdir()
    log = Path(temporary.make_stream_path(2, 1, 0, "stderr") or "")
    for kept in (incident, log):
        kept.write_text("hello\n")
        error_file = Path(temporary.make_error_path(1, 0, 0))
        error_file.write_text("{}")
        temporary.remove_needless(is_success=True)
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


def test_dev_null_as_log_dir_keeps_no_files() -> None:
    layout = LogLayout(log_dir="/dev/null", run_id="night")
    assert not layout.keeps_files
    assert layout.make_stream_path(1, 0, 0, "stdout") is None
    assert layout.make_error_path(1, 0, 0) == ""
    assert layout.make_filter_path(1, 0, "stdout") is None


def test_a_round_starts_even_if_its_directory_cannot_be_made(tmp_path: Path) -> None:
    layout = LogLayout(log_dir=str(tmp_path), run_id="night")
    Path(layout.root).touch()  # as good as a full disk: nothing can be made below
    assert layout.make_error_path(1, 0, 0) == f"{layout.root}/attempt_0/0/error.json"
