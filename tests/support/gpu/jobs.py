"""Jobs for the checks on a GPU: meshrun as a user starts it, with `programs/worker.py` as its workers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.gpu.programs.worker import Pretended, used
from tests.support.gpu.runner import FAILED, Notes, NotPossibleError, read
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from typing import Self  # not in Python 3.10

PROGRAMS = Path(__file__).parent / "programs"
VARIABLE = "CUDA_VISIBLE_DEVICES"
START_S = 45.0
"""For workers that import torch from a cold disk and open a context."""
Seen = dict[str, Any]


class Job:
    """A job of one machine in a directory of its own. At its end the agent is asked to go; the runner kills the rest.

    `program`: what the workers do; the arguments of worker.py.
    """

    def __init__(
        self, notes: Notes, name: str, *options: str, program: tuple[object, ...], environ: Mapping[str, str] = {}
    ) -> None:
        self.directory = notes.directory / name
        self.directory.mkdir()
        self._errors = notes.directory / f"{name}.err"
        pretend = {"GPU_PRETEND": str(notes.pretend)} if notes.pretend else {}
        words = ["--standalone", *options, str(PROGRAMS / "worker.py"), *map(str, program)]
        self.began_s = time.monotonic()
        with self._errors.open("wb") as errors, (notes.directory / f"{name}.out").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "launcher", *words],
                cwd=self.directory,
                env={**os.environ, **pretend, **environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)

    @property
    def errors(self) -> str:
        """What the agent and its workers have written to stderr."""
        return read(self._errors)

    def seen(self, round: int, rank: int = 0, limit_s: float = START_S) -> Seen:
        """What a worker has seen. Raises AssertionError if it does not come, or the job ends first."""
        file = self.directory / f"seen-{round}-{rank}.json"
        wait_until(lambda: file.exists() or self.process.poll() is not None, limit_s, f"rank {rank} of round {round}")
        if not file.exists():
            raise AssertionError(f"the job ended with {self.process.returncode}: {self.last_words()}")
        found: Seen = json.loads(file.read_text())
        return found

    def last_words(self) -> str:
        """The sentence with which the agent refused, else the last lines that were written."""
        lines = [line for line in self.errors.splitlines() if line.strip()]
        refusals = [line for line in lines if "error:" in line]
        return refusals[0] if refusals else " / ".join(lines[-3:]) or "without a word"

    def line(self, pattern: str) -> str:
        """The first line on stderr in which the pattern is found, from there on; "" without one."""
        match = re.search(pattern, self.errors)
        return match[0] if match else ""

    def finish(self) -> int:
        """Let the workers end; return the job's exit code."""
        (self.directory / "finish").touch()
        return self.process.wait(25)


class Memory:
    """Of the first device that a worker would see, in bytes. Raises NotPossibleError without NVML."""

    def __init__(self, notes: Notes) -> None:
        self._pretend = notes.pretend
        if self._pretend:
            self.total = Pretended.TOTAL
            return
        from launcher.hardware.accelerators.nvidia import Detector

        try:
            self._nvml = __import__("pynvml")
        except ImportError:
            raise NotPossibleError("nvidia-ml-py is not installed: no memory can be read") from None
        devices = Detector().detect(os.environ).devices
        if not devices:
            raise NotPossibleError("no NVIDIA GPU is found")
        self._nvml.nvmlInit()
        self._handle = self._nvml.nvmlDeviceGetHandleByUUID(devices[0].id)
        self.total = int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).total)

    def used(self) -> int:
        return used(self._pretend) if self._pretend else int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def part(self, share: float) -> int:
        return int(self.total * share)


class Sampler:
    """Reads the memory in use every few milliseconds while the block runs."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._stop = threading.Event()
        self._samples: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def _read(self) -> None:
        while not self._stop.wait(0.005):
            used = self._memory.used()
            self._samples.append((time.monotonic(), used))

    def first_below(self, bytes_: int, after_s: float) -> float | None:
        """Seconds from `after_s` until no more than so much was in use; None if that was not seen."""
        return next((at - after_s for at, used in self._samples if at > after_s and used <= bytes_), None)


def gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count > 2**20 else f"{count:.0f} bytes"


def meshctl(*words: str, limit_s: float = 40.0) -> str:
    """What the command prints. Raises AssertionError with its error if it fails."""
    command = [sys.executable, "-m", "launcher.meshctl.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise AssertionError(f"meshctl {words[0]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def expect(notes: Notes, what: str, problem: str, told: str, **figures: Any) -> None:
    """Note it as seen, or as failed if there is a problem."""
    notes.note(what, FAILED if problem else "seen", f"{problem}; {told}" if problem else told, **figures)
