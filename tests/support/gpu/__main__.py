"""`python -m tests.support.gpu`: every check on this machine's GPU, in six minutes at most, and its record.

The record, the table and a log go to build/gpu/out, or to the folder that OUT names. The exit code is 0 if no check
failed, 1 if one did, and 2 if nothing could be tried here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.gpu import packages, runner, table
from tests.support.gpu.runner import Check

CHECKS = (
    Check("nvml", 35, "tests.support.gpu.checks:nvml"),
    Check("visible", 50, "tests.support.gpu.checks:visible"),
    Check("kill", 70, "tests.support.gpu.checks:kill", ("torch",)),
    Check("preload", 75, "tests.support.gpu.checks:preload", ("torch",)),
    Check("why", 45, "tests.support.gpu.checks:why", ("torch",)),
    Check("recorder", 40, "tests.support.gpu.checks:recorder", ("torch",)),
    Check("metrics", 30, "tests.support.gpu.checks:metrics", ("torch", "psutil")),
    Check("binding", 40, "tests.support.gpu.checks:binding", ("torch",)),
    Check("jax", 70, "tests.support.gpu.checks:jax", ("jax",)),
)
LIMIT_S = 330.0  # for all checks; the rest of six minutes is for versions before and cleaning after
SIGNS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/nvidia0")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or packages.FOLDER / "out"))
    parser.add_argument("--only", help="Names of checks, with commas between them.")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="Seconds for all checks.")
    parser.add_argument("--pretend", action="store_true", help="Try the checks themselves, without a GPU.")
    parser.add_argument("--one", nargs=4, metavar=("CALL", "NOTES", "DIRECTORY", "PRETEND"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    missing = packages.choose()
    if given.one:
        runner.run_one(*given.one)
        return 0
    names = [check.name for check in CHECKS]
    wanted = given.only.split(",") if given.only else names
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"no check is called {unknown[0]!r}: {', '.join(names)}")
    if lacking := [name for name in missing if name in packages.NEEDED]:
        print(
            f"this Python has no {', '.join(lacking)}, and build/gpu has none for it: make gpu-packages",
            file=sys.stderr,
        )
        return 2
    if not given.pretend and not any(map(os.path.exists, SIGNS)) and not shutil.which("nvidia-smi"):
        print("no NVIDIA driver is on this machine: nothing was tried", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # what was started is killed first
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="meshrun-pretend-") as pretend:
        checks = [check for check in CHECKS if check.name in wanted]
        return run(checks, given.out, given.limit, Path(pretend) if given.pretend else None, missing)


def run(checks: list[Check], out: Path, limit_s: float, pretend: Path | None, missing: list[str]) -> int:
    """Run the checks, write record, table and log, print the table as it grows; return the exit code."""
    began_s = time.monotonic()
    log = out / "gpu.log"
    log.write_text("")
    with (out / "gpu.jsonl").open("w") as file:

        def record(line: dict[str, Any]) -> None:
            print(json.dumps(line), file=file, flush=True)
            if "what" in line:
                print(table.render_text([line]), flush=True)

        machine = {**runner.describe_machine(pretend), "missing": missing}
        print(json.dumps(machine), flush=True)
        commit, is_dirty = packages.find_commit()
        head = {"benchmark": "gpu", "arguments": sys.argv[1:], "machine": machine, "commit": commit}
        record({**head, "is_dirty": is_dirty, "unix_time_s": time.time()})
        before = runner.ask_memory()
        lines = runner.run_all(checks, record, log, limit_s - (time.monotonic() - began_s), pretend)
        if not pretend:
            lines.append(runner.compare_memory(before, runner.ask_memory()))
            record(lines[-1])
        record({"end": True, "seconds": round(time.monotonic() - began_s, 1)})
    (out / "gpu.txt").write_text(table.render_text(lines) + "\n")
    results = [line["result"] for line in lines]
    counts = ", ".join(f"{results.count(result)} {result}" for result in dict.fromkeys(results))
    print(f"{counts}; {time.monotonic() - began_s:.0f} s; record: {out / 'gpu.jsonl'}", flush=True)
    return 1 if runner.FAILED in results else 0


if __name__ == "__main__":
    sys.exit(main())
