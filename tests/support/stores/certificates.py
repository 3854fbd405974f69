"""Certificates for tests: an authority, a server's and a client's, made by the openssl command in a moment."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Certificates:
    """Files below `directory`; the server's name is localhost and 127.0.0.1, the client's is client.

    `server_usage`: what the server's certificate is for; etcd's own certificates often carry both, many
    organisations' authorities give a server serverAuth only. `is_sparse`: whether the authority's own certificate does
    without saying what it is for, as in many clusters of Kubernetes.
    """

    def __init__(self, directory: Path, *, server_usage: str = "serverAuth", is_sparse: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.authority = str(directory / "authority.pem")
        self.server_certificate = str(directory / "server.pem")
        self.server_key = str(directory / "server.key")
        self.client_certificate = str(directory / "client.pem")
        self.client_key = str(directory / "client.key")
        self._openssl(
            *("req", "-x509", *_NEW_KEY, "-keyout", "authority.key", "-out", "authority.pem", "-days", "2"),
            *("-subj", "/CN=an authority for tests"),
            *(() if is_sparse else ("-addext", "keyUsage=critical,keyCertSign,cRLSign")),
        )
        self._issue("server", "localhost", f"{server_usage}\nsubjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1")
        self._issue("client", "client", "clientAuth")

    def _issue(self, file: str, name: str, usage: str) -> None:
        (self.directory / f"{file}.extensions").write_text(f"extendedKeyUsage={usage}\n")
        self._openssl("req", *_NEW_KEY, "-keyout", f"{file}.key", "-out", f"{file}.request", "-subj", f"/CN={name}")
        self._openssl(
            *("x509", "-req", "-in", f"{file}.request", "-out", f"{file}.pem", "-days", "2", "-CAcreateserial"),
            *("-CA", "authority.pem", "-CAkey", "authority.key", "-extfile", f"{file}.extensions"),
        )

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.directory, check=True, capture_output=True, timeout=60)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def signing_keys(directory: Path) -> tuple[str, str]:
    """A pair of RSA keys for signing JSON Web Tokens: the files of the public and of the private one."""
    directory.mkdir(parents=True, exist_ok=True)
    for words in (
        ("genrsa", "-out", "private.pem", "2048"),
        ("rsa", "-in", "private.pem", "-pubout", "-out", "public.pem"),
    ):
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True, timeout=60)
    return str(directory / "public.pem"), str(directory / "private.pem")
