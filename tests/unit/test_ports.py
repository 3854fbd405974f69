"""The held port: nobody stumbles over it, a server that is told of it gets it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from launcher.ports import HeldPort


def has_six() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as six:
            six.bind(("::1", 0))
    except OSError:
        return False
    return True


FAMILIES = [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.0.0.1")]
FAMILIES += [(socket.AF_INET6, "::"), (socket.AF_INET6, "::1")] if has_six() else []


@pytest.fixture
def held() -> Iterator[HeldPort]:
    port = HeldPort()
    yield port
    port.close()


def bind(family: socket.AddressFamily, address: str, port: int, *options: int) -> socket.socket:
    """A socket of somebody else's, bound; the caller closes it."""
    other = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address == "::" else 1)
        for option in options:
            other.setsockopt(socket.SOL_SOCKET, option, 1)
        other.bind((address, port))
    except OSError:
        other.close()
        raise
    return other


@pytest.mark.parametrize(("family", "address"), FAMILIES)
@pytest.mark.parametrize("options", [(), (socket.SO_REUSEPORT,)], ids=["plain", "reuse port"])
def test_who_looks_for_a_free_port_does_not_find_it(
    held: HeldPort, family: socket.AddressFamily, address: str, options: tuple[int, ...]
) -> None:
    with pytest.raises(OSError, match="Address already in use"):
        bind(family, address, held.number, *options)


@pytest.mark.parametrize(("family", "address"), FAMILIES)
def test_a_server_that_binds_as_servers_do_gets_it_and_is_reached(
    held: HeldPort, family: socket.AddressFamily, address: str
) -> None:
    with bind(family, address, held.number, socket.SO_REUSEADDR) as server:
        server.listen()
        with socket.create_connection(("127.0.0.1" if family == socket.AF_INET else "::1", held.number), 10.0):
            server.accept()[0].close()


def test_only_one_server_gets_it(held: HeldPort) -> None:
    with bind(socket.AF_INET, "0.0.0.0", held.number, socket.SO_REUSEADDR) as server:
        server.listen()
        with pytest.raises(OSError, match="Address already in use"):
            bind(socket.AF_INET, "0.0.0.0", held.number, socket.SO_REUSEADDR).listen()


def test_nobody_answers_there_before_a_server_does(held: HeldPort) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", held.number), 10.0)


def test_ports_that_are_held_together_differ_and_are_free_again_afterwards() -> None:
    ports = [HeldPort() for _ in range(5)]
    assert len({port.number for port in ports}) == 5
    for port in ports:
        port.close()
    bind(socket.AF_INET, "0.0.0.0", ports[0].number).close()


def test_it_is_not_inherited_by_a_program_that_is_started(held: HeldPort) -> None:
    assert not held._socket.get_inheritable()


def test_a_machine_without_ipv6_holds_the_other_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_six(family: int = -1, *arguments: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError("Address family not supported by protocol")
        return real(family, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", without_six)
        held = HeldPort()
    with pytest.raises(OSError, match="Address already in use"):
        bind(socket.AF_INET, "127.0.0.1", held.number)
    held.close()
