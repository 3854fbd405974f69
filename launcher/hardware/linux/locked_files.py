"""Locked files of this user, which all its processes on this host find: an agent meets the others of its run there.

They are in a directory that only this user can access, though other users may have made one of its name first. A file
that its holder removes is gone under its name, though others may still have it open; so a lock counts only if the file
is found there once it is locked. Who has written a file is known by pid and start time, which detects a reused pid.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress

from launcher.hardware.linux.kernel import read_stat
from launcher.model.console import log
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


def find_lock_path(file: str, folders: list[str], *, is_told: bool = True) -> str:
    """Return the path of the lock: where an agent has left the file, or else in the first usable directory.

    `is_told`: whether to log which it is, if not the first of all. Raises UsageError, or TemporaryError if only space
    is lacking.
    """
    for folder in _list_with_suffixed(folders):
        path = os.path.join(folder, file)
        if os.path.lexists(path) and not _find_fault(folder):
            return path
    faults: list[tuple[str, int]] = []
    for folder in folders:
        place, fault = folder, _find_fault(folder)
        if fault and _is_foreign(folder):
            faults.append(fault)
            place, fault = _make_suffixed(folder)
        if not fault:
            if faults and is_told:
                log(f"the lock of this node is in {place}: {'; '.join(sentence for sentence, _ in faults)}")
            return os.path.join(place, file)
        faults.append(fault)
    sentence = f"cannot create this node's lock file: {'; '.join(sentence for sentence, _ in faults)}"
    if hint := next(filter(None, (find_shortage_hint(number) for _, number in faults)), None):
        raise TemporaryError(sentence, hint)
    raise UsageError(sentence, "mount a writable /tmp, such as a tmpfs or an emptyDir")


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


def _is_foreign(folder: str) -> bool:
    """Whether another user has made what has this name."""
    try:
        return os.lstat(folder).st_uid != os.geteuid()
    except OSError:
        return False


def _list_with_suffixed(folders: list[str]) -> list[str]:
    """Return the directories, each followed by those of this user that were made in its place (`_make_suffixed`)."""
    return [place for folder in folders for place in (folder, *_list_suffixed(folder))]


def _list_suffixed(folder: str) -> list[str]:
    parent, name = os.path.split(folder)
    try:
        found = [os.path.join(parent, entry) for entry in os.listdir(parent) if entry.startswith(f"{name}-")]
    except OSError:
        return []
    return sorted(place for place in found if os.path.isdir(place) and not _is_foreign(place))


def _make_suffixed(folder: str) -> tuple[str, tuple[str, int] | None]:
    """Return the directory that takes this one's place, which another user has made, and why it cannot be used.

    Nobody can make it first, as its name ends in a random word; it is found again by whose it is.
    """
    if place := next((place for place in _list_suffixed(folder) if not _find_fault(place)), ""):
        return place, None
    place = f"{folder}-{os.urandom(8).hex()}"
    return place, _find_fault(place)


def open_locked(path: str, head: bytes = b"", flags: int = os.O_CREAT) -> int | None:
    """Return the file, locked and with `head` written at its start; None if another process has locked or replaced it.

    Raises OSError.
    """
    lock = os.open(path, os.O_RDWR | flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, lock):
            os.pwrite(lock, head, 0)
            return lock
    except BlockingIOError:
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _is_at(path: str, lock: int) -> bool:
    """Whether the open file is still the one of that name: the previous holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(lock), os.lstat(path))
    except FileNotFoundError:
        return False


def read_start_time(pid: int) -> str:
    """Return the start time of a process, in the kernel's ticks; "" if it has ended. It detects a reused pid."""
    found = read_stat(pid)
    return str(found.start_ticks) if found and found.state not in "ZX" else ""
