"""How fast does tee'd output reach the console: meshrun and torchrun in turn, A B A B, in one run.

Eight workers print 200,000 numbered lines each with `--tee 3`; the console is a pipe that is read as fast as it
comes. The rate is all lines over the time from the first to the last one read, so that start-up does not count.
Every run is checked for lines that are torn, lost, doubled or out of their worker's order, on the console and in
the log files; one such line of meshrun's fails the benchmark, torchrun's are counted.

Two kinds of worker:
  block   lines are made beforehand and written 1,000 at a time: the launcher is what is measured
  print   one unbuffered `print` per line, as a script does under `python -u`: mostly the workers are

    python -m benchmarks.output [--pairs 3] [--kind block] [--pump]

`--pump` measures the output thread alone with eight real writers, without agent and supervisor, in meshrun's place;
such figures go to no record.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import figures, pairs

WORKERS = 8
RUN_LIMIT_S = 120.0
MODULE = "benchmarks.output"
FLAGS = ("--standalone", "--nproc-per-node", str(WORKERS), "--tee", "3", "--log-dir", "{log_dir}")
RATES = {"block": (figures.BLOCKS, figures.TORN_IN_BLOCKS), "print": (figures.PRINTS, figures.TORN_PRINTS)}
BARRIER = "OUTPUT_BENCHMARK_BARRIER"
LINE = re.compile(rb"\[default([0-7])\]:worker ([0-7]) prints line (\d+) of a long story")


def work(kind: str, lines: int) -> None:
    """What a worker does: prepare, wait for the others, print."""
    rank = os.environ["RANK"]
    text = [f"worker {rank} prints line {number} of a long story" for number in range(lines)]
    blocks = [("\n".join(text[start : start + 1000]) + "\n").encode() for start in range(0, lines, 1000)]
    barrier = os.environ[BARRIER]
    with open(os.path.join(barrier, rank), "w"):
        pass
    while len(os.listdir(barrier)) < WORKERS:
        time.sleep(0.005)
    if kind == "print":
        for line in text:
            print(line)
    else:
        for block in blocks:
            while block:
                block = block[os.write(1, block) :]


def pump(command: list[str], log_dir: str) -> None:
    """Stand in for the agent: eight writers on the output thread."""
    from launcher.logs.layout import LogLayout
    from launcher.logs.pump import OutputPump
    from launcher.logs.routes import format_line_prefix

    layout = LogLayout(log_dir=log_dir, run_id="benchmark")
    output = OutputPump(warn=lambda sentence: print(sentence, file=sys.stderr))
    workers = []
    for rank in range(WORKERS):
        write_fd = output.open_stream(
            stream="stdout",
            local_rank=rank,
            rank=rank,
            path=layout.make_stream_path(1, 0, rank, "stdout"),
            prefix=format_line_prefix(role="default", local_rank=rank, rank=rank),
        )
        environment = {**os.environ, "RANK": str(rank)}
        # Each in its own session, as under both launchers: a kernel with autogroups shares CPUs among sessions.
        workers.append(subprocess.Popen(command, stdout=write_fd, env=environment, start_new_session=True))
        os.close(write_fd)
    for worker in workers:
        worker.wait()
    if not output.drain(30):
        sys.exit("the output thread did not finish within 30 s")
    output.close()


def check(console: bytes, log_dir: str, lines: int) -> dict[str, float]:
    """Count what is amiss: lines that were cut or mixed, and whole lines lost, doubled or out of order."""
    next_line = [0] * WORKERS
    torn_count = whole_count = misplaced_count = 0
    for line in console.splitlines():
        match = LINE.fullmatch(line)
        if not match or match[1] != match[2]:
            torn_count += 1
            continue
        rank, number = int(match[1]), int(match[3])
        whole_count += 1
        misplaced_count += number != next_line[rank]
        next_line[rank] = number + 1
    in_files_count = 0
    (job_dir,) = os.listdir(log_dir)
    for rank in range(WORKERS):
        with open(os.path.join(log_dir, job_dir, "attempt_0", str(rank), "stdout.log"), "rb") as file:
            in_files_count += file.read().count(b"\n")
    return {
        "torn_line_count": torn_count,
        "misplaced_line_count": misplaced_count,
        "lost_line_count": lines * WORKERS - whole_count,
        "lost_in_files_line_count": lines * WORKERS - in_files_count,
    }


def measure(command: list[str], lines: int) -> dict[str, float]:
    """Run one launcher with `{log_dir}` filled in and read its console."""
    with tempfile.TemporaryDirectory() as work_dir:
        log_dir, barrier = os.path.join(work_dir, "logs"), os.path.join(work_dir, "barrier")
        os.mkdir(barrier)
        command = [word.replace("{log_dir}", log_dir) for word in command]
        environment = {**pairs.environment(), BARRIER: barrier, "OMP_NUM_THREADS": "1"}
        chunks: list[bytes] = []
        with open(os.path.join(work_dir, "stderr"), "w+") as stderr:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            start = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=environment)
            assert process.stdout is not None
            first = last = start
            while chunk := os.read(process.stdout.fileno(), 1 << 20):
                last = time.monotonic()
                first = first if chunks else last
                chunks.append(chunk)
                if last - start > RUN_LIMIT_S:
                    process.kill()
                    sys.exit(f"{' '.join(command)} still prints after {RUN_LIMIT_S:g} s")
            if process.wait(RUN_LIMIT_S):
                stderr.seek(0)
                sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{stderr.read()[-2000:]}")
            end = time.monotonic()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        seconds = {"print_s": last - first, "job_s": end - start, "job_cpu_s": cpu_s}
        return {"lines_per_s": lines * WORKERS / (last - first), **seconds, **check(b"".join(chunks), log_dir, lines)}


def sample(side: str, kind: str, options: argparse.Namespace) -> dict[str, float]:
    """One job. Raises RuntimeError if a line of meshrun's was damaged; torchrun's torn lines are a figure."""
    task = ["--kind", kind, "--lines", str(options.lines)]
    command = [*pairs.COMMANDS[side], *FLAGS, "-m", MODULE, "--as", "worker", *task]
    if options.pump and side == pairs.OURS:
        command = [sys.executable, "-m", MODULE, "--as", "agent", *task, "--log-dir", "{log_dir}"]
    found = measure(command, options.lines)
    if side == pairs.OURS and any(value for name, value in found.items() if name.endswith("line_count")):
        raise RuntimeError(f"meshrun's output is damaged: {found}")
    rate, torn = RATES[kind]
    return {rate: found["lines_per_s"], torn: found["torn_line_count"]}


def main() -> None:
    """Read the command line, measure, print."""
    parser = pairs.arguments(__doc__ or "", pairs=5, quick=3)
    parser.add_argument("--lines", type=int, default=200_000, help="lines per worker (default: %(default)s)")
    parser.add_argument("--kind", choices=sorted(RATES), help="only this kind of worker")
    parser.add_argument("--pump", action="store_true", help="the output thread alone in meshrun's place")
    parser.add_argument("--as", dest="role", choices=["worker", "agent"], help=argparse.SUPPRESS)
    parser.add_argument("--log-dir", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "worker":
        work(options.kind, options.lines)
        return
    if options.role == "agent":
        task = ["--as", "worker", "--kind", options.kind, "--lines", str(options.lines)]
        pump([sys.executable, "-u", "-m", MODULE, *task], options.log_dir)
        return
    if options.pump:
        options.json = None
    with pairs.recording(options) as record:
        lines: list[dict[str, Any]] = []
        for kind in [options.kind] if options.kind else sorted(RATES):
            take = functools.partial(sample, kind=kind, options=options)
            samples = pairs.alternate(
                take, sides=pairs.sides(options), pairs=options.pairs, record=record, warm_ups=int(not lines)
            )
            lines += [pairs.summary(pairs.Figure(name, "1/s"), samples) for name in RATES[kind][:1]]
        for line in lines:
            record({"summary": line})
    print(pairs.table(lines))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
