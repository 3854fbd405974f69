"""Whatever a dying worker left in its error file, the report shows what can be shown."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher.logs.error_file import MESSAGE_LIMIT, READ_LIMIT, copy_error_file, read_error

RECORDED = {
    "message": {
        "message": "RuntimeError: boom",
        "extraInfo": {"py_callstack": "Traceback ...\nRuntimeError: boom\n", "timestamp": "1700000000"},
    }
}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json.dumps(RECORDED), "Traceback ...\nRuntimeError: boom"),
        ('{"message": "it broke", "timestamp": 1}', "it broke"),
        ('{"message": {"message": "odd", "extraInfo": []}}', "odd"),
        ('{"message": {"code": 7}}', '{"message": {"code": 7}}'),
        ('{"message": ', '{"message":'),
        ('{"text": "x"}', '{"text": "x"}'),
        ("not JSON at all", "not JSON at all"),
        ("[" * 100_000, None),
        ("", None),
        ("  \n", None),
        ('{"message": ""}', None),
    ],
)
def test_the_best_text_in_the_file_is_taken(tmp_path: Path, content: str, expected: str | None) -> None:
    path = tmp_path / "error.json"
    path.write_text(content)
    found = read_error(str(path))[0]
    if content.startswith("[["):
        assert found is not None
        assert found.startswith("[[")
    else:
        assert (found.strip() if found else found) == expected


def test_what_is_no_readable_file_is_no_message(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "fifo", Path("/proc/self/mem")):
        assert read_error(str(path))[0] is None
    assert read_error("")[0] is None


def test_a_huge_file_is_cut_and_bytes_that_are_not_text_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "first " + "x" * 100_000 + " last"}))
    message = read_error(str(path))[0] or ""
    assert len(message) < MESSAGE_LIMIT + 100
    assert message.startswith("first ")
    assert message.endswith(" last")
    path.write_text("y" * (READ_LIMIT + 10))
    assert len(read_error(str(path))[0] or "") < MESSAGE_LIMIT + 100
    path.write_bytes(b"\xff\xfeboom")
    assert (read_error(str(path))[0] or "").endswith("boom")


def test_the_root_causes_error_file_and_exit_code_reach_the_parent(tmp_path: Path) -> None:
    source, target = tmp_path / "error.json", tmp_path / "ours.json"
    source.write_text(json.dumps(RECORDED))
    copy_error_file(str(source), str(target), -9)
    passed = json.loads(target.read_text())
    assert passed["message"].pop("errorCode") == -9
    assert passed == RECORDED


@pytest.mark.parametrize("content", ["not JSON", '{"message": "plain"}', "[]", None])
def test_an_error_file_of_another_shape_is_passed_on_as_it_is(tmp_path: Path, content: str | None) -> None:
    source, target = tmp_path / "error.json", tmp_path / "ours.json"
    if content is not None:
        source.write_text(content)
    copy_error_file(str(source), str(target), 1)
    assert (target.read_text() if target.exists() else None) == content
