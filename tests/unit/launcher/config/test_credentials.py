"""What secrets are read from, and that none is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.config import credentials
from launcher.config.credentials import Credentials
from launcher.config.options.network import StoreConfig
from launcher.model.errors import UsageError

ETCD = StoreConfig(backend="etcd", endpoints=("h:2379",))
SERVED = StoreConfig(backend="served", endpoints=("h:29400",))


def test_secrets_come_from_variables_or_from_files_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p w\n")
    path = str(tmp_path / "password")
    environ = {"LAUNCHER_ETCD_USER": "me", "LAUNCHER_ETCD_PASSWORD_FILE": path, "LAUNCHER_JOB_SECRET": "s"}
    assert credentials.read(ETCD, environ) == Credentials("me", "p w", "", b"s")
    named = StoreConfig(backend="etcd", endpoints=("h:1",), user="you", password_file=path)
    assert credentials.read(named, {}) == Credentials("you", "p w", "", b"")
    assert credentials.read(SERVED, {"LAUNCHER_STORE_TOKEN": "t", "LAUNCHER_ETCD_USER": "me"}) == Credentials(token="t")
    assert credentials.read(ETCD, {}) == Credentials()


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb\n", b"x" * 5000, b"\xff"])
def test_a_file_without_a_secret_is_refused_without_showing_its_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="LAUNCHER_JOB_SECRET_FILE="):
        credentials.read(ETCD, {"LAUNCHER_JOB_SECRET_FILE": str(path)})


@pytest.mark.parametrize(
    "environ", [{"LAUNCHER_ETCD_USER": "me"}, {"LAUNCHER_ETCD_PASSWORD": "hunter2"}, {"LAUNCHER_STORE_TOKEN": "t",
                "LAUNCHER_STORE_TOKEN_FILE": "/t"}],
)  # fmt: skip
def test_half_a_pair_and_one_too_many_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        credentials.read(ETCD, environ)
    assert "hunter2" not in str(caught.value)
