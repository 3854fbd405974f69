"""Errors of the command by culprit; each has its exit code."""

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
    """Return a hint if a system call failed with this errno for lack of a resource; None for another reason."""
    return _SHORTAGES.get(error_number or 0)


class LauncherError(MeshrunError):
    exit_code = 1


class UsageError(LauncherError):
    """An error of the user's: a flag, a variable, a file name."""

    exit_code = EXIT_USAGE


class TemporaryError(LauncherError):
    """The world is not ready: too few nodes, no store."""

    exit_code = EXIT_TEMPORARY


class UnfitError(TemporaryError):
    """This node lacks what it needs before it may join, and may have it later: it reports that and tries again."""


class EarlyExitError(LauncherError):
    """This node had to leave before it had joined, or could not continue; `exit_code` is the agent's."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
