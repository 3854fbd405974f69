"""How fast does tee'd output reach the console: meshrun and torchrun in turn, A B A B, in one run.

Eight workers print 200,000 numbered lines each with `--tee 3`; the console is a pipe that is read as fast as it comes.
The rate is all lines over the time from the first to the last one read, so that start-up does not count. Every run is
checked for lines that are torn, lost, doubled or out of their worker's order, on the console and in the log files; one
such line of meshrun's fails the benchmark, torchrun's are counted.

Two kinds of worker:
  block   lines are made beforehand and written 1,000 at a time: the launcher is what is measured
  print   one unbuffered `print` per line, as a script does under `python -u`: mostly the workers are
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from benchmarks import figures, pairs

WORKERS = 8
LINES = 200_000  # of a worker
RUN_LIMIT_S = 120.0
RATES = {"block": (figures.BLOCKS, figures.TORN_IN_BLOCKS), "print": (figures.PRINTS, figures.TORN_PRINTS)}
LINE = re.compile(rb"\[default([0-7])\]:worker ([0-7]) prints line (\d+) of a long story")
# Prepare, wait for the others, print.
SCRIPT = """
import os, sys, time
kind, lines, barrier = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rank = os.environ["RANK"]
text = [f"worker {rank} prints line {number} of a long story" for number in range(lines)]
blocks = [("\\n".join(text[start : start + 1000]) + "\\n").encode() for start in range(0, lines, 1000)]
open(f"{barrier}/{rank}", "w").close()
while len(os.listdir(barrier)) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.005)
if kind == "print":
    for line in text:
        print(line)
else:
    for block in blocks:
        while block:
            block = block[os.write(1, block) :]
"""


def sample(side: str, kind: str, lines: int) -> dict[str, float]:
    """One job. Raises RuntimeError if it failed, or if a line of meshrun's was damaged."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        script, barrier, logs = (Path(folder, name) for name in ("script.py", "barrier", "logs"))
        script.write_text(SCRIPT)
        barrier.mkdir()
        flags = ["--standalone", "--nproc-per-node", str(WORKERS), "--tee", "3", "--log-dir", str(logs)]
        command = [*pairs.COMMANDS[side], *flags, str(script), kind, str(lines), str(barrier)]
        console, seconds = read_console(command)
        damage = find_damage(console, logs, lines)
    if side == pairs.OURS and damage.total():
        raise RuntimeError(f"meshrun's output is damaged: {damage}")
    rate, torn = RATES[kind]
    return {rate: lines * WORKERS / seconds, torn: damage["torn"]}


def read_console(command: list[str]) -> tuple[bytes, float]:
    """Run a launcher: what it printed, and the time from the first to the last of it."""
    chunks: list[bytes] = []
    environment = {**pairs.environment(), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment)
        assert process.stdout is not None
        start_s = first_s = last_s = time.monotonic()
        while chunk := os.read(process.stdout.fileno(), 1 << 20):
            last_s = time.monotonic()
            first_s = first_s if chunks else last_s
            chunks.append(chunk)
            if last_s - start_s > RUN_LIMIT_S:
                process.kill()
                raise RuntimeError(f"{' '.join(command)} still prints after {RUN_LIMIT_S:g} s")
        if process.wait(RUN_LIMIT_S):
            errors.seek(0)
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{errors.read()[-2000:]}")
    return b"".join(chunks), last_s - first_s


def find_damage(console: bytes, logs: Path, lines: int) -> Counter[str]:
    """Lines that were cut or mixed, and whole ones out of order, lost or doubled, by what is wrong with them."""
    found: Counter[str] = Counter()
    next_line = [0] * WORKERS
    whole_count = 0
    for line in console.splitlines():
        match = LINE.fullmatch(line)
        if not match or match[1] != match[2]:
            found["torn"] += 1
            continue
        rank, number = int(match[1]), int(match[3])
        whole_count += 1
        found["misplaced"] += number != next_line[rank]
        next_line[rank] = number + 1
    (job,) = logs.glob("*_*")
    files = [job / "attempt_0" / str(rank) / "stdout.log" for rank in range(WORKERS)]
    found["lost"] = abs(lines * WORKERS - whole_count)
    found["lost in files"] = abs(lines * WORKERS - sum(file.read_bytes().count(b"\n") for file in files))
    return found


@pairs.benchmark(pairs=5, quick=3)
@click.option("--lines", type=int, default=LINES, show_default=True, help="Lines per worker.")
@click.option("--kind", type=click.Choice(sorted(RATES)), help="Only this kind of worker.")
def main(bench: pairs.Bench, lines: int, kind: str | None) -> None:
    for index, each in enumerate([kind] if kind else sorted(RATES)):
        bench.alternate(lambda side, each=each: sample(side, each, lines), warm_ups=int(index == 0))


if __name__ == "__main__":
    main()
