"""Where streams go by the options, and what is said of it at the start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from launcher.config import config
from launcher.config.options import command_line
from launcher.logs.layout import LogLayout
from launcher.logs.routes import OutputRoutes, Route, format_line_prefix


def routes(tmp_path: Path, *words: str, count: int = 2) -> OutputRoutes:
    made = config.resolve(command_line.parse(["--log-dir", str(tmp_path), *words, "train.py"]), {}, sys.executable)
    layout = LogLayout(log_dir=made.output.log_dir, run_id="night")
    layout.enter_job("job")
    found = OutputRoutes(made.output, layout, count)
    found.begin(2, 1)
    return found


def test_streams_go_where_the_options_say(tmp_path: Path) -> None:
    found = routes(tmp_path, "-r", "2", "-t", "0:1,1:1", "--local-ranks-filter", "0")
    (folder,) = tmp_path.glob("night_*")
    assert found.find_route(0, "stdout") == Route(path=f"{folder}/attempt_1/0/stdout.log", to_console=True)
    assert found.find_route(1, "stdout") == Route(path=f"{folder}/attempt_1/1/stdout.log")
    assert found.find_route(1, "stderr") == Route(path=f"{folder}/attempt_1/1/stderr.log")
    assert found.find_filter_file("stdout") == f"{folder}/attempt_1/filtered_stdout.log"
    assert found.find_filter_file("stderr") is None
    assert (found.captures, found.has_files) == (True, True)
    assert found.list_remarks() == []


def test_without_options_streams_are_the_agents_own_and_nothing_is_said(tmp_path: Path) -> None:
    found = routes(tmp_path)
    assert {found.find_route(rank, stream) for rank in range(2) for stream in ("stdout", "stderr")} == {
        Route(inherits=True)
    }
    assert (found.captures, found.has_files) == (False, False)
    assert found.list_remarks() == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-t", "0:1,4:1"], "--tee names 4, but the last local rank is 1"),
        (["-r", "3", "--duplicate-stdout-filters", "a"],
         "--duplicate-stdout-filters has no effect: no worker's stdout is teed"),
        (["-t", "1:2", "--local-ranks-filter", "0", "--duplicate-stderr-filters", "a"],
         "--duplicate-stderr-filters has no effect: no worker's stderr is teed"),
        (["-t", "3", "--duplicate-stdout-filters", "a", "--log-dir", os.devnull],
         "--duplicate-stdout-filters has no effect: --log-dir /dev/null keeps no files"),
    ],
)  # fmt: skip
def test_what_an_option_cannot_do_is_said(tmp_path: Path, words: list[str], sentence: str) -> None:
    assert sentence in routes(tmp_path, *words).list_remarks()


# As (inherits, to a file, to the console).
INHERITED, DISCARDED = (True, False, False), (False, False, False)
FILE, CONSOLE, BOTH = (False, True, False), (False, False, True), (False, True, True)
SILENT, NULL = "--local-ranks-filter=1", f"--log-dir={os.devnull}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # What torch 2.13's DefaultLogsSpecs.reify gives.
        ([], INHERITED),
        (["-r1"], FILE),
        (["-t1"], BOTH),
        (["-r1", "-t1"], BOTH),
        ([SILENT], DISCARDED),
        (["-r1", SILENT], FILE),
        (["-t1", SILENT], FILE),
        # --log-dir /dev/null. torchrun drops the prefixes of a tee'd stream there; we keep them.
        ([NULL], INHERITED),
        (["-r1", NULL], INHERITED),
        (["-t1", NULL], CONSOLE),
        (["-t1", SILENT, NULL], DISCARDED),
    ],
)
def test_flags_decide_where_a_stream_goes(tmp_path: Path, words: list[str], expected: tuple[bool, ...]) -> None:
    found = routes(tmp_path, *words).find_route(0, "stdout")
    assert (found.inherits, found.path is not None, found.to_console) == expected


@pytest.mark.parametrize(
    ("host", "template", "expected"),
    [
        (None, None, b"[trainer2]:"),
        ("node-a", None, b"node-a [trainer2]:"),
        (None, "", b"[trainer2]:"),
        (None, "[${rank}]:", b"[10]:"),
        ("node-a", "${role_name}/${local_rank}@${host} ", b"trainer/2@node-a "),
        (None, "$$ ${other} ", b"$ ${other} "),
    ],
)
def test_the_prefix_names_the_rank_or_is_the_template(host: str | None, template: str | None, expected: bytes) -> None:
    assert format_line_prefix(role="trainer", local_rank=2, rank=10, host=host, template=template) == expected
