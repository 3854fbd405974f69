"""What the kernel has said of GPUs: NVIDIA's Xid messages, which tell a device's fault before any library does."""

from __future__ import annotations

import os
import time

PATH = "/dev/kmsg"
AGE_MAX_S = 3600.0
_MARK = b"NVRM: Xid"
_SHOWN = 4
_TIME_MAX_S = 0.1
_RECORD_MAX = 8192  # include/linux/printk.h, CONSOLE_EXT_LOG_MAX


def list_device_faults() -> list[str]:
    """Return the kernel's last Xid messages of the last hour; none where its log cannot be read."""
    found: list[str] = []
    until = time.monotonic() + _TIME_MAX_S
    try:
        log = os.open(PATH, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return found
    with open(log, "rb", buffering=0) as file:
        while time.monotonic() < until:
            try:
                record = file.read(_RECORD_MAX)
            except BrokenPipeError:  # overwritten while it was read: the next is there
                continue
            except OSError:
                break
            if not record:
                break
            # "6,1234,5678901234,-;NVRM: Xid (PCI:0000:3b:00): 79, ...": the third are microseconds since boot.
            fields, _, text = record.partition(b"\n")[0].partition(b";")
            if _MARK in text and time.monotonic() - int(fields.split(b",")[2]) / 1e6 < AGE_MAX_S:
                found.append(f"the kernel says: {text.decode(errors='replace')[:160]}")
    return found[-_SHOWN:]
