"""The errors that people see.

`str(error)` is one sentence with the relevant values; `hint`, if there is one, says what to do. A command prints both
and no traceback. Errors are sorted by their cause: the store (the world), a record (another version or a foreign
writer), a setting (the user).
"""

from __future__ import annotations

from rendezvous import __version__

EXIT_SUCCESS = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2  # also for another command or another version of meshrun than the job has
EXIT_BUG = 70  # sysexits.h EX_SOFTWARE
EXIT_TEMPORARY = 75  # sysexits.h EX_TEMPFAIL: the same command may work later
EXIT_USELESS = 76  # the same command will fail again: no progress, a worker has given up, or a later attempt runs
EXIT_FENCED = 137
EXIT_STOPPED = 143  # asked to leave, or the job was stopped: as after SIGTERM, never 0

_LASTING = ("No such file", "undefined symbol", "' not found", "invalid ELF header", "wrong ELF class")
"""Of what the linker says of a library that no second attempt can load."""


def is_shortage(error: Exception) -> bool:
    """Return whether no descriptor or memory was left for what failed, such as an import: it may work a second later.

    The linker cannot open a library then, which is an ImportError with its path; numpy raises another one from it. A
    module, name, library or symbol that is missing stays missing.
    """
    if isinstance(error, ImportError):
        if error.path is None and isinstance(error.__cause__, ImportError):
            error = error.__cause__
        return str(error.path).endswith(".so") and not any(word in str(error) for word in _LASTING)
    return isinstance(error, (OSError, MemoryError))


class MeshrunError(Exception):
    """The base class of all errors here: a sentence, and perhaps a hint."""

    def __init__(self, sentence: str, hint: str | None = None) -> None:
        super().__init__(sentence)
        self.hint = hint


class SettingsError(MeshrunError):
    """A limit or time that cannot work, or two that contradict each other."""


class RecordError(MeshrunError):
    """A value from another process that cannot be read: not JSON, or an invalid field."""


class VersionError(RecordError):
    """A record that another version of meshrun has written. `what`: it, in words; `version`: that version."""

    exit_code = EXIT_USAGE

    def __init__(self, what: str, version: str) -> None:
        self.version = version if version.isprintable() else repr(version)
        hint = f"install meshrun {self.version} on every node, or use another --rdzv-id"
        super().__init__(f"{what} was written by meshrun {self.version}, this is meshrun {__version__}", hint)


class StoreError(MeshrunError):
    """The store refused the request or could not be reached. Nothing was written."""


class Unreachable(StoreError):
    """No server could be reached, so nothing was written; one may answer later."""


class StoreEnded(StoreError):
    """The agent that served this store has ended, and the store with it: it said so. No server will continue it."""


class OutcomeUnknown(StoreError):
    """No reply came in time: the request may have been applied, or may yet be. Read again before deciding."""


class StoreReplaced(StoreError):
    """Another store answers than before: what was written to the one before may be missing there."""


class LeaseNotFound(StoreError):
    """The lease has expired or was revoked; its keys are gone."""


class LeaseExists(StoreError):
    """A lease with the requested id exists already, so none was granted."""


class StoreFull(StoreError):
    """The store is at its quota, and the request would make it grow."""


class Compacted(StoreError):
    """The requested history is gone; `revision` is the oldest still readable. List again and watch from there."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"the store has compacted its history up to revision {revision}")
        self.revision = revision
