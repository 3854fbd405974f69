"""A cluster file as plain values: JSON or YAML, from disk or from stdin.

A user or a script writes such a file, so its errors are reported in a sentence with line and column. The size is
limited: parsed values need up to thirty times the memory of their text, and a file that was named by mistake may have
any size. A duplicate key is refused, where both formats would silently keep the last of the two.

YAML is read from its parser's events, not through a tree of its nodes, which would need a kilobyte per word.
"""

from __future__ import annotations

import json
import os
from typing import Any

from launcher.meshctl.plan.checks import format_value
from launcher.model.errors import UsageError

# 65,536 nodes, four times the largest cluster that plans are measured on, at 256 bytes each with a previous plan.
JSON_BYTES_MAX = 16 << 20
# YAML takes twenty times as long to read, up to a second per MiB; this is 16,384 nodes at 256 bytes.
YAML_BYTES_MAX = 4 << 20

_FORMS_HINT = "meshctl plan -h shows what can be written in the place of a file"


def read(name: str) -> Any:
    """Read the value in a file; "-" is stdin. Raises UsageError.

    The extension determines the format; without one, a text that begins with a brace or bracket is JSON.
    """
    if not name:
        raise UsageError("the name of a file is empty", "is a variable of the shell empty?")
    called = "stdin" if name == "-" else name
    data = _read_bytes(name)
    if data is None:
        raise _make_size_error(called, JSON_BYTES_MAX, "", None)
    text = _decode_text(data, called)
    if not text.strip():
        raise UsageError(f"{called} is empty", 'the least is {"nodes": [{"id": "h0", "devices": 8}]}')
    ending = os.path.splitext(name)[1].lower()
    if ending == ".json" or (ending not in (".yaml", ".yml") and text.lstrip()[0] in "{["):
        return _parse_json(text, called)
    if len(data) > YAML_BYTES_MAX:
        raise _make_size_error(called, YAML_BYTES_MAX, " of YAML", f"JSON may be up to {JSON_BYTES_MAX >> 20} MiB")
    return _parse_yaml(text, called)


def _read_bytes(name: str) -> bytes | None:
    """Return all of a file; None if that is above the limit."""
    try:
        with open(0 if name == "-" else name, "rb", closefd=name != "-") as file:
            data = file.read(JSON_BYTES_MAX + 1)
    except FileNotFoundError:
        raise UsageError(f"file {name} does not exist", _FORMS_HINT) from None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{'stdin' if name == '-' else f'file {name!r}'} cannot be read: {why}") from None
    return data if len(data) <= JSON_BYTES_MAX else None


def _make_size_error(name: str, bytes_max: int, of_what: str, hint: str | None) -> UsageError:
    limit = f"{bytes_max >> 20} MiB{of_what}"
    return UsageError(f"{name} is larger than {limit}, which is as much as is read", hint)


def _decode_text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        at = f"line {line}, column {column}"
        raise UsageError(f"{name} is no text: {at}: byte 0x{data[error.start]:02x} is no UTF-8") from None


class _DuplicateKeyError(ValueError):
    """A key occurs twice in one object."""


def _parse_json(text: str, name: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_make_object)
    except json.JSONDecodeError as error:
        what = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
        raise UsageError(f"{name} is no JSON: line {error.lineno}, column {error.colno}: {what}") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
    except _DuplicateKeyError as error:
        raise UsageError(f"{name}: {error}") from None
    except ValueError:  # Python parses no number of more than 4,300 digits
        raise UsageError(f"{name} holds a number with thousands of digits") from None


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _DuplicateKeyError(f"the key {twice!r} stands twice in one object")
    return found


def _parse_yaml(text: str, name: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(
            f"{name} is read as YAML, for which PyYAML is missing", "pip install 'meshrun[plan]', or write it as JSON"
        ) from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        return _YamlBuilder(loader, name).build()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _make_yaml_error(name, mark, error.problem or error.context or "not YAML") from None
    except yaml.YAMLError as error:  # a character that YAML forbids
        at = getattr(error, "position", 0) or 0
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        why = str(getattr(error, "reason", error))
        raise UsageError(f"{name} is no YAML: line {line}, column {column}: {why}") from None
    except (MemoryError, RecursionError):
        raise UsageError(f"{name} is nested too deeply") from None
    finally:
        loader.dispose()


def _make_yaml_error(name: str, mark: Any, what: str) -> UsageError:
    at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return UsageError(f"{name} is no YAML that can be used: {at}{what}")


class _YamlBuilder:
    """Builds values from one document's events. `_containers`: from the root to the container being filled."""

    def __init__(self, loader: Any, name: str) -> None:
        self._loader = loader
        self._name = name
        self._containers: list[tuple[Any, str | None]] = []  # container, its anchor
        self._keys: list[str | None] = []  # of each open mapping the key whose value comes next
        self._anchors: dict[str, Any] = {}
        self._scalars: dict[tuple[Any, ...], Any] = {}
        self._root: Any = None

    def build(self) -> Any:
        import yaml

        document_count = 0
        while self._loader.check_event():
            event = self._loader.get_event()
            if isinstance(event, yaml.DocumentStartEvent):
                document_count += 1
                if document_count > 1:
                    raise _make_yaml_error(self._name, event.start_mark, "a second document begins")
            elif isinstance(event, yaml.ScalarEvent):
                self._add_value(self._resolve_scalar(event), event, event.anchor)
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                self._open_container(event, {} if isinstance(event, yaml.MappingStartEvent) else [])
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                container, anchor = self._containers.pop()
                self._keys.pop()
                if anchor:
                    self._anchors[anchor] = container
            elif isinstance(event, yaml.AliasEvent):
                self._add_value(self._resolve_alias(event), event, None)
        return self._root

    def _open_container(self, event: Any, container: dict[str, Any] | list[Any]) -> None:
        self._add_value(container, event, None)
        self._containers.append((container, event.anchor))
        self._keys.append(None)

    def _add_value(self, value: Any, event: Any, anchor: str | None) -> None:
        """Add to the innermost container: as a key, as the value of the previous key, or as a list's next entry."""
        if anchor:
            self._anchors[anchor] = value
        if not self._containers:
            self._root = value
            return
        container = self._containers[-1][0]
        if isinstance(container, list):
            container.append(value)
            return
        key = self._keys[-1]
        if key is not None:
            container[key] = value
            self._keys[-1] = None
            return
        if not isinstance(value, str):
            raise _make_yaml_error(self._name, event.start_mark, "a key is no text")
        if value in container:
            raise _make_yaml_error(self._name, event.start_mark, f"the key {value!r} stands twice in one mapping")
        self._keys[-1] = value

    def _resolve_alias(self, event: Any) -> Any:
        if any(anchor == event.anchor for _, anchor in self._containers):
            raise _make_yaml_error(self._name, event.start_mark, f"*{event.anchor} stands inside what it names")
        if event.anchor not in self._anchors:
            raise _make_yaml_error(self._name, event.start_mark, f"*{event.anchor} names nothing before it")
        return self._anchors[event.anchor]

    def _resolve_scalar(self, event: Any) -> Any:
        """Text, number, truth value or None, by YAML's rules; equal words share one value, which saves memory."""
        import yaml

        known = (event.value, event.implicit, event.tag)
        if known not in self._scalars:
            tag = event.tag or self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
            if tag == "tag:yaml.org,2002:merge":
                raise _make_yaml_error(self._name, event.start_mark, "<< is not read, write the keys out")
            node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
            try:
                self._scalars[known] = self._loader.construct_object(node)
            except (ValueError, LookupError, TypeError, AttributeError):  # a date with a month 99; "!!bool x"
                raise _make_yaml_error(
                    self._name, event.start_mark, f"{format_value(event.value)} cannot be read"
                ) from None
        return self._scalars[known]
