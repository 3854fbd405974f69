"""Whose a connection on loopback is: the kernel knows the user of the socket at its other end.

It is asked for that one socket by sock_diag(7), in some 20 µs. Where it does not answer (a sandbox, a kernel without
the module) the table in /proc/net is read, which grows with the connections of the machine. A socket that belongs to no
process any more is listed as root's, so its user is unknown.
"""

from __future__ import annotations

import socket
import struct

_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 0x1  # linux/netlink.h, linux/sock_diag.h
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_DIAG_REQUEST = struct.Struct("=BBBBI2s2s16s16sIQ")  # struct inet_diag_req_v2 of linux/inet_diag.h
_NO_COOKIE = (1 << 64) - 1
_USER_AT = 64  # of struct inet_diag_msg; its inode follows
_LIMIT_S = 1.0


def find_peer_user(end: socket.socket) -> int | None:
    """Return the user id of the process of this machine at the other end of a TCP connection; None if unknown."""
    try:
        here, there = end.getsockname(), end.getpeername()
        if end.family not in _TABLES:
            return None
        ends = [(socket.inet_pton(end.family, host), port) for host, port in (there[:2], here[:2])]
        try:
            return _ask_kernel(end.family, *ends)
        except (OSError, struct.error):
            return _read_table(end.family, *ends)
    except (OSError, ValueError):
        return None


def _ask_kernel(family: int, own: tuple[bytes, int], other: tuple[bytes, int]) -> int | None:
    """Ask for the socket with this address of its own and of its other end. Raises OSError if there is no answer."""
    ports = [port.to_bytes(2, "big") for _, port in (own, other)]
    body = _DIAG_REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF, *ports, own[0], other[0], 0, _NO_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as sock:
        sock.settimeout(_LIMIT_S)
        sock.sendto(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 0, 0) + body, (0, 0))
        answer = sock.recv(4096)
    if _HEADER.unpack_from(answer)[1] != _BY_FAMILY:
        raise OSError("the kernel does not tell whose it is")
    user, inode = struct.unpack_from("=II", answer, _HEADER.size + _USER_AT)
    return user if inode else None


def _read_table(family: int, own: tuple[bytes, int], other: tuple[bytes, int]) -> int | None:
    """Find the same in the table of proc(5)."""
    wanted = [_format_end(*own), _format_end(*other)]
    with open(_TABLES[socket.AddressFamily(family)], encoding="ascii") as file:
        for line in file:
            fields = line.split()
            if fields[1:3] == wanted:
                return int(fields[7]) if fields[9] != "0" else None
    return None


def _format_end(packed: bytes, port: int) -> str:
    """Format an address as the kernel's tables do: each word of four bytes in the machine's own order."""
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
