"""Errors of the command, sorted by whose they are; each carries the exit code it ends with."""

from __future__ import annotations

from rendezvous.errors import MeshrunError

EXIT_USAGE = 2
EXIT_BUG = 70  # sysexits.h EX_SOFTWARE
EXIT_TEMPORARY = 75  # sysexits.h EX_TEMPFAIL: the same command may work later
EXIT_FENCED = 137


class LauncherError(MeshrunError):
    exit_code = 1


class UsageError(LauncherError):
    """Something the user wrote: a flag, a variable, a file name."""

    exit_code = EXIT_USAGE


class TemporaryError(LauncherError):
    """The world is not ready: too few nodes, no store."""

    exit_code = EXIT_TEMPORARY
