"""A served store under attack by who does not know its token: members stay in, memory is bounded, stderr is quiet.

`make slow WHAT=attacks` makes each attack half a minute long.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from hpack import Decoder

from rendezvous.stores import wire
from rendezvous.stores.etcd.store import EtcdStore
from rendezvous.stores.server import connections
from tests.store.served import ServingProcess, serve
from tests.support.jobs.attacks import ATTACK_S
from tests.support.stores.hostile_client import HEADERS, KEEP_ALIVE, PING, Connection, frame, odd
from tests.support.stores.hostile_clients import strangers
from tests.support.stores.raw_etcd import RawClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

LIMIT_S = 20.0
GROWTH_BYTES_MAX = 64 * 1024 * 1024


class Serving(ServingProcess):
    """A store in a process of its own, and a member that is its client."""

    def __init__(self, place: Path, token: str) -> None:
        self.log = place / "stderr"
        super().__init__(token=token, log=self.log)
        self.member = EtcdStore([f"127.0.0.1:{self.port}"], user="meshrun", password=token, call_limit_s=LIMIT_S)

    def rss(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        self.member.close()
        self.kill()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path, "sesame")
    yield serving
    serving.close()


def stranger(serving: Serving) -> Connection:
    return Connection(("127.0.0.1", serving.port))


def heard(end: Connection) -> bytes:
    """What the store says until it ends the connection."""
    said = b""
    end.socket.settimeout(LIMIT_S)
    with suppress(ConnectionResetError):  # it has not read all
        while more := end.socket.recv(1 << 16):
            said += more
    return said


def statuses(said: bytes) -> list[bytes]:
    """The grpc-message of every header block."""
    decoder, words = Decoder(), []
    while said:
        size = int.from_bytes(said[:3], "big")
        if said[3] == HEADERS:
            words.append(dict(decoder.decode(said[9 : 9 + size], raw=True)).get(b"grpc-message", b""))
        said = said[9 + size :]
    return words


def keep_alive_under(serving: Serving, modes: Sequence[str]) -> None:
    """Attack, and see that a lease is kept, that memory is bounded, and that nothing is printed."""
    member = serving.member
    lease = member.lease_grant(10).id
    member.put("member", b"1", lease=lease)
    before = serving.rss()
    with strangers(modes, serving.port, ATTACK_S):
        until = time.monotonic() + ATTACK_S
        while time.monotonic() < until:
            assert member.lease_keep_alive(lease) == 10
            assert serving.rss() < before + GROWTH_BYTES_MAX
            time.sleep(0.1)  # the pace of a member, not a wait
        assert member.get("member").first is not None  # strangers may take longer to end than the lease lasts
    assert serving.process.poll() is None
    assert serving.log.read_bytes() == b""


@pytest.mark.parametrize(
    "modes", [("guess", "reset"), ("odd", "noise", "goaway"), ("open", "large", "connect", "idle")]
)
def test_members_stay_in_whatever_unauthenticated_clients_do(serving: Serving, modes: Sequence[str]) -> None:
    keep_alive_under(serving, modes)


def test_a_path_that_is_no_text_is_refused_and_the_store_goes_on(serving: Serving) -> None:
    """gRPC's own server ended for good there."""
    with closing(stranger(serving)) as end:
        assert end.push(lambda: odd(end))
    serving.member.put("a", b"1")


def test_an_unauthenticated_client_has_few_calls_and_little_time(serving: Serving) -> None:
    with closing(stranger(serving)) as end:
        for _ in range(connections.UNAUTHENTICATED_CALLS_MAX + 1):
            end.socket.sendall(end.headers(b"/etcdserverpb.KV/Range")[1])
        said = heard(end)
    assert sum(b"user name is empty" in words for words in statuses(said)) == connections.UNAUTHENTICATED_CALLS_MAX
    assert said.endswith((11).to_bytes(4, "big")), "ENHANCE_YOUR_CALM"


def test_of_a_flood_no_more_is_read_than_a_login_takes(serving: Serving) -> None:
    with closing(stranger(serving)) as end:
        end.socket.setblocking(True)
        end.socket.sendall(b"".join(end.headers(b"/etcdserverpb.KV/Range")[1] for _ in range(500)))
        said = heard(end)
    assert int.from_bytes(said[-8:-4], "big") < 2 * connections.UNAUTHENTICATED_READ_BYTES / len(end.headers(b"")[1]), (
        "last stream"
    )


def test_a_client_that_has_logged_in_is_no_longer_limited(serving: Serving) -> None:
    with RawClient(f"127.0.0.1:{serving.port}") as client:
        answer = client.ask(wire.AUTHENTICATE, wire.AuthenticateRequest("meshrun", "sesame"))
        client.metadata = (("token", answer.token),)
        for _ in range(10 * connections.UNAUTHENTICATED_CALLS_MAX):
            client.ask(wire.PUT_KEY, wire.PutRequest(b"a", bytes(connections.UNAUTHENTICATED_BYTES_MAX)))
    with RawClient(f"127.0.0.1:{serving.port}", token=answer.token) as client:  # the first message is large
        client.ask(wire.PUT_KEY, wire.PutRequest(b"a", bytes(1_000_000)))


def test_unauthenticated_clients_are_counted_and_the_oldest_is_closed(serving: Serving) -> None:
    ends = [stranger(serving) for _ in range(connections.UNAUTHENTICATED_MAX + 1)]
    first = ends[0].socket
    first.settimeout(LIMIT_S)
    try:
        while first.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    serving.member.put("a", b"1")
    for end in ends:
        end.close()

    def has_forgotten() -> bool:
        return len(os.listdir(f"/proc/{serving.process.pid}/fd")) < 50

    wait_until(has_forgotten, LIMIT_S, "the connections to be forgotten")


def test_without_a_token_too_connections_without_a_call_leave_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "UNAUTHENTICATED_MAX", 4)
    with ExitStack() as stack:
        server = stack.enter_context(serve())
        address = ("127.0.0.1", server.port)
        member = stack.enter_context(RawClient(f"127.0.0.1:{server.port}"))
        member.ask(wire.PUT_KEY, wire.PutRequest(b"a", b"1"))
        for _ in range(20):
            stack.enter_context(closing(Connection(address)))
        wait_until(lambda: len(server._connections.all) == 5, LIMIT_S, "the first ones to be closed")
        member.ask(wire.PUT_KEY, wire.PutRequest(b"a", b"2"))
        monkeypatch.setattr(connections, "UNAUTHENTICATED_LIMIT_S", 0.0)
        wait_until(lambda: len(server._connections.all) == 1, LIMIT_S, "those that wait to be closed")
        member.ask(wire.PUT_KEY, wire.PutRequest(b"a", b"3"))


def test_who_reads_nothing_is_not_read_either() -> None:
    pings = frame(PING, 0, 0, bytes(8)) * 1000
    with serve() as server, closing(Connection(("127.0.0.1", server.port))) as end:
        rest = [end.headers(KEEP_ALIVE)[1]]  # with a call it is a client
        wait_until(lambda: server._connections.all, LIMIT_S, "the connection")
        (line,) = server._connections.all
        line._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # else megabytes have to be answered first

        def is_held_up() -> bool:
            with suppress(BlockingIOError):
                while True:
                    rest[0] = rest[0] or pings
                    rest[0] = rest[0][end.socket.send(rest[0]) :]
            return any(line.http2.is_blocked for line in server._connections.all)

        wait_until(is_held_up, 2 * LIMIT_S, "the server to stop reading")
        with RawClient(f"127.0.0.1:{server.port}") as client:
            client.ask(wire.PUT_KEY, wire.PutRequest(b"a", b"1"))
        (line,) = (line for line in server._connections.all if line.http2.is_blocked)
        assert line._outbound_bytes + len(line._unsent) < 2 * connections.UNSENT_BYTES_MAX


def test_connections_are_accepted_while_those_before_them_wait_to_be_read() -> None:
    """Else who comes from another address waits in the kernel's backlog behind a flood, where it has no turn."""
    with serve(token="sesame") as server:
        server._connections.share.take(1000.0)
        with closing(Connection(("127.0.0.1", server.port))):
            wait_until(lambda: len(server._connections.all) == 1, LIMIT_S, "the connection to be accepted")
