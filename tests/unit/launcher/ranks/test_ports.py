"""The held port: nobody stumbles over it, a server that is told of it gets it."""

from __future__ import annotations

import _socket
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.model.errors import TemporaryError
from launcher.placement.adapter.description import NodeAssignment
from launcher.ranks import ports
from launcher.ranks.ports import MasterPort
from rendezvous.peers import connections
from rendezvous.stores import listeners
from rendezvous.stores.listeners import PortHolder, find_foreign_listener
from tests.support.processes.tree import state
from tests.support.waiting import wait_until


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
def held() -> Iterator[MasterPort]:
    port = MasterPort()
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
    held: MasterPort, family: socket.AddressFamily, address: str, options: tuple[int, ...]
) -> None:
    with pytest.raises(OSError, match="Address already in use"):
        bind(family, address, held.number, *options)


@pytest.mark.parametrize(("family", "address"), FAMILIES)
def test_a_server_that_binds_as_usual_gets_it(held: MasterPort, family: socket.AddressFamily, address: str) -> None:
    with bind(family, address, held.number, socket.SO_REUSEADDR) as server:
        server.listen()
        with socket.create_connection(("127.0.0.1" if family == socket.AF_INET else "::1", held.number), 10.0):
            server.accept()[0].close()


def test_two_jobs_never_reserve_one_port_since_both_could_listen_there() -> None:
    """JAX's coordinator is a server of gRPC, which asks for SO_REUSEADDR and SO_REUSEPORT."""
    first, last = free_range(2)
    held = MasterPort(ports=(first, last))
    options = (socket.SO_REUSEADDR, socket.SO_REUSEPORT)
    with bind(socket.AF_INET6, "::", held.number, *options) as coordinator:
        coordinator.listen()
        with bind(socket.AF_INET6, "::", held.number, *options) as other:
            other.listen()  # nothing in the kernel speaks against it
        held.close()  # the job's agent was killed, say, and its rank 0 lives on for a moment
        next_job = MasterPort(ports=(first, last))
        assert next_job.number != held.number
        next_job.close()
    with bind(socket.AF_INET6, "::", held.number, socket.SO_REUSEADDR):
        pass


def test_nobody_answers_there_before_a_server_does_and_no_program_inherits_it(held: MasterPort) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", held.number), 10.0)
    assert held._socket is not None
    assert not os.get_inheritable(held._socket.fileno())


def test_ports_that_are_held_together_differ_and_are_free_again_afterwards() -> None:
    ports = [MasterPort() for _ in range(5)]
    assert len({port.number for port in ports}) == 5
    renewed = ports[0].number
    ports[0].renew()
    assert ports[0].number != renewed
    bind(socket.AF_INET, "0.0.0.0", renewed).close()
    for port in ports:
        port.close()
    bind(socket.AF_INET, "0.0.0.0", ports[1].number).close()


def test_a_machine_without_ipv6_holds_the_other_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _socket.socket

    def without_six(family: int = -1, *arguments: int) -> _socket.socket:
        if family == socket.AF_INET6:
            raise OSError("Address family not supported by protocol")
        return real(family, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(_socket, "socket", without_six)
        held = MasterPort()
    with pytest.raises(OSError, match="Address already in use"):
        bind(socket.AF_INET, "127.0.0.1", held.number)
    held.close()


def free_range(count: int) -> tuple[int, int]:
    """So many ports in a row that are free just now."""
    for first in range(20_000, 30_000, count):
        try:
            for port in range(first, first + count):
                bind(socket.AF_INET6, "::", port).close()
        except OSError:
            continue
        return first, first + count - 1
    raise AssertionError("no free ports")


def test_a_port_is_taken_from_the_range_and_every_round_takes_the_next() -> None:
    first, last = free_range(3)
    port = MasterPort(ports=(first, last))
    seen = [port.number]
    for _ in range(3):
        port.renew()
        seen.append(port.number)
    port.close()
    assert seen == [first, first + 1, first + 2, first]


def test_reserved_ports_of_a_range_are_skipped_and_none_left_is_an_error() -> None:
    first, last = free_range(2)
    one, other = MasterPort(ports=(first, last)), MasterPort(ports=(first, last))
    assert {one.number, other.number} == {first, last}
    with pytest.raises(
        TemporaryError, match=f"cannot reserve a port from {first} to {last} for rank 0: Address already"
    ):
        MasterPort(ports=(first, last))
    one.renew()  # there is no other: the same again
    assert one.number == first
    other.close()
    one.close()


def test_presence_avoids_a_reserved_port_and_gets_its_own_back(held: MasterPort) -> None:
    with connections.bind("127.0.0.1", (held.number, 0)) as listener:
        assert listener.getsockname()[1] != held.number
    with connections.bind("127.0.0.1", (0,)) as listener:
        place = listener.getsockname()
        with socket.create_connection(place) as dialler:
            accepted, _ = listener.accept()
            accepted.close()  # first, so that this side remembers the connection
            assert dialler.recv(1) == b""
    with pytest.raises(OSError, match="in use"):
        bind(socket.AF_INET, *place).close()
    connections.bind("127.0.0.1", (place[1],)).close()


@pytest.mark.parametrize(("family", "address"), FAMILIES)
def test_a_foreign_listener_is_named_and_no_own(held: MasterPort, family: socket.AddressFamily, address: str) -> None:
    assert find_foreign_listener(held.number) is None
    with bind(family, address, held.number, socket.SO_REUSEADDR) as server:
        # Bound is not listening, so no process has to be looked at.
        assert find_foreign_listener(held.number, lambda: pytest.fail("a restart has no time for this")) is None
        server.listen()
        assert str(find_foreign_listener(held.number)).startswith(f"pid {os.getpid()} (")
        assert find_foreign_listener(held.number, lambda: (os.getpid(),)) is None


def make_share(group_rank: int = 0, nodes: int = 1) -> NodeAssignment:
    return NodeAssignment(
        ranks=(group_rank,), world_size=nodes, shape=(nodes,), group_rank=group_rank, group_world_size=nodes,
        role_ranks=(0,), role_world_size=nodes, master_addr="h", master_port=29500,
    )  # fmt: skip


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(ports, "log", lines.append)
    return lines


def test_a_foreign_listener_on_a_given_port_excuses_nothing(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "find_foreign_listener", lambda port, own: PortHolder(port, "python"))
    given = MasterPort(29500, None)
    assert (given.is_taken(make_share(1, nodes=2)), said) == (False, [])
    assert not given.is_taken(make_share(0, nodes=2))
    assert said == ["port 29500 is for rank 0, but pid 29500 (python) listens there"]


def test_a_process_that_is_about_to_end_is_no_foreign_one(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of many threads that is ending has no files any more that one could see, but its socket for a moment."""
    looks = iter([PortHolder(), PortHolder(), None])
    monkeypatch.setattr(ports, "RETRY_INTERVAL_S", 0.0)
    monkeypatch.setattr(listeners, "find_foreign_listener", lambda port, own: next(looks))
    drawn = MasterPort(None, None)
    drawn.close()
    assert (drawn.is_taken(make_share()), said) == (False, [])
    monkeypatch.setattr(listeners, "find_foreign_listener", lambda port, own: PortHolder())
    assert drawn.is_taken(make_share())
    assert said == ["port 29500 is for rank 0, but another user's process listens there"]


def test_a_file_that_is_closed_meanwhile_hides_no_other(held: MasterPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "listdir", lambda folder, real=os.listdir: ["999999", *real(folder)])
    with bind(socket.AF_INET, "127.0.0.1", held.number, socket.SO_REUSEADDR) as server:
        server.listen()
        assert find_foreign_listener(held.number, lambda: (os.getpid(),)) is None


def test_a_process_whose_first_thread_has_ended_is_still_found() -> None:
    program = """
import ctypes, socket, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=sys.stdin.read).start()
print(listener.getsockname()[1], flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        wait_until(lambda: state(process.pid) == "Z", 20, "the end of its first thread")
        found = find_foreign_listener(port)
        process.kill()
    assert found is not None
    assert found.pid == process.pid


@pytest.mark.parametrize(("family", "address"), FAMILIES)
def test_the_kernel_tells_which_socket_listens(family: socket.AddressFamily, address: str) -> None:
    with bind(family, address, 0) as server, bind(family, address, 0) as other:
        server.listen()
        other.listen()
        number = server.getsockname()[1]
        assert listeners.find_listeners(number) == {str(os.fstat(server.fileno()).st_ino)}
    assert listeners.find_listeners(number) == set()


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (listeners, "_SOCK_DIAG", 31),  # no such family: as in a sandbox
        (_socket, "IPPROTO_TCP", 253),  # what no module of the kernel's is about: as without tcp_diag
    ],
)
def test_where_none_is_told_none_is_blamed(module: Any, name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with bind(socket.AF_INET, "127.0.0.1", 0) as server:
        server.listen()
        number = server.getsockname()[1]
        monkeypatch.setattr(module, name, value)
        with pytest.raises(OSError, match=r"not tell|not supported|not permitted"):
            list(listeners._ask_kernel(socket.AF_INET, 1 << listeners._LISTEN, (b"", number)))
        assert find_foreign_listener(number) is None
