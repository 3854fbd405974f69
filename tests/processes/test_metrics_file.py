"""The file of --metrics-file."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from launcher.extensions.metrics import options
from launcher.extensions.metrics.options import require_directory, require_library
from launcher.extensions.metrics.textfile import MetricsFile
from launcher.model.errors import UsageError
from tests.support.reports import FixedSource, make_report
from tests.support.waiting import wait_until


def write_file(path: Path, source: FixedSource) -> MetricsFile:
    """The part, which has begun to write the file all the time."""
    part = MetricsFile(str(path), source.exchange, "exp-41", delay_s=0.0, period_s=0.01)
    part.advance(0.0)
    return part


def read_round(path: Path) -> float | None:
    """The number of the round in a file; None without one."""
    if not path.exists():
        return None
    families = text_string_to_metric_families(path.read_text())
    return next(family.samples[0].value for family in families if family.name == "meshrun_round")


def test_a_file_is_replaced_and_removed_at_the_end(tmp_path: Path) -> None:
    path, source = tmp_path / "meshrun.prom", FixedSource(make_report())
    written = write_file(path, source)
    assert wait_until(lambda: read_round(path)) == 2.0
    source.answer = make_report(round=3)
    wait_until(lambda: read_round(path) == 3.0)
    assert path.stat().st_mode & 0o444 == 0o444 & ~_read_umask(), "node_exporter is another user"
    written.close()
    assert os.listdir(tmp_path) == []


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_directory_that_is_removed_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "textfile"
    folder.mkdir()
    path = folder / "meshrun.prom"
    written = write_file(path, FixedSource(make_report()))
    wait_until(path.exists)
    told = ""
    for _ in range(2):
        shutil.rmtree(folder, ignore_errors=True)
        wait_until(lambda: not folder.exists() or shutil.rmtree(folder, ignore_errors=True))
        told += wait_until(lambda: capfd.readouterr().err)
        folder.mkdir()
        wait_until(path.exists)
    written.close()
    sentence = f"meshrun: --metrics-file {path} cannot be written: No such file or directory; tried again every 15 s\n"
    assert told + capfd.readouterr().err == 2 * sentence


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB, of which a file that a reader still has open takes its part."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_told_once_and_leaves_nothing_half(full_disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = full_disk / "meshrun.prom"
    path.write_text("old\n")
    (full_disk / "rest").write_bytes(bytes(60 << 10))
    source = FixedSource(make_report())
    written = write_file(path, source)
    told = wait_until(lambda: capfd.readouterr().err)
    assert "No space left on device (check df -h and df -i)" in told
    assert path.read_text() == "old\n"
    assert set(os.listdir(full_disk)) <= {"meshrun.prom", "rest"}
    (full_disk / "rest").unlink()
    wait_until(lambda: path.read_text() != "old\n")
    written.close()
    assert capfd.readouterr().err == ""


def test_an_agent_that_does_not_answer_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path, source = tmp_path / "meshrun.prom", FixedSource("it does not answer")
    path.write_text("old\n")
    written = write_file(path, source)
    wait_until(lambda: source.asked)
    assert path.read_text() == "old\n"
    written.close()


def test_a_directory_that_is_not_there_is_an_error_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        require_directory(str(tmp_path / "none" / "meshrun.prom"))
    with pytest.raises(UsageError, match="is a directory"):
        require_directory(str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(UsageError, match="is not writable"):
        require_directory(str(tmp_path / "meshrun.prom"))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda _: None)
    with pytest.raises(UsageError) as refused:
        require_library()
    assert refused.value.hint == "run pip install 'prometheus-client>=0.22'"
