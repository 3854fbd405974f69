"""What a record of the checks on a GPU comes to: a table for a terminal, and the rows of docs/reference/tested.md.

The newest complete run counts. One that names no commit, or measured uncommitted changes, is not published.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
RECORD = ROOT / "benchmarks" / "records" / "hardware" / "gpu.jsonl"
NONE = "No GPU has been used yet; the rows for NVIDIA GPUs below are emulated. `make gpu` tests a real GPU."


class RecordError(Exception):
    """A record that cannot be published; the sentence says why."""


def render_text(lines: Iterable[Mapping[str, Any]]) -> str:
    """For a terminal: one line for each thing that was tried."""
    return "\n".join(f"{line['result']:>17}  {line['check']}: {line['what']}: {line['told']}" for line in lines)


def render_rows(text: str) -> str:
    """Markdown of the newest complete run in a record; NONE without any. Raises RecordError."""
    runs = _split(text)
    if not runs:
        return NONE
    head, *lines = runs[-1]
    machine = head["machine"]
    day = datetime.datetime.fromtimestamp(head["unix_time_s"], datetime.timezone.utc)
    versions = [f"{name} {machine[key]}" for name, key in _VERSIONS if machine.get(key)]
    where = (
        f"Seen on {' and '.join(machine['gpus'])}; {', '.join(versions)}. Commit {head['commit'][:8]}, {day:%Y-%m-%d}."
    )
    rows = [f"| {_cell(line['what'])} | {line['result']} | {_cell(line['told'])} |" for line in lines if "what" in line]
    return "\n".join([where, "", "| check | result | observed |", "| --- | --- | --- |", *rows])


_VERSIONS = (
    ("driver", "driver"), ("CUDA", "cuda"), ("NCCL", "nccl"), ("torch", "torch"), ("JAX", "jax"), ("Python", "python"),
    ("kernel", "kernel"),
)  # fmt: skip


def _split(text: str) -> list[Sequence[dict[str, Any]]]:
    """The complete runs, each its head and its lines."""
    runs: list[list[dict[str, Any]]] = []
    complete = []
    for number, words in enumerate(text.splitlines(), 1):
        try:
            line = json.loads(words)
        except ValueError:
            raise RecordError(f"line {number} of the record is no JSON: {words[:60]!r}") from None
        if "machine" in line:
            if not re.fullmatch("[0-9a-f]{40}", str(line.get("commit"))) or line.get("is_dirty") is not False:
                raise RecordError(f"line {number} of the record: a run without a commit, or with uncommitted changes")
            if line["machine"]["gpus"] == ["pretended"]:
                raise RecordError(f"line {number} of the record: a run without a GPU")
            runs.append([line])
        elif not runs:
            raise RecordError(f"line {number} of the record has no head before it")
        elif line.get("end"):
            complete.append(runs[-1])
        else:
            runs[-1].append(line)
    return list(complete)


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")
