"""A process that lacks system calls: under a seccomp filter as containers have one, or on an older kernel.

Each is source text for the process to run first, since a filter stays for good and is inherited.
"""

from __future__ import annotations

import errno
import os

PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434  # on every architecture that these tests run on
KILL = {"x86_64": 62}.get(os.uname().machine, 129)


def refusing(*numbers: int, error: int = errno.EPERM) -> str:
    """From here on these system calls fail with `error` (seccomp(2))."""
    count = len(numbers)
    jumps = [(0x15, count - index, 0, number) for index, number in enumerate(numbers)]  # jump if it is this one
    # Load the call's number; compare; allow, or fail.
    rows = [(0x20, 0, 0, 0), *jumps, (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | error)]
    return f"""
import ctypes, struct
code = b"".join(struct.pack("HBBI", *row) for row in {rows})
program = ctypes.create_string_buffer(code)
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", {len(rows)}, ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, filter, 0, 0) == 0  # PR_SET_SECCOMP, a filter
"""


WITHOUT_PIDFDS = {
    "kernel": refusing(PIDFD_OPEN, PIDFD_SEND_SIGNAL, error=errno.ENOSYS),
    "filter": refusing(PIDFD_OPEN, PIDFD_SEND_SIGNAL),
    "half a filter": refusing(PIDFD_SEND_SIGNAL),
}
"""What may be missing, and how to take it away."""
