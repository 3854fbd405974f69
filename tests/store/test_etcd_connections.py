"""The client at its first contact: certificates, strangers behind the port, servers too old or full. Word for word."""

from __future__ import annotations

import http.server
import os
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from rendezvous.errors import StoreError, Unreachable
from rendezvous.stores import wire
from rendezvous.stores.contract import Renewal
from rendezvous.stores.etcd.store import EtcdStore, Tls
from rendezvous.stores.protobuf import decode, encode
from tests.store.under_test import watch
from tests.support.processes.tree import REPOSITORY
from tests.support.stores.certificates import Certificates
from tests.support.stores.etcd import VERSIONS, EtcdServer

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("foreign"))


def refusal(endpoints: list[str], tls: Tls | None = None) -> tuple[str, str | None]:
    """The sentence and the hint with which the first contact fails; calls say the same."""
    store = EtcdStore(endpoints, tls=tls, call_limit_s=10, connect_limit_s=10)
    try:
        said = []
        for call in (store.connect, lambda: store.put("a", b"1"), lambda: store.get("a")):
            with pytest.raises(StoreError) as caught:
                call()
            assert type(caught.value) is Unreachable, "nothing can have been written"
            said.append((str(caught.value), caught.value.hint))
        assert len(set(said)) == 1
        return said[0]
    finally:
        store.close()


# Certificates


@pytest.mark.parametrize("usage", ["serverAuth", "serverAuth,clientAuth"])
@pytest.mark.parametrize("version", VERSIONS)
def test_both_sides_show_a_certificate(version: str, usage: str, tmp_path: Path) -> None:
    files = Certificates(tmp_path / "certificates", server_usage=usage)
    with EtcdServer(version, tmp_path, tls=files, wants_client_certificate=True) as server:  # type: ignore[arg-type]
        tls = Tls(files.authority, files.client_certificate, files.client_key)
        for name in ("127.0.0.1", "localhost"):
            store = EtcdStore([f"{name}:{server.client_port}"], tls=tls, call_limit_s=10)
            assert store.connect().startswith(version)
            revision = store.put("a", b"1")
            watch(store, "a", revision).wait_for_revision(revision)
            store.close()


def test_a_refused_certificate_is_told_whose(certificates: Certificates, foreign: Certificates, tmp_path: Path) -> None:
    hint = "check the CA certificate, the client certificate and the client key that are given for the store"
    with EtcdServer("3.5", tmp_path, tls=certificates, wants_client_certificate=True) as server:
        at = f"the store at {server.endpoint}"
        good = (certificates.client_certificate, certificates.client_key)
        not_signed = f"{at} presents a certificate that the given CA has not signed"
        assert refusal([server.endpoint], Tls(foreign.authority, *good)) == (not_signed, hint)
        assert refusal([server.endpoint], Tls(None, *good)) == (not_signed, hint)
        wanted = f"{at} requires a client certificate, and accepts none that it was given"
        assert refusal([server.endpoint], Tls(certificates.authority)) == (wanted, hint)
        theirs = Tls(certificates.authority, foreign.client_certificate, foreign.client_key)
        assert refusal([server.endpoint], theirs) == (wanted, hint)
        sentence, hint_without = refusal([server.endpoint])
        assert sentence == f"{at} closes every connection immediately"
        assert hint_without == "check whether it requires TLS, and whether it is etcd"


def test_a_certificate_for_another_name_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    with EtcdServer("3.5", tmp_path, host="127.0.0.2", tls=certificates) as server:
        assert refusal([server.endpoint], Tls(certificates.authority)) == (
            f"the store at {server.endpoint} presents a certificate for another name",
            "use a host name or address from the certificate",
        )


def test_tls_to_a_server_without_it_is_said(certificates: Certificates, tmp_path: Path) -> None:
    with EtcdServer("3.4", tmp_path) as server:
        assert refusal([server.endpoint], Tls(certificates.authority)) == (
            f"the store at {server.endpoint} does not speak TLS",
            "remove the certificates and https for a store without TLS",
        )


# Who is behind the port


@contextmanager
def listening(handler: type[socketserver.BaseRequestHandler]) -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class WebServer(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Greeter(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"SSH-2.0-OpenSSH\r\n")
        self.request.recv(1)


class Closer(socketserver.BaseRequestHandler):
    pass


@pytest.mark.parametrize(
    ("handler", "sentence"),
    [
        (WebServer, "is not etcd: what listens there does not speak HTTP/2"),
        (Greeter, "is not etcd: what listens there does not speak HTTP/2"),
        (Closer, "closes every connection immediately"),
    ],
)
def test_another_server_behind_the_port_is_known(handler: type[socketserver.BaseRequestHandler], sentence: str) -> None:
    with listening(handler) as endpoint:
        assert refusal([endpoint])[0] == f"the store at {endpoint} {sentence}"


def test_nobody_a_silent_one_and_an_unknown_name_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute = f"127.0.0.1:{silent.getsockname()[1]}"
        assert refusal([mute])[0] == f"the store at {mute} accepts connections but does not answer"
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{bound.getsockname()[1]}"
        assert refusal([nobody])[0] == f"the store at {nobody} cannot be reached: connection refused"
    name = "no-such-host.invalid:2379"
    assert refusal([name])[0] == f"the store at {name} cannot be reached: its name is not known"


def test_of_several_endpoints_each_is_said() -> None:
    with listening(Closer) as other:
        sentence, _ = refusal([other, "127.0.0.1:1"])
    parts = {
        f"the store at {other} closes every connection immediately",
        "the store at 127.0.0.1:1 cannot be reached: connection refused",
    }
    assert set(sentence.split("; ")) == parts


def serve(answers: dict[str, Callable[[bytes], bytes]]) -> tuple[object, str]:
    import grpc

    class Handlers(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
            answer = answers.get(details.method)  # type: ignore[attr-defined]
            if answer is None:
                return None
            return grpc.unary_unary_rpc_method_handler(lambda question, _: answer(question))

    server = grpc.server(ThreadPoolExecutor(2))
    port = server.add_insecure_port("127.0.0.1:0")
    server.add_generic_rpc_handlers((Handlers(),))
    server.start()
    return server, f"127.0.0.1:{port}"


def test_an_etcd_that_is_too_old_and_another_kind_of_server_are_recognised() -> None:
    old = encode(wire.StatusResponse(version="3.3.27"))
    for answers, sentence in (
        ({wire.STATUS.path: lambda _: old}, "the store at {} is etcd 3.3.27, too old: 3.4 is needed"),
        ({wire.STATUS.path: lambda _: b"\x0f"}, "is not etcd: its answer cannot be read"),
        ({}, "the store at {} is not etcd, or older than its version 3"),
    ):
        server, endpoint = serve(answers)  # type: ignore[arg-type]
        store = EtcdStore([endpoint], connect_limit_s=10)
        with pytest.raises(StoreError) as caught:
            store.connect()
        assert sentence.format(endpoint) in str(caught.value)
        store.close()
        server.stop(None).wait()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("renewed_in", "read_in"), [(3, 3), (3, 4), (4, 3)])
def test_a_renewal_is_confirmed_by_a_read_of_the_same_term(renewed_in: int, read_in: int) -> None:
    kept = encode(wire.LeaseTtl(wire.Header(raft_term=renewed_in), 7, 5))
    read = encode(wire.RangeResponse(wire.Header(revision=9, raft_term=read_in), (wire.WireKeyValue(b"a", 4, 6),)))
    asked: list[wire.RangeRequest] = []

    def answer(question: bytes) -> bytes:
        asked.append(decode(wire.RangeRequest, question))
        return read

    server, endpoint = serve({wire.LEASE_KEEP_ALIVE.path: lambda _: kept, wire.RANGE.path: answer})
    store = EtcdStore([endpoint], call_limit_s=10)
    assert store.lease_renew(7, "a") == Renewal(5.0, renewed_in == read_in, 9, 4)
    assert asked == [wire.RangeRequest(b"a", keys_only=True)], "not a serializable one"
    store.close()
    server.stop(None).wait()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("version", "is_known_for_it"),
    [
        *(("3.4.23", True), ("3.4.30", True), ("3.4.31", False), ("3.4.45", False), ("3.4.0+meshrun", True)),
        *(("3.5.0-rc.1", True), ("3.5.12", True), ("3.5.13", False), ("3.6.0", False), ("4.0", False), ("", False)),
    ],
)
def test_versions_that_may_end_leases_early_are_known(version: str, is_known_for_it: bool) -> None:
    assert EtcdStore.may_end_leases_early(version) == is_known_for_it


def test_clients_that_begin_at_once_change_the_environment_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    import grpc

    inside: list[str] = []
    has_company = threading.Event()

    def channel(address: str, _: object) -> object:
        inside.append(address)
        if len(inside) == 2:
            has_company.set()
        has_company.wait(0.2)  # in vain: the other has to wait
        return inside.pop()

    monkeypatch.setattr(grpc, "insecure_channel", channel)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: EtcdStore(["127.0.0.1:1"]), range(2)))
    assert not has_company.is_set()


# Manners


def test_nothing_is_printed_or_left_in_the_env(
    certificates: Certificates, foreign: Certificates, tmp_path: Path
) -> None:
    program = """
import os, subprocess, sys
before = dict(os.environ)
from rendezvous.errors import StoreError
from rendezvous.stores.etcd.store import EtcdStore, Tls
endpoint, authority = sys.argv[1:]
for tls in (None, Tls(authority)):  # either fails, and gRPC's core would say so
    store = EtcdStore([endpoint], tls=tls)
    watch = store.watch("a", start_revision=1, on_batch=print, on_lost=print)
    try:
        store.put("a", b"1")
    except StoreError:
        pass
    subprocess.run(["true"])
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    store.close()
assert dict(os.environ) == before
"""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    with EtcdServer("3.5", tmp_path, tls=certificates) as server:
        command = [sys.executable, "-W", "ignore", "-c", program, server.endpoint, foreign.authority]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=60, env=variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
