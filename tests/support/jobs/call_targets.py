"""Functions for tests of `launcher.launch`: workers import this module, so it imports little."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from pathlib import Path


def place() -> tuple[int, int, str]:
    """Rank, world size, and the mesh as the worker sees it."""
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MESH_SHAPE"]


def variables(*names: str) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def loaded(module: str) -> bool:
    """Whether a module is in this process's memory."""
    return module in sys.modules


def many_bytes(count: int) -> bytes:
    return os.environ["RANK"].encode() * count


def directory_mode() -> tuple[str, int]:
    """The call's directory, which this process was told when it began, and who may open it."""
    told = Path("/proc/self/environ").read_text().split("\0")
    directory = next(text.partition("=")[2] for text in told if text.startswith("LAUNCHER_CALL="))
    return directory, stat.S_IMODE(os.stat(directory).st_mode)


def speak() -> None:
    sys.stdout.write(f"said é by {os.environ['RANK']}\n")  # `print` would write its line in pieces
    sys.stderr.write("whispered\n")


def speak_and_stay() -> None:
    speak()
    time.sleep(1000)


def fail(rank: int) -> None:
    if os.environ["RANK"] == str(rank):
        raise ValueError("the loss is not a number")
    time.sleep(1000)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def a_lock() -> object:
    return threading.Lock()


def succeed_at_second(mark: str) -> str:
    """In round 1 rank 0 returns, and then rank 1 fails; in round 2 rank 0 leaves without a word."""
    rank, round = os.environ["RANK"], os.environ["LAUNCHER_ROUND"]
    if round == "1" and rank == "1":
        while not Path(mark).exists() or Path(f"/proc/{Path(mark).read_text()}").exists():
            time.sleep(0.01)
        sys.exit(3)
    if round == "1":
        Path(f"{mark}.part").write_text(str(os.getpid()))
        os.rename(f"{mark}.part", mark)
    elif rank == "0":
        os._exit(0)
    return f"round {round}"


def pool_of_one() -> bool:
    """Whether multiprocessing works in a worker."""
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(os.getpid) != os.getpid()


def put(queue: object) -> None:
    queue.put(os.environ["RANK"])  # type: ignore[attr-defined]
