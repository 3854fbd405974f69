"""Files that are whole whenever one looks: written under another name, and renamed at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO


@contextmanager
def replacing(path: str, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block has ended; after an error the old one stays.

    One writer at a time: the other name is PATH.part, and what a killed process has left of it is overwritten. A full
    disk gets the space back. Raises OSError.
    """
    part = f"{path}.part"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(part, flags, mode), "wb") as file:
            yield file
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
