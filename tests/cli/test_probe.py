"""What is found at an endpoint: etcd, with and without TLS, and everything that is mistaken for it."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from launcher.agent.startup import probe as probing
from launcher.agent.startup.probe import ProbeResult, probe
from launcher.config.options.network import StoreConfig
from launcher.model.errors import UsageError
from tests.support.network.namespaces import free_port
from tests.support.stores.certificates import Certificates
from tests.support.stores.etcd import EtcdServer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EtcdServer("3.5", tmp_path_factory.mktemp("plain")) as server:
        yield server.endpoint


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[str]:
    with EtcdServer("3.4", tmp_path_factory.mktemp("tls"), tls=certificates) as server:
        yield server.endpoint


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("mutual")
    with EtcdServer("3.4", directory, tls=certificates, wants_client_certificate=True) as server:
        yield server.endpoint


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class _Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


def look(endpoint: str, **tls: str | bool | None) -> ProbeResult:
    return probe(StoreConfig(backend="etcd", endpoints=(endpoint,), **tls))  # type: ignore[arg-type]


def trusting(certificates: Certificates) -> dict[str, str | bool]:
    return {"uses_tls": True, "ca_file": certificates.authority}


def test_an_etcd_is_good_with_and_without_tls(plain: str, encrypted: str, certificates: Certificates) -> None:
    assert look(plain) == ProbeResult("good")
    assert look(encrypted, **trusting(certificates)).kind == "good"


def test_a_client_certificate_is_shown_where_one_is_wanted(mutual: str, certificates: Certificates) -> None:
    own = {"cert_file": certificates.client_certificate, "key_file": certificates.client_key}
    assert look(mutual, **trusting(certificates), **own).kind == "good"
    finding = look(mutual, **trusting(certificates))
    assert finding.kind == "wrong"
    assert finding.sentence.startswith(f"{mutual} refuses a client without a certificate: ")


def test_tls_on_one_side_only_is_told_from_either(plain: str, encrypted: str) -> None:
    assert look(plain, uses_tls=True) == ProbeResult(
        "wrong", f"{plain} does not speak TLS",
        "prefix it with etcd://, and leave out protocol=https and certificates",
    )  # fmt: skip
    finding = look(encrypted)
    assert (finding.kind, finding.sentence) == ("wrong", f"{encrypted} expects TLS but is addressed without it")


def test_a_certificate_of_an_unknown_authority_is_refused(encrypted: str) -> None:
    finding = look(encrypted, uses_tls=True)
    assert finding.kind == "wrong"
    assert finding.sentence.startswith(f"the certificate of {encrypted} is refused: ")
    assert finding.hint == "add cacert=FILE, its root certificate, to --rdzv-conf"


def test_a_web_server_is_no_etcd(web: str) -> None:
    finding = look(web)
    assert (finding.kind, finding.sentence) == ("wrong", f"{web} is a web server, not etcd")


@contextmanager
def listening(greeting: bytes) -> Iterator[str]:
    """Greet whoever comes, say no more, and never hang up; the endpoint."""
    kept = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                kept.append(server.accept()[0])
                kept[-1].sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
    for connection in kept:
        connection.close()


def test_a_server_of_another_protocol_is_named_by_its_greeting() -> None:
    with listening(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n") as endpoint:
        assert look(endpoint) == ProbeResult(
            "wrong",
            f"{endpoint} is not etcd: it answers b'SSH-2.0-OpenSSH_'",
            "check the port: etcd's usual one is 2379",
        )


def test_a_server_of_tls_that_refuses_the_name_expects_tls() -> None:
    with listening(bytes.fromhex("15030300020270") * 2) as endpoint:  # RFC 8446 6: a fatal unrecognized_name
        assert look(endpoint).sentence == f"{endpoint} expects TLS but is addressed without it"


def test_a_server_that_says_nothing_may_come_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "LIMIT_S", 0.1)
    with listening(b"") as endpoint:
        assert look(endpoint) == ProbeResult("absent", f"{endpoint} accepts connections but does not answer")


@pytest.mark.parametrize("name", ["a" * 70, "a..b"])
def test_what_can_be_no_name_of_a_host_is_refused(name: str) -> None:
    assert look(f"{name}:2379") == ProbeResult("wrong", f"{name}:2379: {name!r} is not a host name")


def test_what_is_not_there_yet_may_come() -> None:
    port = free_port("127.0.0.1")
    assert look(f"127.0.0.1:{port}") == ProbeResult("absent", f"127.0.0.1:{port} cannot be reached: Connection refused")
    finding = look("no-such-host.invalid:1")
    assert finding.kind == "absent"
    assert finding.sentence.startswith("no-such-host.invalid:1 cannot be found: ")


def test_one_good_server_is_enough_and_one_that_may_come_leaves_hope(plain: str, web: str) -> None:
    nobody = f"127.0.0.1:{free_port('127.0.0.1')}"
    assert probe(StoreConfig(backend="etcd", endpoints=(nobody, web, plain))).kind == "good"
    assert probe(StoreConfig(backend="etcd", endpoints=(web, nobody))).kind == "absent"


def test_files_that_are_no_certificates_are_refused_by_name(tmp_path: Path, plain: str) -> None:
    with pytest.raises(UsageError, match=r"^cacert=/no/ca cannot be read: No such file or directory$"):
        look(plain, uses_tls=True, ca_file="/no/ca")
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")
    with pytest.raises(UsageError, match=rf"^{rubbish}: no matching certificate and key in PEM format"):
        look(plain, uses_tls=True, ca_file=str(rubbish))
