"""A name for MASTER_ADDR where it is an IPv6 address, as scripts write `tcp://{MASTER_ADDR}:{MASTER_PORT}`.

The colons of such an address break that, brackets around it break `env://` (torch resolves them as a name), and
torchrun sets the host's name, which need not resolve elsewhere. So each node asks its own resolver for a name of the
address, and takes one that leads back to it; nodes may know it by different names. Without one the address stays, which
`env://` and JAX's coordinator take as well. Loaded for such an address only.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

from launcher.model.concurrency import start_thread
from rendezvous.stores.addresses import pack_address, resolve_host

LIMIT_S = 1.0
"""A resolver that is silent must not keep the agent from its lease. It is asked until it has answered with a name."""
_known: dict[str, str] = {}
_asking: dict[str, threading.Thread] = {}


def find_master_name(address: str) -> str:
    """Return a host name that means this IPv6 address on this node, else the address."""
    if address not in _known:
        if (thread := _asking.pop(address, None)) is None or not thread.is_alive():
            thread = start_thread(_ask, "name of the master", address)
        if thread is not None:
            _asking[address] = thread
            thread.join(LIMIT_S)
    return _known.get(address, address)


def _ask(address: str) -> None:
    if name := next(_list_names(address), ""):
        _known[address] = name


def _list_names(address: str) -> Iterator[str]:
    for name in _list_candidates(address):
        if any(pack_address(str(place[0])) == pack_address(address) for _, place in resolve_host(name, 0)):
            yield name


def _list_candidates(address: str) -> Iterator[str]:
    if address == "::1":
        yield "localhost"
    with suppress(OSError):
        yield socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]
    yield os.uname().nodename
