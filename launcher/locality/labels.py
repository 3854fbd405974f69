"""Parses labels, in the formats in which a pod gets them.

A file of the downward API has a line for each label, `key="value"`, quoted as Go quotes strings. A variable, and a
hand-written file, has `key=value`, separated by commas or lines. And the file of an init container that queried the API
server is JSON: a Node object, or only its labels.
"""

from __future__ import annotations

import json
import re

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"[, ]*')
_KEY = re.compile(r"([^=]*)=")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))", re.DOTALL)
_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_COUNT_MAX = 10_000


class LabelsError(ValueError):
    """The text is in none of these forms; the message is a clause that says where."""


def parse_labels(text: str) -> dict[str, str]:
    """Return labels by key; of a duplicate key the last. Raises LabelsError."""
    if text.lstrip().startswith("{"):
        return _parse_json(text)
    found: dict[str, str] = {}
    for line in text.splitlines():
        _parse_line(line.strip(), found)
        if len(found) > _COUNT_MAX:
            raise LabelsError(f"more than {_COUNT_MAX} labels")
    return found


def _parse_line(line: str, found: dict[str, str]) -> None:
    at = 0  # an index rather than slicing: a line may be long
    while at < len(line):
        key = _KEY.match(line, at)
        if not key or not key[1].strip():
            raise LabelsError(f"{line[at : at + 60]!r} is not KEY=VALUE")
        if line.startswith('"', key.end()):
            quoted = _QUOTED.match(line, key.end())
            if not quoted:
                raise LabelsError(f"{line[at : at + 60]!r} ends within a value")
            value, at = _unquote(quoted[0].rstrip(", ")), quoted.end()
        else:
            comma = line.find(",", key.end())
            value, at = line[key.end() : comma if comma >= 0 else None], comma + 1 if comma >= 0 else len(line)
            if "$(" in value:  # Kubernetes' text for a variable that was not defined
                raise LabelsError(f"{value[:60]} was not replaced: that variable must be defined before this one")
        found[key[1].strip()] = value.strip()


def _unquote(text: str) -> str:
    """Undo Go's strconv.Quote."""

    def decode_escape(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code is None:
            return _LETTERS.get(match[4], match[4])
        number = int(code, 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\ufffd"

    return _ESCAPE.sub(decode_escape, text[1:-1])


def _parse_json(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise LabelsError("it begins like JSON and is none") from None
    metadata = found.get("metadata")
    labels = metadata.get("labels", {}) if isinstance(metadata, dict) else found
    if not isinstance(labels, dict):
        raise LabelsError("its labels are no JSON object")
    return {key: value for key, value in labels.items() if isinstance(value, str)}
