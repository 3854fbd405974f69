"""Removes secrets from a text that a person is about to show to others.

There are three ways to find one. The value of a variable whose name says that it is secret, and the content of a file
that a variable of meshrun names, are removed wherever they are, in a traceback for instance. Options, assignments and
URLs show where their passwords are. Keys of well-known services begin with letters of their own. None of these finds a
password that a script prints by itself, so the report asks its reader to look.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from launcher.config.scrub import NAMES, PRIVATE

REMOVED = "(removed)"
VALUE_MIN = 8
"""Letters of a value that is removed wherever it is: shorter ones, such as "1" or "enabled", are words too."""
_FILE_BYTES_MAX = 4096
# Not tokenizer, author or authority.
_WORDS = (
    "passw(?:or)?d|passphrase|secret|token(?!iz)|credential|(?:api|access|private|account|license|signing)[_-]?key|cookie|jwt|signature"
    "|connection_?string|auth(?:entication|orization)?(?![a-z])"
)
_SECRET_NAME = re.compile(rf"{_WORDS}|(?:^|_)(?:pass|pwd|key|sas|dsn)$", re.IGNORECASE)
_PLACE_NAME = re.compile(r"(?:file|path|dir|directory|sock|socket)$", re.IGNORECASE)
_DIRECTORIES = frozenset({"PWD", "OLDPWD"})
_NAME = rf"(?P<name>[\w.-]{{0,32}}(?:{_WORDS})[\w.-]{{0,32}})"  # bounded: a line may be a million letters long
_VALUE = r"""["']?(?P<value>(?<=")[^"\n]+|(?<=')[^'\n]+|[^\s"',;&]+)"""  # to its closing quote, if there is one
_ASSIGNMENTS = (
    re.compile(rf"{_NAME}[=:](?!//){_VALUE}", re.IGNORECASE),
    re.compile(rf"--{_NAME}[\"']?,?\s+{_VALUE}", re.IGNORECASE),  # of a command line, or of a list of its words
    re.compile(rf"[\"']{_NAME}[\"']\s*:\s*(?=[\"']){_VALUE}", re.IGNORECASE),
    re.compile(rf"^[ \t-]*{_NAME}:[ \t]+{_VALUE}[\"']?[ \t]*$", re.IGNORECASE | re.MULTILINE),
    re.compile(rf"\bx-{_NAME}:\s+{_VALUE}", re.IGNORECASE),  # a header
    re.compile(r"\b(?P<name>authorization\W{1,4}\w+|bearer)\s+(?P<value>[\w.~+/=-]{8,})", re.IGNORECASE),
    re.compile(rf"[?&](?P<name>sig)={_VALUE}"),  # Azure
    re.compile(r"\w(?P<name>://)(?P<value>[^\s/@\"']+)@"),
)
_KEYS = re.compile(
    r"\b(?:hf_|sk-|gh[opsur]_|github_pat_|glpat-|xox[abprs]-|AKIA|ASIA|AIza|eyJ)[\w.-]{12,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)


def find_secrets(environ: Mapping[str, str], files: Iterable[str] = ()) -> list[str]:
    """Return the values of secret variables, and the contents of files, of meshrun's variables too; the longest first.

    Each with the form that it has in JSON. A file that cannot be read has no secret that this user could show.
    """
    found = {text for name, text in environ.items() if _is_secret(name, text)}
    found.update(_read_secret(path) for path in (*files, *(environ.get(f"{name}_FILE", "") for name in NAMES)))
    forms = {form for text in found for form in (text, json.dumps(text)[1:-1])}
    return sorted((form for form in forms if len(form) >= VALUE_MIN), key=len, reverse=True)


def _read_secret(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_FILE_BYTES_MAX).decode(errors="replace").strip()
    except (OSError, ValueError):
        return ""


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text without these secrets, nor others that can be recognised."""
    for secret in secrets:
        text = text.replace(secret, REMOVED)
    for pattern in _ASSIGNMENTS:
        text = pattern.sub(_remove_value, text)
    return _KEYS.sub(REMOVED, text)


def show_variable(name: str, text: str, secrets: Iterable[str] = ()) -> str:
    """Return the value of a variable as it may be shown."""
    return REMOVED if _is_secret(name, text) else redact(text, secrets)


def _is_secret(name: str, text: str) -> bool:
    if _is_place(name, text) or name in _DIRECTORIES:
        return False
    return bool(text) and (name in PRIVATE or _SECRET_NAME.search(name) is not None)


def _is_place(name: str, text: str) -> bool:
    """Whether the value only says where a secret is."""
    return _PLACE_NAME.search(name) is not None and text.startswith(("/", "./", "../", "~"))


def _remove_value(found: re.Match[str]) -> str:
    """Replace the value; not the name of a variable, as in doctor's own list of secrets."""
    value = found["value"]
    if value in PRIVATE or _is_place(found["name"], value):
        return found[0]
    start, end = found.start("value") - found.start(), found.end("value") - found.start()
    return f"{found[0][:start]}{REMOVED}{found[0][end:]}"
