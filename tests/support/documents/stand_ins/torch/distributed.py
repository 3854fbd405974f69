"""What examples/mesh_tour.py calls of torch.distributed, by files: importing torch takes each worker two seconds."""

from __future__ import annotations

import os
import time
from pathlib import Path

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def init_process_group(backend: str) -> None:
    pass


def gather_object(text: str, texts: list[str] | None) -> None:
    """Into the list of rank 0, the only one that has one."""
    files = [Path(f".gathered-{os.environ['MASTER_PORT']}-{rank}") for rank in range(WORLD_SIZE)]
    new = files[RANK].with_suffix(".new")
    new.write_text(text)
    new.rename(files[RANK])
    if texts is not None:
        while not all(file.exists() for file in files):
            time.sleep(0.01)
        texts[:] = [file.read_text() for file in files]


def destroy_process_group() -> None:
    pass
