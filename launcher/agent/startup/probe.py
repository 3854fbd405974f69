"""Probes the store's endpoints with plain sockets, before anything waits for them.

A gRPC client says "unavailable" for a wrong port, a web server, TLS where there is none and none where there is,
and for a server that will be up in a second. The user needs to know which. So the first bytes of a connection are
exchanged here explicitly: a server that answers the HTTP/2 preface with settings may be etcd, and others are
distinguished by their answers. What may change by waiting is "absent", what the user has to change is "wrong".
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from launcher.config.options.network import StoreConfig
from launcher.model.errors import UsageError
from rendezvous.stores.addresses import split_address

if TYPE_CHECKING:
    import ssl

LIMIT_S = 2.0  # for each step: a connection in a data centre takes milliseconds
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # RFC 9113 3.4: empty settings
_SETTINGS_FRAME = 4
_OTHER_NAME = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH: OpenSSL's x509_vfy.h
_PORT_HINT = "check the port: etcd's usual one is 2379"
_OTHER_PORT_HINT = "use another port on all nodes"
_TLS_HINT = "prefix it with etcds://, or set protocol=https in --rdzv-conf"
_PLAIN_HINT = "prefix it with etcd://, and leave out protocol=https and certificates"


class ProbeResult(Struct, frozen=True):
    """`sentence` is "" if there is no problem."""

    kind: Literal["good", "absent", "wrong"]
    sentence: str = ""
    hint: str | None = None


def probe(network: StoreConfig) -> ProbeResult:
    """Return the best result of any of the endpoints: one good server is enough. Raises UsageError for bad files."""
    context = _make_context(network) if network.uses_tls else None
    found = []
    for endpoint in network.endpoints:
        finding = _probe_endpoint(endpoint, context, network)
        if finding.kind == "good":
            return finding
        found.append(finding)
    # A server that may still start is worth waiting for, whatever the others are.
    return next((finding for finding in found if finding.kind == "absent"), found[0])


def _probe_endpoint(endpoint: str, context: ssl.SSLContext | None, network: StoreConfig) -> ProbeResult:
    host, port = split_address(endpoint)
    try:
        connection = socket.create_connection((host, port), LIMIT_S)
    except UnicodeError:
        return ProbeResult("wrong", f"{endpoint}: {host[:80]!r} is not a host name")
    except socket.gaierror as error:
        return ProbeResult("absent", f"{endpoint} cannot be found: {error.strerror}")
    except TimeoutError:
        return ProbeResult("absent", f"{endpoint} does not answer")
    except OSError as error:
        return ProbeResult("absent", f"{endpoint} cannot be reached: {error.strerror or error}")
    with connection:
        try:
            if network.backend == "served" or context is None:
                return _probe_plain(endpoint, connection, is_etcd=network.backend == "etcd")
            return _probe_tls(endpoint, connection, context, network.cert_file is not None)
        except TimeoutError:
            return ProbeResult("absent", f"{endpoint} accepts connections but does not answer")
        except OSError as error:
            return ProbeResult("absent", f"{endpoint} ended the connection: {error.strerror or error}")


def _probe_plain(endpoint: str, connection: socket.socket, *, is_etcd: bool) -> ProbeResult:
    wanted, hint = ("etcd", _PORT_HINT) if is_etcd else ("a job's store", _OTHER_PORT_HINT)
    reply = b""
    with contextlib.suppress(ConnectionError):
        reply = _send_preface(connection)
    if _is_settings(reply):
        return ProbeResult("good")
    if reply.startswith((b"HTTP/", b"<")):  # the latter is the body alone, which old servers send without a request
        return ProbeResult("wrong", f"{endpoint} is a web server, not {wanted}", hint)
    if _is_tls(endpoint):
        sentence = f"{endpoint} expects TLS but is addressed without it"
        return ProbeResult("wrong", sentence, _TLS_HINT if is_etcd else hint)
    if not reply:
        return ProbeResult("absent", f"{endpoint} ended the connection")
    return ProbeResult("wrong", f"{endpoint} is not {wanted}: it answers {reply[:16]!r}", hint)


def _probe_tls(endpoint: str, connection: socket.socket, context: ssl.SSLContext, has_certificate: bool) -> ProbeResult:
    import ssl

    try:
        with context.wrap_socket(connection, server_hostname=split_address(endpoint)[0]) as encrypted:
            reply = _send_preface(encrypted)
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message.rstrip(".").lower()
        hint = "add cacert=FILE, its root certificate, to --rdzv-conf"
        if error.verify_code in _OTHER_NAME:
            hint = "use a host name or address from the certificate in --rdzv-endpoint"
        return ProbeResult("wrong", f"the certificate of {endpoint} is refused: {reason}", hint)
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER":
            return ProbeResult("wrong", f"{endpoint} does not speak TLS", _PLAIN_HINT)
        if "ALERT" in (error.reason or ""):
            what = "this node's certificate" if has_certificate else "a client without a certificate"
            return ProbeResult(
                "wrong", f"{endpoint} refuses {what}: {_format_error(error)}", "add cert=FILE,key=FILE to --rdzv-conf"
            )
        return _explain_no_answer(endpoint, f"ended the TLS connection: {_format_error(error)}")
    except TimeoutError:
        return _explain_no_answer(endpoint, "accepts connections but does not answer")
    except ConnectionError as error:
        return _explain_no_answer(endpoint, f"ended the TLS connection: {error.strerror or error}")
    if _is_settings(reply):
        return ProbeResult("good")
    return ProbeResult("wrong", f"{endpoint} speaks TLS but is not etcd", _PORT_HINT)


def _explain_no_answer(endpoint: str, what: str) -> ProbeResult:
    """Explain that TLS got no answer: test whether a connection without it does."""
    with contextlib.suppress(OSError), socket.create_connection(split_address(endpoint), LIMIT_S) as connection:
        if _send_preface(connection):
            return ProbeResult("wrong", f"{endpoint} does not speak TLS", _PLAIN_HINT)
    return ProbeResult("absent", f"{endpoint} {what}")


def _send_preface(connection: socket.socket) -> bytes:
    """Send the first bytes of an HTTP/2 client; return the first bytes of the answer."""
    connection.settimeout(LIMIT_S)
    connection.sendall(_PREFACE)
    reply = b""
    while len(reply) < 9 and (more := connection.recv(64)):
        reply += more
    return reply


def _is_settings(reply: bytes) -> bool:
    """A frame header is 3 bytes of length, one of type, one of flags, four of stream, which is 0 for settings."""
    return len(reply) >= 9 and reply[3] == _SETTINGS_FRAME and reply[5:9] == bytes(4)


def _is_tls(endpoint: str) -> bool:
    """Whether a server of TLS is there, with any certificate."""
    import ssl

    try:
        ssl.get_server_certificate(split_address(endpoint), timeout=LIMIT_S)
        return True
    except ssl.SSLError as error:
        return (error.reason or "").startswith(("SSLV3_", "TLSV1"))  # OpenSSL's names of a server's alerts
    except OSError:
        return False


def _make_context(network: StoreConfig) -> ssl.SSLContext:
    import ssl

    files = {"cacert": network.ca_file, "cert": network.cert_file, "key": network.key_file}
    for name, path in files.items():
        _require_readable(name, path)
    try:
        context = ssl.create_default_context(cafile=network.ca_file)
        if network.cert_file is not None:
            context.load_cert_chain(network.cert_file, network.key_file, password=_refuse_password)
    except (ssl.SSLError, ValueError) as error:
        named = ", ".join(str(path) for path in files.values() if path is not None)
        raise UsageError(f"{named}: no matching certificate and key in PEM format ({error})") from None
    context.set_alpn_protocols(["h2"])
    return context


def _require_readable(name: str, path: str | None) -> None:
    try:
        if path is not None:
            open(path, "rb").close()
    except OSError as error:
        raise UsageError(f"{name}={path} cannot be read: {error.strerror}") from None


def _refuse_password() -> str:
    """Called for a key with a password: an agent cannot prompt on the terminal."""
    raise ValueError("the key has a password")


def _format_error(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
