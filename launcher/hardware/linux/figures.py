"""The part of the shared page where workers write figures of their training, far behind the lines of `shared_page`
and before the last words.

A text for each worker, behind its length and checksum, by which a look that meets a write is known. What is never
written takes no memory. Few runs use it, so it is not on the way to a worker.
"""

from __future__ import annotations

import os
import sys
from binascii import crc32

SIZE = 1 << 18
_START = 1 << 24  # beyond the reasons of 30,000 workers
_HEAD_SIZE = 8


def find_offset(line: int) -> int:
    """Return where the figures of the worker with this line are."""
    return _START + line * SIZE


def read_figures(descriptor: int, line: int) -> str:
    """Return what the worker with this line has written last, "" for nothing, or if it is writing. Raises OSError."""
    offset = find_offset(line)
    head = os.pread(descriptor, _HEAD_SIZE, offset)
    size = int.from_bytes(head[:4], sys.byteorder)
    if not 0 < size <= SIZE - _HEAD_SIZE:
        return ""
    data = os.pread(descriptor, size, offset + _HEAD_SIZE)
    return data.decode(errors="replace") if _make_head(data) == head else ""


def write_figures(descriptor: int, line: int, text: str) -> bool:
    """Write the figures of the worker with this line; whether there was room for them. Raises OSError."""
    data = text.encode(errors="replace")
    if len(data) > SIZE - _HEAD_SIZE:
        return False
    os.pwrite(descriptor, _make_head(data) + data, find_offset(line))
    return True


def _make_head(data: bytes) -> bytes:
    return len(data).to_bytes(4, sys.byteorder) + crc32(data).to_bytes(4, sys.byteorder)
