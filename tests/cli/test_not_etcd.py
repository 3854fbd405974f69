"""Endpoints where something else listens, or etcd in another way than the options say: a sentence and an exit code."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.running import Outcome, run
from tests.support.stores.certificates import Certificates
from tests.support.stores.etcd import EtcdServer


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('it runs')\n")
    return tmp_path


def job(place: Path, endpoint: str, *words: str) -> Outcome:
    return run("meshrun", "--rdzv-backend=etcd", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job", "--nproc-per-node=1",
               "--start-timeout=0.5", *words, "train.py", cwd=place)  # fmt: skip


@contextmanager
def listener(greeting: bytes) -> Iterator[str]:
    """Greets whoever comes and says no more; its endpoint."""
    server = socket.create_server(("127.0.0.1", 0))
    kept = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                connection.sendall(greeting)
                kept.append(connection)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in (server, *kept):
            each.close()


def test_a_server_that_greets_in_another_language_is_refused_at_once(place: Path) -> None:
    with listener(b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n") as endpoint:
        outcome = job(place, endpoint)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == (
        f"meshrun: error: {endpoint} is not an etcd: it answers b'SSH-2.0-OpenSSH_'\nhint: etcd's usual port is 2379\n"
    )


def test_a_server_that_says_nothing_is_given_up_after_the_start_timeout(place: Path) -> None:
    with listener(b"") as endpoint:
        outcome = job(place, endpoint)
    assert (outcome.code, outcome.out) == (75, "")
    sentence = f"no store could be used within 0.5 s: {endpoint} accepts connections and does not answer"
    assert f"meshrun: error: {sentence}\n" in outcome.err


def test_etcd_with_tls_wants_tls_and_a_certificate_that_is_known(place: Path, tmp_path: Path) -> None:
    known, unknown = Certificates(tmp_path / "known"), Certificates(tmp_path / "unknown")
    with EtcdServer("3.5", tmp_path / "etcd", tls=known, wants_client_certificate=True) as etcd:
        plain = job(place, etcd.endpoint)
        assert plain.code == 2
        assert plain.err.startswith(f"meshrun: error: {etcd.endpoint} speaks TLS, and is named without\nhint: ")
        stranger = job(place, f"etcds://{etcd.endpoint}", f"--rdzv-conf=cacert={unknown.authority}")
        assert stranger.code == 2
        assert stranger.err.startswith(f"meshrun: error: the certificate of {etcd.endpoint} is refused: ")
        nobody = job(place, f"etcds://{etcd.endpoint}", f"--rdzv-conf=cacert={known.authority}")
        assert nobody.code == 2
        assert f"{etcd.endpoint} refuses a client without a certificate" in nobody.err
        for outcome in (plain, stranger, nobody):
            assert "Traceback" not in outcome.err
