"""Three etcd servers with a disk each, and disks that stall: what is written to a frozen one waits until it is thawed.

A leader whose disk hangs is replaced, and does not know it: it answers renewals of leases, and when its disk is back it
ends every lease that it has not heard of meanwhile (etcd issue 15247, mended in 3.4.31 and 3.5.13). A disk is an image
of its own that is mounted and frozen with `fsfreeze`, for which one must be root.

Where that is not allowed the leader's process is stopped instead, and its mistake made for it: `lease revoke`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.support.stores.etcd import EtcdCluster, EtcdServer, ctl

IMAGE_BYTES = 160 << 20  # a file with holes; two logs of 64 MB are laid out in advance
ELECTIONS = ("--heartbeat-interval", "100", "--election-timeout", "1000")  # etcd's own: a busy machine upsets nobody


class Disk:
    """A file system of its own below `directory`."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / name
        self._image = directory / f"{name}.image"

    def mount(self) -> None:
        """Raises OSError or subprocess.CalledProcessError where this is not allowed."""
        self.path.mkdir(parents=True)
        with self._image.open("wb") as file:
            os.truncate(file.fileno(), IMAGE_BYTES)
        _run("mkfs.ext4", "-qF", str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(self.path))

    def freeze(self) -> None:
        _run("fsfreeze", "--freeze", str(self.path))

    def thaw(self) -> None:
        _run("fsfreeze", "--unfreeze", str(self.path))

    def unmount(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self.thaw()
        with suppress(subprocess.CalledProcessError):
            _run("umount", str(self.path))
        self._image.unlink(missing_ok=True)


class StoppingCluster(EtcdCluster):
    """Three servers of Debian's version, of which one is stopped, and all leases are ended when it goes on."""

    def __init__(self, directory: Path) -> None:
        super().__init__("3.4", directory, flags=ELECTIONS)

    @contextmanager
    def stalled(self, leader: EtcdServer) -> Iterator[None]:
        """Stop this leader until the end of the block, which begins when another one leads."""
        urls = [member.url for member in self.members if member is not leader]
        leader.stop()
        try:
            self.leader()
            yield
        finally:
            leader.cont()
        for lease in ctl(urls, "lease", "list").split()[3:]:  # found N leases, and their ids
            with suppress(subprocess.CalledProcessError):  # over by now
                ctl(urls, "lease", "revoke", lease)


class StallingCluster(EtcdCluster):
    """Three servers of Debian's version, whose leases are not mended; each writes to a disk of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__("3.4", directory, flags=ELECTIONS)
        self._disks = {member.name: Disk(directory / "disks", member.name) for member in self.members}
        self._stack = ExitStack()
        for member in self.members:
            member.directory = self._disks[member.name].path

    def __enter__(self) -> StallingCluster:
        with ExitStack() as stack:
            for disk in self._disks.values():
                stack.callback(disk.unmount)
                disk.mount()
            stack.callback(self.close)
            self.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def stalled(self, leader: EtcdServer) -> Iterator[None]:
        """Stall this leader's disk until the end of the block, which begins when another one leads."""
        others = [member for member in self.members if member is not leader]
        disk = self._disks[leader.name]
        disk.freeze()
        try:
            # The leader waits for its disk to write this, and does not see its election pass.
            ctl([other.url for other in others], "--command-timeout", "20s", "put", "stall", "1")
            yield
        finally:
            disk.thaw()


def can_stall(directory: Path) -> str:
    """Why no disk can be frozen here; empty if one can."""
    disk = Disk(directory, "probe")
    try:
        disk.mount()
        disk.freeze()
    except (OSError, subprocess.CalledProcessError) as error:
        return str(getattr(error, "stderr", "") or error)
    finally:
        disk.unmount()
    return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
