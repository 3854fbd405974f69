"""Where this user's locks are: in the first directory that is this user's alone, or where a lock is already."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from launcher.hardware.linux import locked_files
from launcher.model.errors import TemporaryError, UsageError
from tests.support.processes.lock_agents import locks_in


def find(file: str, *folders: Path) -> str:
    """Where a lock is, or would be."""
    with locks_in(*folders):
        return locked_files.find_lock_path(file)[0]


def test_if_no_lock_directory_can_be_used_each_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folders = [tmp_path / "file" / "places", tmp_path / "file"]
    with pytest.raises(UsageError) as refusal:
        find("a.lock", *folders)
    assert str(refusal.value) == (
        f"cannot create this node's lock file: {folders[0]} cannot be created: Not a directory; "
        f"{folders[1]} is not a directory that only this user can access"
    )


def test_a_full_disk_is_a_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(TemporaryError, match="No space left on device"):
        find("a.lock", tmp_path / "places")


def test_an_existing_lock_is_used_though_a_better_directory_is_free(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir(mode=0o700)
    (second / "a.lock").touch()
    assert find("a.lock", first, second) == str(second / "a.lock")
    assert find("b.lock", first, second) == str(first / "b.lock")
    first.rename(tmp_path / "away")
    second.chmod(0o755)  # no longer ours alone: what lies there does not count
    assert find("a.lock", first, second) == str(first / "a.lock")


def test_a_directory_with_a_suffix_is_remembered_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path / "places")
    os.mkdir(folder, 0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)  # so that it is another's
    monkeypatch.setattr(locked_files, "_find_fault", lambda place: ("it is another's", 0) if place == folder else None)
    monkeypatch.setattr(locked_files, "_list_suffixed", lambda _: [f"{folder}-b", f"{folder}-c"])
    with locks_in(Path(folder)):
        assert locked_files.find_lock_path("a.lock") == (f"{folder}-b/a.lock", "it is another's")
    os.mkdir(f"{folder}-c", 0o700)
    (tmp_path / "places-c" / "a.lock").touch()
    monkeypatch.setattr(locked_files, "_find_fault", lambda place: None)
    assert find("a.lock", Path(folder)) == f"{folder}-c/a.lock"
    assert find("b.lock", Path(folder)) == f"{folder}/b.lock"
