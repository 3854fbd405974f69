"""Runs the checks one after the other, each in a process of its own with a time limit, and keeps what they found.

A check prints nothing: it calls `Notes.note` with what was tried, how that went and what was seen. Each note is
written at once, so a check that hangs in the driver, crashes or runs out of time loses nothing that it had found.
Whatever it started carries a token in its environment and is killed by pid after it, wherever it went.

The record is of JSON lines, as benchmarks write them: a head with machine, commit and time, a line for each note, and
an end, which is missing where the run was cut off.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.gpu import packages
from tests.support.processes.tree import TOKEN_VARIABLE, family

SEEN, FAILED, NOT_POSSIBLE = "seen", "failed", "not possible here"
CLEANING_S = 8.0
TOLD_MAX = 400
SLACK_MIB = 64
"""What a driver may keep for itself once it has been used."""
QUESTION_S = 60.0
"""For one question to torch or JAX: the first import on a cold disk."""


class Check(NamedTuple):
    """`call`: "module:function", which takes Notes. `needs`: modules without which there is nothing to try."""

    name: str
    limit_s: float
    call: str
    needs: tuple[str, ...] = ()


class NotPossibleError(Exception):
    """This machine lacks what a check needs; the sentence says what."""


class Notes:
    """What a check has found so far, in a file, and its directory. `pretend`: in place of a device; None for a GPU."""

    def __init__(self, file: Path, directory: Path, pretend: Path | None) -> None:
        self._file = file
        self.directory = directory
        self.pretend = pretend

    def note(self, what: str, result: str, told: str, **figures: Any) -> None:
        line = {"what": what, "result": result, "told": told[:TOLD_MAX], **({"figures": figures} if figures else {})}
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Note a failure under this name, and go on with what comes next."""
        try:
            yield
        except NotPossibleError as error:
            self.note(what, NOT_POSSIBLE, str(error))
        except (AssertionError, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
            self.note(what, FAILED, f"{type(error).__name__}: {error}" if not str(error) else str(error))


Line = dict[str, Any]


def run_all(
    checks: Sequence[Check], record: Callable[[Line], None], log: Path, limit_s: float, pretend: Path | None
) -> list[Line]:
    """Run what fits into the limit, and hand each line to `record` as soon as it is known."""
    until = time.monotonic() + limit_s
    lines: list[Line] = []
    for check in checks:
        left_s = until - time.monotonic()
        if left_s < min(10.0, check.limit_s):
            found = [{"what": check.name, "result": NOT_POSSIBLE, "told": "the time for all checks was over"}]
        else:
            found = run_check(check, min(check.limit_s, left_s), log, pretend)
        for line in found:
            lines.append({"check": check.name, **line})
            record(lines[-1])
    return lines


def run_check(check: Check, limit_s: float, log: Path, pretend: Path | None) -> list[Line]:
    """Run one check in a process of its own and return its lines; what it leaves behind is killed, and told."""
    missing = [name for name in check.needs if not can_import(name)]
    if missing:
        told = f"this machine's Python has no {' and no '.join(missing)}"
        return [{"what": check.name, "result": NOT_POSSIBLE, "told": told}]
    token = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="meshrun-gpu-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        notes, errors = directory / "notes", directory / "errors"
        (directory / "job").mkdir()
        words = [check.call, str(notes), str(directory / "job"), str(pretend or "")]
        environ = {**os.environ, TOKEN_VARIABLE: token, "TMPDIR": name, "PYTHONUNBUFFERED": "1"}
        began_s = time.monotonic()
        with errors.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.gpu", "--one", *words],
                cwd=packages.ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            except BaseException:  # Ctrl-C: nothing may stay behind
                sweep(token)
                process.wait()
                raise
        seconds = round(time.monotonic() - began_s, 1)
        left = sweep(token)
        with suppress(subprocess.TimeoutExpired):
            process.wait(CLEANING_S)
        found = [json.loads(line) for line in read(notes).splitlines() if line.endswith("}")]
        text = read(errors)
        if code is None:
            found.append({"what": check.name, "result": FAILED, "told": f"not done within {limit_s:.0f} s"})
        elif code:
            last = (text.strip().splitlines() or ["without a word"])[-1][:TOLD_MAX]
            found.append({"what": check.name, "result": FAILED, "told": f"ended with {code}: {last}"})
        elif not found:
            found.append({"what": check.name, "result": FAILED, "told": "noted nothing"})
        if left:
            told = f"{len(left)} processes survived SIGKILL for {CLEANING_S:g} s: {left}"
            found.append({"what": "what the check has started is gone", "result": FAILED, "told": told})
        with log.open("a") as file_:
            file_.write(f"== {check.name}: {seconds} s, exit code {code}\n{text}\n")
            for path in sorted((directory / "job").glob("*.err")):
                file_.write(f"-- {path.name}\n{read(path)[-4000:]}\n")
    return [{**line, "seconds": seconds} for line in found]


def run_one(call: str, notes: str, directory: str, pretend: str) -> None:
    """Run a check in this process. Raises what the check raises."""
    module, _, function = call.partition(":")
    kept = Notes(Path(notes), Path(directory), Path(pretend) if pretend else None)
    try:
        getattr(__import__(module, fromlist=[function]), function)(kept)
    except NotPossibleError as error:
        kept.note(function, NOT_POSSIBLE, str(error))


def sweep(token: str) -> list[int]:
    """Kill by pid whoever carries the token; return who is there after CLEANING_S all the same."""
    deadline = time.monotonic() + CLEANING_S
    while left := [pid for pid in family(token) if pid != os.getpid()]:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return []


def read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def can_import(name: str) -> bool:
    """Whether the module is there; it is looked for, not imported."""
    from importlib.util import find_spec

    return find_spec(name) is not None


def describe_machine(pretend: Path | None) -> Line:
    """What was tried on: GPU, driver, CUDA, torch, JAX, and the machine; no name of a host or a user."""
    cpu = [line.partition(":")[2].strip() for line in read(Path("/proc/cpuinfo")).splitlines() if "model name" in line]
    found: Line = {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu[0] if cpu else platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "gpus": ["pretended"] if pretend else [],
        "driver": None,
        "torch": None,
        "cuda": None,
        "nccl": None,
        "jax": None,
    }
    columns = "name,memory.total,driver_version,mig.mode.current"
    answer = ask(["nvidia-smi", f"--query-gpu={columns}", "--format=csv,noheader"], 30) if not pretend else ""
    for line in answer.splitlines():
        name, memory, driver, mig = [part.strip() for part in [*line.split(","), "", "", ""][:4]]
        found["gpus"].append(f"{name}, {memory}" + (", MIG" if mig == "Enabled" else ""))
        found["driver"] = driver
    if can_import("torch") and not pretend:
        program = "import torch; print(torch.__version__, torch.version.cuda, sep='\\n')"
        nccl = "print('.'.join(map(str, torch.cuda.nccl.version())))"
        answers = ask([sys.executable, "-c", f"{program}\n{nccl}"], QUESTION_S).splitlines()
        found |= dict(zip(("torch", "cuda", "nccl"), answers, strict=False))
    if can_import("jax"):
        from importlib.metadata import version

        found["jax"] = version("jax")
    return found


def ask_memory() -> str:
    """MiB in use on each GPU, one a line, as nvidia-smi says; "" without it."""
    return ask(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], 20)


def compare_memory(before: str, after: str) -> Line:
    """The line for the end: whether as much memory is in use as at the beginning."""
    numbers = [[int(word) for word in text.split() if word.isdigit()] for text in (before, after)]
    told = f"MiB in use before {numbers[0]}, after {numbers[1]}"
    result = SEEN if all(now <= then + SLACK_MIB for then, now in zip(*numbers, strict=False)) else FAILED
    result = result if numbers[0] and len(numbers[0]) == len(numbers[1]) else NOT_POSSIBLE
    return {"check": "end", "what": "nothing is left on the GPU", "result": result, "told": told}


def ask(command: Sequence[str], limit_s: float) -> str:
    """What the program prints; "" if it is not there, fails, or is late."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
