"""Listening sockets of this machine: opening one, how much it may hold, and which process has a port that is taken.

The kernel is asked for sockets by sock_diag(7). /proc/net/tcp would show them, too, but only after a scan of the table
of all connections, empty or not: some 4 ms for each of its two files on a small machine, in every restart. Where the
kernel does not answer (a sandbox, or no module for it), nothing is known of them.
"""

from __future__ import annotations

import _socket  # find_foreign_listener is on the way of each restart: it need not wait for socket's enums
import contextlib
import errno
import os
import struct
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from rendezvous.errors import StoreError
from rendezvous.stores.addresses import join_address

if TYPE_CHECKING:
    import socket

_BACKLOG = 1024  # a thousand members may connect at the same moment
_LISTEN = 10  # include/net/tcp_states.h
_SOCK_DIAG, _BY_FAMILY = 4, 20  # linux/netlink.h, linux/sock_diag.h
_REQUEST, _DUMP = 0x1, 0x300  # linux/netlink.h: NLM_F_REQUEST, NLM_F_DUMP
_ERROR, _DONE = 2, 3  # NLMSG_ERROR, NLMSG_DONE
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_DIAG_REQUEST = struct.Struct("=BBBBI2s2s16s16sIQ")  # struct inet_diag_req_v2 of linux/inet_diag.h
_NO_COOKIE = (1 << 64) - 1
_USER_AT = 64  # of struct inet_diag_msg; its inode follows
_LIMIT_S = 1.0


class PortHolder(Struct, frozen=True):
    """The process that listens on a port."""

    pid: int = 0
    """0 for a process whose files cannot be read; for a moment also for one that is about to exit."""
    name: str = ""

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name})" if self.pid else "another user's process"


def limit_connections(most: int) -> int:
    """Return how many connections a listener may hold at a time: `most`, or an eighth of this process's descriptors.

    An agent has up to five listeners, and needs some for itself: to start workers, and to reach the store. So each has
    this limit for peers that it does not know yet, who may be anybody, and another for those it has let in.
    """
    import resource  # only where one listens

    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if descriptors == resource.RLIM_INFINITY else max(1, min(most, descriptors // 8))


class PortTaken(StoreError):
    """Another process listens on the port, or did at that moment."""


def listen(host: str, port: int, what: str = "the store") -> socket.socket:
    """Return a socket that listens there; 0 is any port. Raises PortTaken, StoreError for what a retry cannot fix.

    `what`: will listen, for the sentence.
    """
    import socket

    sock = None
    try:
        family, socket_type, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, socket_type, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        if sock is not None:
            sock.close()
        prefix = f"{what} cannot listen on {join_address(host, port)}"
        if error.errno != errno.EADDRINUSE:
            raise StoreError(f"{prefix}: {error.strerror or error}") from error
        holder = find_foreign_listener(port)
        sentence = f"{prefix}: the port is taken" + (f" by {holder}" if holder else "")
        raise PortTaken(sentence, hint="set another port, or 0 for any free port") from error
    return sock


def find_foreign_listener(port: int, list_own: Callable[[], Collection[int]] = tuple) -> PortHolder | None:
    """Return which process not of `list_own` listens there, if one does.

    `list_own` is called only if one listens. A process that exits has no files any more, while its sockets are still
    being closed.
    """
    if not (sockets := find_listeners(port)):
        return None
    own = list_own()
    for pid in own:
        sockets -= _list_inodes(pid)
        if not sockets:
            return None
    for pid_text in filter(str.isdigit, os.listdir("/proc")):
        if int(pid_text) not in own and sockets & _list_inodes(int(pid_text)):
            return PortHolder(int(pid_text), _describe(pid_text))
    return PortHolder()


def find_listeners(port: int) -> set[str]:
    """Return the inodes of the sockets that listen on the port, on any address; none where the kernel does not tell."""
    families = (_socket.AF_INET, _socket.AF_INET6)
    try:
        return {str(inode) for family in families for _, inode in _ask_kernel(family, 1 << _LISTEN, (b"", port))}
    except (OSError, struct.error):
        return set()


def find_owner(family: int, own: tuple[bytes, int], other: tuple[bytes, int]) -> int | None:
    """Return the user id of the TCP socket with this address and port and this other end; None if unknown.

    A socket that belongs to no process any more is listed as root's, so its user is unknown.
    """
    try:
        return next((user for user, inode in _ask_kernel(family, 0xFFFFFFFF, own, other) if inode), None)
    except (OSError, struct.error):
        return None


def _ask_kernel(
    family: int, states: int, own: tuple[bytes, int], other: tuple[bytes, int] | None = None
) -> Iterator[tuple[int, int]]:
    """Yield user id and inode of the sockets in these states, with the port of `own`, or of the one with both ends.

    Raises OSError where the kernel does not tell.
    """
    ends = own, other or (b"", 0)
    ports = [port.to_bytes(2, "big") for _, port in ends]
    addresses = [address for address, _ in ends]
    body = _DIAG_REQUEST.pack(family, _socket.IPPROTO_TCP, 0, 0, states, *ports, *addresses, 0, _NO_COOKIE)
    flags = _REQUEST if other else _REQUEST | _DUMP
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_DGRAM, _SOCK_DIAG)
    try:
        sock.settimeout(_LIMIT_S)
        sock.sendto(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, flags, 0, 0) + body, (0, 0))
        is_done = False
        while not is_done:
            answer, is_done = sock.recv(1 << 16), other is not None
            while answer:
                size, kind, *_ = _HEADER.unpack_from(answer)
                if kind in (_ERROR, _DONE) or size < _HEADER.size:
                    error = struct.unpack_from("=i", answer, _HEADER.size)[0]  # tcp_diag may be missing: reported last
                    if kind != _DONE or error:
                        raise OSError(-error, "the kernel does not tell")
                    is_done = True
                    break
                yield struct.unpack_from("=II", answer, _HEADER.size + _USER_AT)
                answer = answer[size + 3 & ~3 :]
    finally:
        sock.close()


def _list_inodes(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process has open; none if it is gone or another user's."""
    found = _list_open(f"/proc/{pid}/fd")
    if not found:  # its first thread may have ended before the others
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                if thread != str(pid):
                    found |= _list_open(f"/proc/{pid}/task/{thread}/fd")
    return found


def _list_open(folder: str) -> set[str]:
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(folder):
            target = ""
            with contextlib.suppress(OSError):  # this one has been closed since
                target = os.readlink(f"{folder}/{descriptor}")
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def _describe(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return "gone"
