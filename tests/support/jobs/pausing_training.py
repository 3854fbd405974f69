"""A training of torch or of JAX that pauses in one of several ways, as healthy ones do.

    python pausing_training.py jax evaluate 9

After some steps it makes the pause, which lasts as many seconds, and goes on. `healthy_runs` starts it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.worker import heartbeat, phase

STEPS = 20
STEP_S = 0.05
FOLDER = Path(os.pardir)
"""Each agent has a directory of its own in it."""
PIPE, DISK, OVER, PAUSING = "checkpoint.pipe", "disk", "over", "pausing"
CHUNK_BYTES = 1 << 16
"""What a pipe holds: each chunk waits until the one before it has been read."""
CHUNKS = 36

Step = Callable[[bool], bool]
"""A step of all ranks; whether rank 0 has given True."""


def begin_torch() -> tuple[int, Step, Callable[[], None]]:
    """Return this rank, a step, and what to call in the end."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()

    def step(value: bool) -> bool:
        flag = torch.tensor([float(value and rank == 0)])
        dist.all_reduce(flag)
        return bool(flag.item())

    def end() -> None:
        dist.barrier()
        dist.destroy_process_group()

    return rank, step, end


def begin_jax() -> tuple[int, Step, Callable[[], None]]:
    import jax
    import numpy
    from jax.experimental import multihost_utils

    from launcher.worker import init_jax

    init_jax()

    def step(value: bool) -> bool:
        return bool(multihost_utils.broadcast_one_to_all(numpy.array([value]))[0])

    return jax.process_index(), step, jax.distributed.shutdown


def compile_torch(size: int) -> None:
    """Compile something new, the larger the number the longer."""
    import torch

    def model(x: torch.Tensor) -> torch.Tensor:
        for number in range(size):
            x = torch.sin(x) * number
        return x

    torch._dynamo.reset()
    torch.compile(model, backend="aot_eager")(torch.ones(4))


def compile_jax(size: int) -> None:
    import jax
    import jax.numpy as jnp

    def model(x: Any) -> Any:
        for number in range(size):
            x = jnp.sin(x) @ x * number
        return x

    jax.jit(model).lower(jnp.ones((8, 8))).compile()


def pause(how: str, seconds: float) -> None:
    limit_s = 5 * seconds
    if how == "evaluate":
        with phase("eval", limit_s=limit_s):
            time.sleep(seconds)
    elif how == "save":  # the reader is slow
        with (FOLDER / PIPE).open("wb", buffering=0) as file:
            for _ in range(CHUNKS):
                file.write(bytes(CHUNK_BYTES))
    elif how == "save_frozen":
        with phase("save", limit_s=limit_s), (FOLDER / DISK / "checkpoint").open("wb") as file:
            file.write(bytes(CHUNK_BYTES))
            os.fsync(file.fileno())
    elif how == "hang":
        time.sleep(seconds)


@contextmanager
def train(step: Step) -> Iterator[None]:
    """Steps before what the caller does, and after it."""
    for _ in range(STEPS):
        step(False)
        heartbeat()
        time.sleep(STEP_S)
    yield
    for _ in range(STEPS):
        step(False)
        heartbeat()
        time.sleep(STEP_S)


def main(framework: str, how: str, seconds: float) -> None:
    begin, build = (begin_torch, compile_torch) if framework == "torch" else (begin_jax, compile_jax)
    rank, step, end = begin()
    if how == "compile":
        print("compiling", flush=True)
        size, until = 4, time.monotonic() + seconds
        while time.monotonic() < until:
            build(size)
            size += 1
    with train(step):
        if rank == 0:
            Path("pid").write_text(str(os.getpid()))
            Path("pid").rename(FOLDER / PAUSING)
        if how in ("debugged", "stopped"):  # from outside, until it is said that it is over
            while not step((FOLDER / OVER).exists()):
                heartbeat()
                time.sleep(STEP_S)
        elif rank == 0:  # the other one goes on to the next step, and waits there
            pause(how, seconds)
    end()
    os._exit(0)  # on a busy machine Python needs longer than the limit to end after a compilation


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
