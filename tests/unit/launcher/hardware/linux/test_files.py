"""A file that is whole whenever one looks: written beside, then renamed."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.hardware.linux.files import replacing


def test_a_file_is_replaced_at_the_end_of_the_block_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text("old")
    (tmp_path / "list.part").write_text("of a process that was killed, and longer than the next")
    with replacing(str(path), 0o600) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "list"
    path.write_text("old")

    def fail() -> None:
        with replacing(str(path)) as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_in_place_of_the_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("another's")
    (tmp_path / "list.part").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"), replacing(str(tmp_path / "list")):
        pass
    assert (tmp_path / "other").read_text() == "another's"
