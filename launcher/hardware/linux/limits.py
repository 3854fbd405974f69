"""Limits of this process and its user that a node of several may reach: open files, and pending signals."""

from __future__ import annotations

from contextlib import suppress

from launcher.model.errors import TemporaryError

DESCRIPTORS_WANTED = 65536  # presence takes one for each member, the pump two for each worker: no job is that large


def raise_descriptor_limit(wanted: int = DESCRIPTORS_WANTED) -> int:
    """Raise the soft limit on open files to `wanted`, or as far as the hard one allows; return it.

    For the agent alone: a leader has a connection to every node. The usual limit of 1,024 exists for programs that use
    select(). Call it after the supervisor's fork, so that the workers keep what the user had set.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < possible:
        with suppress(OSError, ValueError):  # a sandbox may forbid what the limits allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def require_timer() -> None:
    """Raise TemporaryError if the supervisor could not create its timer: a timer counts as a pending signal.

    All of the user's on this machine count together, so another process may still take the last one.
    """
    with suppress(OSError), open("/proc/self/status") as file:
        used, limit = next((line.split()[1].split("/") for line in file if line.startswith("SigQ:")), ("0", "1"))
        if int(used) >= int(limit):
            sentence = f"the kernel refuses another timer: {used} of {limit} pending signals of this user are in use"
            raise TemporaryError(sentence, "raise ulimit -i")
