"""What is served at an address: needed before the first worker, so nothing is imported for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.model.errors import TemporaryError, UsageError
from rendezvous.errors import StoreError
from rendezvous.stores.listeners import PortTaken, listen

if TYPE_CHECKING:
    import socket

Answer = Callable[[Any], Any]
"""From a Request to a Response of `http_server`, in any thread. What it raises is the answer: a UsageError is the
reader's fault (400), a TemporaryError 503.
"""


class PathGroup(NamedTuple):
    """What an extension serves."""

    read: Callable[[], Mapping[str, Answer]]
    """Returns its answers by path; imported with the first request."""
    is_open: bool = False
    """To everybody who reaches the port."""
    is_leaders: bool = False
    """Only where this agent leads."""
    announcement: str = ""
    """Logged when it is served: {url} is the address with the token, {address} without."""


def open_listener(host: str, port: int, what: str) -> socket.socket:
    """Listen at an address; port 0 is any free one. `what`: will listen, for the sentence.

    Raises TemporaryError if the port is taken, which may be so on this machine alone; else UsageError.
    """
    try:
        return listen(host, port, what)
    except StoreError as error:
        kind = TemporaryError if isinstance(error, PortTaken) else UsageError
        raise kind(str(error), error.hint) from None
    except UnicodeError:
        raise UsageError(f"{what} cannot listen on {host!a}: this is not a host name") from None
