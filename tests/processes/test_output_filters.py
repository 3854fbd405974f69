"""Many streams on the real output thread into one file for lines looked for: none torn, none lost, none too many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.logs.pump import OutputPump

LIMIT_S = 30.0


def test_lines_of_many_streams_arrive_whole_however_they_were_cut(tmp_path: Path) -> None:
    warnings: list[str] = []
    with (tmp_path / "console").open("wb") as console:
        pump = OutputPump(console_stdout=console.fileno(), console_stderr=console.fileno(), warn=warnings.append)
        found = pump.open_filter(str(tmp_path / "found"), ("needle",))
        texts, ends = [], []
        for rank in range(8):
            lines = [
                f"line {n} of {rank} " + ("needle" if n % 10 == rank else "straw") * (n % 5 + 1) for n in range(500)
            ]
            texts.append("\n".join(lines).encode() + b"\n" * (rank % 2))  # some end in the middle of a line
            ends.append(
                pump.open_stream(
                    stream="stdout", local_rank=rank, rank=rank, path=None, prefix=b"[%d]:" % rank, line_filter=found
                )
            )
        at, size = 0, 7
        while any(at < len(text) for text in texts):
            for text, end in zip(texts, ends, strict=True):
                if at < len(text):
                    os.write(end, text[at : at + size])
            at, size = at + size, size % 977 + 61
        for end in ends:
            os.close(end)
        assert pump.drain(LIMIT_S)
        pump.close()
    shown = (tmp_path / "console").read_bytes().splitlines()
    assert len(shown) == 8 * 500
    copied = (tmp_path / "found").read_bytes().splitlines()
    assert sorted(copied) == sorted(line for line in shown if b"needle" in line)
    assert len(copied) == 8 * 50
    assert warnings == []


def test_a_filter_whose_file_cannot_be_opened_warns_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    warnings: list[str] = []
    pump = OutputPump(warn=warnings.append)
    (tmp_path / "file").touch()
    found = pump.open_filter(str(tmp_path / "file/found"), ("a",))
    end = pump.open_stream(stream="stdout", local_rank=0, rank=0, path=None, prefix=b":", line_filter=found)
    os.write(end, b"a1\na2\n")
    os.close(end)
    assert pump.drain(LIMIT_S)
    pump.close()
    assert capfd.readouterr().out == ":a1\n:a2\n"
    assert len(warnings) == 1
    assert warnings[0].startswith(f"cannot write to {tmp_path}/file/found: Not a directory")
