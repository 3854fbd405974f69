"""The files that the command writes: each as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.meshctl.plan import command
from launcher.meshctl.plan.command import write_file
from launcher.model.errors import UsageError


def test_a_file_is_replaced_as_a_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    old, link = tmp_path / "plan.svg", tmp_path / "link.svg"
    old.write_text("old")
    link.symlink_to(old)
    write_file(str(link), "new")
    assert (old.read_text(), link.is_symlink()) == ("new", True)
    with pytest.raises(UsageError, match="cannot write '/dev/full': No space left on device"):
        write_file("/dev/full", "new")
    with pytest.raises(UsageError, match=r"cannot write .*: No such file or directory"):
        write_file(str(tmp_path / "nowhere" / "plan.svg"), "new")
    with pytest.raises(UsageError, match="'-' is not the name of a file"):
        write_file("-", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.svg", "plan.svg"]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "plan.svg").write_text("old")
    monkeypatch.setattr(command.os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device") as caught:
        write_file(str(tmp_path / "plan.svg"), "new")
    monkeypatch.undo()
    assert caught.value.hint == "check df -h and df -i"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("plan.svg", "old")]
