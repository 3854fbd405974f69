"""`meshctl config`: where the store is, written down once, so that no command has to name it.

The file is $LAUNCHER_CONFIG, else meshrun/config.toml in $XDG_CONFIG_HOME or ~/.config. It counts only where neither a
flag nor a variable names an endpoint: what belongs to one store, such as a user or a token, is never sent to another.
A flag or variable for another setting wins over the file. meshrun itself does not read it.

It is TOML, of which only lines `name = "text"`, comments and empty lines are used: Python 3.10 cannot read TOML, and
nothing else is needed. Secrets are not in it, only the names of files that have them; a file that other users can
change is refused, since it decides where those secrets are sent.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping

import msgspec

from launcher.config.options.readers import Value
from launcher.config.options.table import BY_NAME
from launcher.model.errors import UsageError, find_shortage_hint, sanitize, suggest

OPTION_NAMES = ("rdzv-endpoint", "rdzv-backend", "rdzv-prefix", "rdzv-conf")
FILE_VARIABLES = {
    "etcd-password-file": "LAUNCHER_ETCD_PASSWORD_FILE",
    "store-token-file": "LAUNCHER_STORE_TOKEN_FILE",
    "job-secret-file": "LAUNCHER_JOB_SECRET_FILE",
}
NAMES = (*OPTION_NAMES, *FILE_VARIABLES)
ENDPOINT = "rdzv-endpoint"
_BYTES_MAX = 64 * 1024
_LINE = re.compile(r'\s*([A-Za-z0-9_-]+)\s*=\s*("(?:[^"\\]|\\.)*")\s*(?:#.*)?')


class ConfigFileError(UsageError):
    """The file cannot be used."""


def find_path(environ: Mapping[str, str]) -> str:
    """Return where the file is, or would be. Raises UsageError without a home directory."""
    if path := environ.get("LAUNCHER_CONFIG"):
        return path
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # the specification says to ignore such a value
        home = environ.get("HOME", "") or os.path.expanduser("~")
        if not os.path.isabs(home):
            raise UsageError("there is no home directory for the configuration file", "LAUNCHER_CONFIG=FILE names it")
        base = os.path.join(home, ".config")
    return os.path.join(base, "meshrun", "config.toml")


def read_config(path: str) -> dict[str, str]:
    """Return the settings of the file, none if there is no file. Raises UsageError for one that cannot be used."""
    label = f"configuration file {sanitize(path)}"
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(_BYTES_MAX + 1) if stat.S_ISREG(found.st_mode) else b""
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{label} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode) or len(data) > _BYTES_MAX:
        raise UsageError(f"{label} is not a file of at most {_BYTES_MAX:,} bytes")
    if found.st_uid not in (0, os.geteuid()):
        raise UsageError(f"{label} belongs to another user, and decides where your secrets are sent")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        hint = f"chmod 600 {sanitize(path)}"
        raise UsageError(f"{label} can be changed by other users (mode {found.st_mode & 0o777:o})", hint)
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{label} is not text in UTF-8") from None
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, text = _parse_line(line, f"{label}, line {number}")
            values[name] = text
    return values


def write_config(path: str, values: Mapping[str, str]) -> None:
    """Write the file anew, readable for its owner only. Raises UsageError if that cannot be done."""
    lines = [f"{name} = {msgspec.json.encode(text).decode()}\n" for name, text in values.items()]
    head = "# Where meshctl finds runs. Written by meshctl config set; secrets do not belong here.\n"
    part = f"{path}.{os.getpid()}.part"
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        with open(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write("".join((head, *lines)))
        os.replace(part, path)
    except OSError as error:
        if os.path.lexists(part):
            os.unlink(part)
        sentence = f"configuration file {sanitize(path)} cannot be written: {error.strerror}"
        raise UsageError(sentence, find_shortage_hint(error.errno)) from None


def check_setting(name: str, text: str) -> None:
    """Raise UsageError for an unknown name, or a text that the option does not accept."""
    _require_known(name, "meshctl config")
    if not text.isprintable():
        raise UsageError(f"{name}: {sanitize(text)} has control characters")
    if name in FILE_VARIABLES:
        if not os.path.isabs(text):
            raise UsageError(f"{name} must be an absolute path, not {sanitize(text)}")
        return
    Value(BY_NAME[name], text, f"meshctl config set {name}").read()


def apply_config(flags: Mapping[str, str], environ: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the environment with the file's settings as variables, and the file's path if they count, else "".

    `flags`: options of the command line that name the store, by name. Raises ConfigFileError.
    """
    if ENDPOINT in flags or any(environ.get(name) for name in BY_NAME[ENDPOINT].variables):
        return dict(environ), ""
    try:
        path = find_path(environ)
        values = read_config(path)
    except UsageError as error:
        raise ConfigFileError(str(error), error.hint) from None
    if ENDPOINT not in values:
        return dict(environ), ""
    added = {}
    for name, text in values.items():
        if name in FILE_VARIABLES:
            variable = FILE_VARIABLES[name]
            is_set = any(environ.get(one) for one in (variable, variable.removesuffix("_FILE")))
        else:
            variable = BY_NAME[name].variables[0]
            is_set = name in flags or any(environ.get(one) for one in BY_NAME[name].variables)
        if not is_set:
            added[variable] = text
    return {**environ, **added}, path


def _parse_line(line: str, where: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise UsageError(f'{where}: {sanitize(line.strip())} is not of the form name = "text"')
    name = match[1].replace("_", "-")
    _require_known(name, where)
    try:
        return name, msgspec.json.decode(match[2], type=str)
    except msgspec.MsgspecError:
        raise UsageError(f"{where}: {sanitize(match[2])} is not a text in double quotes") from None


def _require_known(name: str, where: str) -> None:
    if name not in NAMES:
        question = suggest(name, {one: one for one in NAMES})
        raise UsageError(f"{where}: unknown setting {sanitize(name)}", question or f"there are {', '.join(NAMES)}")
