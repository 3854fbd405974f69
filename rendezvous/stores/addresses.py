"""Addresses as text: how HOST:PORT is written and read, and which addresses are of use to no other machine.

An IPv6 address wears brackets where a port follows.
"""

from __future__ import annotations

from rendezvous.errors import SettingsError


def join_address(host: str, port: int) -> str:
    """HOST:PORT, or [HOST]:PORT for IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, the host without brackets. Raises SettingsError."""
    name, _, port = text.rpartition(":")
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    elif ":" in name:
        name = ""  # an IPv6 address without brackets: which colon is the port's?
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not name or not is_number or not 0 < int(port) < 65536:
        raise SettingsError(f"{text!r} is not HOST:PORT")
    return name, int(port)


def is_local_only(address: str) -> bool:
    """Whether only the machine itself, or its neighbours on one wire, can use it: loopback and link-local addresses."""
    plain = address.lower().removeprefix("::ffff:")
    return plain in ("localhost", "::1") or plain.startswith(("127.", "169.254.", "fe8", "fe9", "fea", "feb"))
