"""The secrets: the store's password and token, and the job's own secret.

They come from variables, or from files that variables name, never from the command line, which every user of a machine
can read. Workers inherit none of them: a training script must not take part in the agreement of its job.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from launcher.config.options.network import StoreConfig
from launcher.config.scrub import NAMES
from launcher.model.errors import UsageError

_FILE_BYTES_MAX = 4096


class Credentials(Struct, frozen=True):
    """Empty where not set. `token` protects a store that an agent serves, `secret` signs the job's records."""

    user: str = ""
    password: str = ""
    token: str = ""
    secret: bytes = b""


def read(network: StoreConfig, environ: Mapping[str, str]) -> Credentials:
    """Read the credentials. Raises UsageError for a file that cannot be read, or half of a pair."""
    secret = _read_value("LAUNCHER_JOB_SECRET", environ).encode()
    token = _read_value("LAUNCHER_STORE_TOKEN", environ)
    user = network.user or _read_value("LAUNCHER_ETCD_USER", environ)
    password = _read_value("LAUNCHER_ETCD_PASSWORD", environ)
    if not password and network.password_file is not None:
        password = _read_file("password_file", network.password_file)
    if network.backend == "served":
        return Credentials("", "", token, secret)
    if user and not password:
        hint = "set password_file=PATH in --rdzv-conf, or the variable LAUNCHER_ETCD_PASSWORD_FILE"
        raise UsageError(f"etcd user {user} is set, but no password", hint)
    if password and not user:
        hint = "set user=NAME in --rdzv-conf, or the variable LAUNCHER_ETCD_USER"
        raise UsageError("an etcd password is set, but no user", hint)
    return Credentials(user, password, "", secret)


def find_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return which of them are set, for messages: name -> variable, without the values."""
    return {name: variable for name in NAMES for variable in (name, f"{name}_FILE") if environ.get(variable)}


def _read_value(name: str, environ: Mapping[str, str]) -> str:
    text, path = environ.get(name, ""), environ.get(f"{name}_FILE", "")
    if text and path:
        raise UsageError(
            f"{name} and {name}_FILE are both set", f"unset {name}, which other users can read more easily"
        )
    return _read_file(f"{name}_FILE", path) if path else text


def _read_file(origin: str, path: str) -> str:
    """Return the file's one line."""
    try:
        with open(path, "rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
        text = content.decode().rstrip("\r\n")
    except OSError as error:
        raise UsageError(f"{origin}={path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{origin}={path} is not text") from None
    if not text or len(content) > _FILE_BYTES_MAX or "\n" in text:
        raise UsageError(f"{origin}={path} must contain one line of text")
    return text
