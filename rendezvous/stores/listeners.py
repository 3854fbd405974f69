"""Listening sockets of this machine: opening one, how much it may hold, and which process has a port that is taken.

The kernel is asked for the sockets that listen on a port. /proc/net/tcp would show it, too, but only after a scan of
the table of all connections, empty or not: some 4 ms for each of its two files on a small machine, in every restart. So
that is read only where the kernel does not answer the request itself.
"""

from __future__ import annotations

import _socket  # find_foreign_listener is on the way of each restart: it need not wait for socket's enums
import contextlib
import errno
import os
import struct
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

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
_DIAG_REQUEST = struct.Struct("=BBBBI2s46s")  # struct inet_diag_req_v2 of linux/inet_diag.h, with the source port alone
_INODE_AT = 68  # of struct inet_diag_msg
_LIMIT_S = 1.0
UNKNOWN = "another user's process"
"""A process whose files cannot be read; for a moment also a process that is about to exit."""


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


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; 0 is any port. Raises PortTaken, StoreError for what a retry cannot fix."""
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
        prefix = f"the store cannot listen on {join_address(host, port)}"
        if error.errno != errno.EADDRINUSE:
            raise StoreError(f"{prefix}: {error.strerror or error}") from error
        holder = find_foreign_listener(port)
        sentence = f"{prefix}: the port is taken" + (f" by {holder}" if holder else "")
        raise PortTaken(sentence, hint="give another port, or 0 for any that is free") from error
    return sock


def find_foreign_listener(port: int, list_own: Callable[[], Collection[int]] = tuple) -> str:
    """Return which process not of `list_own` listens there: "pid 12 (python)", "another user's process" or "".

    `list_own` is called only if one listens. A process that exits has no files any more, while its sockets are still
    being closed.
    """
    sockets = _find_listeners(port)
    own = list_own() if sockets else ()
    for pid in own:
        sockets -= _list_inodes(pid)
        if not sockets:
            break
    if not sockets:
        return ""
    for pid_text in filter(str.isdigit, os.listdir("/proc")):
        if int(pid_text) not in own and sockets & _list_inodes(int(pid_text)):
            return f"pid {pid_text} ({_describe(pid_text)})"
    return UNKNOWN


def _find_listeners(port: int) -> set[str]:
    """Return the inodes of the sockets that listen on the port, on any address."""
    try:
        return _ask_kernel(port)
    except (OSError, struct.error):  # a kernel without the module, or a sandbox
        return _read_tables(port)


def _ask_kernel(port: int) -> set[str]:
    """Return the same from the kernel by sock_diag(7). Raises OSError where that is not available."""
    found: set[str] = set()
    sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_DGRAM, _SOCK_DIAG)
    try:
        sock.settimeout(_LIMIT_S)
        for family in (_socket.AF_INET, _socket.AF_INET6):
            own_port = port.to_bytes(2, "big")
            body = _DIAG_REQUEST.pack(family, _socket.IPPROTO_TCP, 0, 0, 1 << _LISTEN, own_port, b"")
            header = _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST | _DUMP, 0, 0)
            sock.sendto(header + body, (0, 0))
            is_done = False
            while not is_done:
                is_done = _take(sock.recv(1 << 16), found)
    finally:
        sock.close()
    return found


def _take(answer: bytes, found: set[str]) -> bool:
    """Add the sockets in one part of a reply; return whether it is the last. Raises OSError if the kernel refuses."""
    while answer:
        size, kind, *_ = _HEADER.unpack_from(answer)
        if kind in (_ERROR, _DONE) or size < _HEADER.size:
            error = struct.unpack_from("=i", answer, _HEADER.size)[0]  # tcp_diag may be missing: reported last
            if kind != _DONE or error:
                raise OSError(-error, "the kernel does not tell who listens")
            return True
        found.add(str(struct.unpack_from("=I", answer, _HEADER.size + _INODE_AT)[0]))
        answer = answer[size + 3 & ~3 :]
    return False


def _read_tables(port: int) -> set[str]:
    """Return the same from the tables of proc(5)."""
    found: set[str] = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}") as file:
                lines = [line.split() for line in file][1:]
        except OSError:  # a kernel without IPv6
            continue
        found.update(
            fields[9]
            for fields in lines
            if int(fields[3], 16) == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port
        )
    return found


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
