"""Errors of the command, sorted by whose they are; each carries the exit code it ends with."""

from __future__ import annotations

import errno

from rendezvous.errors import EXIT_TEMPORARY, EXIT_USAGE, MeshrunError

_SHORTAGES = {
    errno.EMFILE: "see ulimit -n",
    errno.ENFILE: "see /proc/sys/fs/file-max",
    errno.EAGAIN: "see ulimit -u",
    errno.ENOMEM: "see free -m, and in a container its memory limit",
    errno.ENOSPC: "see df -h and df -i",
    errno.EDQUOT: "see quota",
    errno.E2BIG: "getconf ARG_MAX is the limit of arguments and environment together, ulimit -s moves it",
}


def find_shortage_hint(error_number: int | None) -> str | None:
    """Where to look if a system call failed with this errno for want of something; None if that was not the reason."""
    return _SHORTAGES.get(error_number or 0)


class LauncherError(MeshrunError):
    exit_code = 1


class UsageError(LauncherError):
    """Something the user wrote: a flag, a variable, a file name."""

    exit_code = EXIT_USAGE


class TemporaryError(LauncherError):
    """The world is not ready: too few nodes, no store."""

    exit_code = EXIT_TEMPORARY


class UnfitError(TemporaryError):
    """This node lacks what it needs before it may join, and may have it later: it says so and looks again."""


class EarlyExitError(LauncherError):
    """This node was told to go before it had joined, or could not go on; `exit_code` is the agent's."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
