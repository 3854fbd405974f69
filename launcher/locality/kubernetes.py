"""Kubernetes: the labels of the node that this pod runs on.

Clouds and operators write rack, block and zone into labels of the Node object, which is in no namespace. A pod gets
them in one of two ways. The pod's definition provides them: by the downward API, as far as Kubernetes copies labels of
the node to the pod, or in a file that an init container has written. Or the agent queries the API server for its own
node, if the account of the pod may `get` nodes. Provided labels have precedence, and if they name switches the server
is not queried.

Under Ray the variable has the labels of the Ray node, among them those that Ray fills in by itself (ray/_raylet).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping

from launcher.hardware import api_server
from launcher.hardware.cloud_firmware import has_cloud_signature
from launcher.hardware.linux.sysfs import FileTree
from launcher.hardware.metadata_server import NoAnswer, Server, parse_object
from launcher.hardware.slice_identity import has_identity_variable
from launcher.locality.contract import Hints, Level
from launcher.locality.keys import TIERS, derive_levels, sort_levels

LABELS, LABELS_FILE = "LAUNCHER_NODE_LABELS", "LAUNCHER_NODE_LABELS_FILE"
NODE_NAMES = ("NODE_NAME", "LAUNCHER_NODE_NAME")
"""The variables of spec.nodeName in a pod; the second is also meshrun's name of the node."""

LIMIT_S = 1.5
"""Less than all sources have together, so that an unresponsive server is named."""

_PODINFO = "/etc/podinfo"  # the mount point of a downward API volume in Kubernetes' own examples
_PODINFO_FILES = ("labels", "annotations")
_FILE_MAX = 1 << 20
_RULE = 'apiGroups [""], resources [nodes], verbs [get]'
# Only the object's metadata: a whole Node lists every image on the machine.
_ACCEPT = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_NODE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_ACCOUNT_NAME = re.compile(r"system:serviceaccount:[a-z0-9.:-]{1,320}")
_SIZE_MAX = 4 << 20


class Source:
    """`root`: the directory above /etc, /sys and /var, for tests."""

    name = "kubernetes"

    def __init__(self, *, root: str = "/") -> None:
        self._root = root

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        has_variable = any(environ.get(name) for name in (LABELS, LABELS_FILE, api_server.HOST_VARIABLE))
        return has_variable or FileTree(self._root).is_directory(api_server.ACCOUNT)

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        found: dict[str, Level] = {}
        told = [_merge_text(name, text, found) for name, text in self._read_label_texts(environ)]
        if not any(level in TIERS for level in found):
            try:
                labels = read_node_labels(environ, limit_s, self._root)
                told.append(_merge_labels("node label", "node labels", labels, found))
            except NoAnswer as error:
                told.append(str(error))
        if has_identity_variable(environ):
            found.pop("slice", None)  # from the TPU itself; the pool's other name would be a conflict
        zone = found.get("zone")
        if zone and zone.domain.isdecimal() and has_cloud_signature("azure", self._root):
            # Where Azure has no zones, its cloud provider writes the fault domain there (cloud-provider-azure, #10222).
            del found["zone"]
            told.append(f"zone {zone.domain} is a fault domain of Azure, not a zone")
        return Hints(sort_levels(found.values()), "; ".join(told))

    def _read_label_texts(self, environ: Mapping[str, str]) -> Iterator[tuple[str, str | OSError]]:
        """Yield name and text of everything that contains labels."""
        if environ.get(LABELS):
            yield LABELS, environ[LABELS]
        named = environ.get(LABELS_FILE)
        path = named or FileTree(self._root).resolve(_PODINFO)
        files = [os.path.join(path, file) for file in _PODINFO_FILES] if os.path.isdir(path) else [named]
        for file in files:
            if file and (file == named or os.path.exists(file)):
                try:
                    with open(file, encoding="utf-8", errors="replace") as opened:
                        yield file, opened.read(_FILE_MAX)
                except OSError as error:
                    yield file, error


def _merge_text(name: str, text: str | OSError, found: dict[str, Level]) -> str:
    if isinstance(text, OSError):
        return f"{name} cannot be read: {text.strerror}"
    try:
        return _merge_labels(f"{name}:", name, parse_labels(text), found)
    except NoAnswer as error:
        return f"{name}: {error}"


def _merge_labels(origin: str, called: str, labels: Mapping[str, str], found: dict[str, Level]) -> str:
    """Add the levels that labels name, and describe the result."""
    derived = derive_levels("kubernetes", labels, origin)
    for level in derived.levels:
        found.setdefault(level.name, level)
    return "; ".join((called if derived.levels else f"{called}: no label names a place", *derived.remarks))


# The labels of this pod's Node object, from the API server with the pod's own account.


def read_node_labels(environ: Mapping[str, str], limit_s: float, root: str = "/") -> dict[str, str]:
    """Return the labels by key. `root`: the directory above /var, for tests. Raises NoAnswer with a whole clause."""
    account = FileTree(root).resolve(api_server.ACCOUNT)
    node = next((environ[name] for name in NODE_NAMES if environ.get(name)), "")
    if not node:
        raise NoAnswer(f"{NODE_NAMES[0]} is not set from spec.nodeName, so the node's labels cannot be queried")
    if not _NODE.fullmatch(node):
        raise NoAnswer(f"{node[:60]!r} is not the name of a Kubernetes node")
    address = api_server.find_address(environ)
    headers = {"Authorization": f"Bearer {api_server.read_token(f'{account}/token')}", "Accept": _ACCEPT}
    tls = api_server.make_tls_context(f"{account}/ca.crt")
    try:
        server = Server(address, min(limit_s, LIMIT_S), tls)
        answer = server.ask(f"/api/v1/nodes/{node}", headers, size_max=_SIZE_MAX)
        if answer.status != 200:
            raise NoAnswer(_describe_refusal(answer.status, answer.text, node))
        metadata = parse_object(answer.text).get("metadata")
    except NoAnswer as error:
        raise NoAnswer(f"the API server {error}") from None
    return _keep_texts(metadata.get("labels") if isinstance(metadata, dict) else None)


def _describe_refusal(status: int, text: str, node: str) -> str:
    if status == 401:
        return "does not accept the token of the pod's service account"
    if status == 403:
        who = _ACCOUNT_NAME.search(text)
        return f"does not let {who[0] if who else 'this pod'} read its node: a ClusterRole with {_RULE} is missing"
    if status == 404:
        return f"knows no node {node}: {NODE_NAMES[0]} must be spec.nodeName"
    return f"answers {status}"


# Labels as text. A file of the downward API has a line for each label, `key="value"`, quoted as Go quotes strings. A
# variable, and a hand-written file, has `key=value`, separated by commas or lines. And the file of an init container
# that queried the API server is JSON: a Node object, or only its labels.

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"[, ]*')
_KEY = re.compile(r"([^=]*)=")
_COUNT_MAX = 10_000


def parse_labels(text: str) -> dict[str, str]:
    """Return labels by key; of a duplicate key the last. Raises NoAnswer: in none of these forms, and where."""
    if text.lstrip().startswith("{"):
        return _parse_json(text)
    found: dict[str, str] = {}
    for line in text.splitlines():
        _parse_line(line.strip(), found)
        if len(found) > _COUNT_MAX:
            raise NoAnswer(f"more than {_COUNT_MAX} labels")
    return found


def _parse_json(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise NoAnswer("it begins like JSON but is not valid") from None
    metadata = found.get("metadata")
    labels = metadata.get("labels", {}) if isinstance(metadata, dict) else found
    if not isinstance(labels, dict):
        raise NoAnswer("its labels are not a JSON object")
    return _keep_texts(labels)


def _keep_texts(labels: object) -> dict[str, str]:
    return {key: value for key, value in labels.items() if isinstance(value, str)} if isinstance(labels, dict) else {}


def _parse_line(line: str, found: dict[str, str]) -> None:
    at = 0  # an index rather than slicing: a line may be long
    while at < len(line):
        key = _KEY.match(line, at)
        if not key or not key[1].strip():
            raise NoAnswer(f"{line[at : at + 60]!r} is not KEY=VALUE")
        if line.startswith('"', key.end()):
            quoted = _QUOTED.match(line, key.end())
            if not quoted:
                raise NoAnswer(f"{line[at : at + 60]!r} ends within a value")
            value, at = _unquote(quoted[0].rstrip(", ")), quoted.end()
        else:
            comma = line.find(",", key.end())
            value, at = line[key.end() : comma if comma >= 0 else None], comma + 1 if comma >= 0 else len(line)
            if "$(" in value:  # Kubernetes' text for a variable that was not defined
                raise NoAnswer(f"{value[:60]} was not replaced: that variable must be defined before this one")
        found[key[1].strip()] = value.strip()


def _unquote(text: str) -> str:
    """Undo Go's strconv.Quote, whose escapes Python has, too."""
    return text[1:-1].encode("ascii", "backslashreplace").decode("unicode_escape", "replace")
