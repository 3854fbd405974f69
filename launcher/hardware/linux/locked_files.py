"""Locked files of this user, which all its processes on this host find: an agent meets the others of its run there.

They are in a directory that only this user can access, though other users may have made one of its name first. A file
that its holder removes is gone under its name, though others may still have it open; so a lock counts only if the file
is found there once it is locked. Who has written a file is known by pid and start time, which detects a reused pid.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress

from launcher.hardware.linux.kernel import read_stat
from launcher.model.errors import TemporaryError, UsageError, find_shortage_hint

FILE_MODE = stat.S_ISVTX | stat.S_IRUSR | stat.S_IWUSR
"""The sticky bit keeps systemd-tmpfiles from removing the file: in /tmp it removes what is 10 days old."""


def list_lock_dirs() -> list[str]:
    """The directories for locks. All agents of a user on a host must use the same, whatever their environment."""
    uid = os.geteuid()
    # Others cannot create the last two first; but they are only root's, or disappear when the user logs out. Where they
    # have created one of the others, its name with a random suffix takes its place.
    # docs/internals/decisions/0042-node-lock-directory.md
    return [f"/tmp/meshrun-{uid}", f"/dev/shm/meshrun-{uid}", f"/run/meshrun-{uid}", f"/run/user/{uid}/meshrun"]


def list_used_dirs() -> list[str]:
    """Return the directories that may contain locks already, those that took another's place included."""
    places = (place for folder in list_lock_dirs() for place in (folder, *_list_suffixed(folder)))
    return [place for place in places if os.path.isdir(place) and not _find_fault(place)]


def find_lock_path(file: str) -> tuple[str, str]:
    """Return the path of the lock: where an agent has left the file, or else in the first usable directory.

    Then why the directories before that one cannot be used, "" where there is none or the file was there. Raises
    UsageError, or TemporaryError if only space is lacking.
    """
    for place in list_used_dirs():
        if os.path.lexists(path := os.path.join(place, file)):
            return path, ""
    faults: list[tuple[str, int]] = []
    for place in (place for folder in list_lock_dirs() for place in _list_candidates(folder)):
        fault = _find_fault(place)
        if fault is None:
            return os.path.join(place, file), "; ".join(sentence for sentence, _ in faults)
        faults.append(fault)
    sentence = f"cannot create this node's lock file: {'; '.join(sentence for sentence, _ in faults)}"
    if hint := next(filter(None, (find_shortage_hint(number) for _, number in faults)), None):
        raise TemporaryError(sentence, hint)
    raise UsageError(sentence, "mount a writable /tmp, such as a tmpfs or an emptyDir")


def _list_candidates(folder: str) -> Iterator[str]:
    """Yield the directory, and then, if another user has made it by now, those that may take its place.

    Nobody can make the last one first, as its name ends in a random word; it is found again by whose it is.
    """
    yield folder
    if _is_foreign(folder):
        yield from (place for place in _list_suffixed(folder) if not _find_fault(place))
        yield f"{folder}-{os.urandom(8).hex()}"


def _list_suffixed(folder: str) -> list[str]:
    """Return the directories of this user that took this one's place at some time."""
    parent, name = os.path.split(folder)
    with suppress(OSError):
        found = [os.path.join(parent, entry) for entry in os.listdir(parent) if entry.startswith(f"{name}-")]
        return sorted(place for place in found if os.path.isdir(place) and not _is_foreign(place))
    return []


def _is_foreign(folder: str) -> bool:
    """Whether another user has made what has this name."""
    with suppress(OSError):
        return os.lstat(folder).st_uid != os.geteuid()
    return False


def _find_fault(folder: str) -> tuple[str, int] | None:
    """Return why nothing can be locked there, and the errno; create it if necessary. It must be this user's."""
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    except OSError as error:
        return f"{folder} cannot be created: {error.strerror}", error.errno or 0
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        return f"{folder} is not a directory that only this user can access", 0
    if not os.access(folder, os.W_OK, effective_ids=True):
        return f"{folder} cannot be written", 0
    return None


def open_locked(path: str, head: bytes = b"", flags: int = os.O_CREAT) -> int | None:
    """Return the file, locked and with `head` written at its start; None if another process has locked or replaced it.

    Raises OSError.
    """
    lock = os.open(path, os.O_RDWR | flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    with ExitStack() as opened:
        opened.callback(os.close, lock)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.lstat(path)):  # the previous holder may have removed it
                os.pwrite(lock, head, 0)
                opened.pop_all()
                return lock
    return None


def read_start_time(pid: int) -> str:
    """Return the start time of a process, in the kernel's ticks; "" if it has ended. It detects a reused pid."""
    found = read_stat(pid)
    return str(found.start_ticks) if found and found.state not in "ZX" else ""
