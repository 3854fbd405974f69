"""Google's metadata server: the zone, and for some machines block, sub-block and host.

Only machines for accelerators and some for HPC have a position below the zone, and only where they were placed
compactly or reserved. It is an attribute in one of two spellings; both occur in public code that reads them, neither in
Google's documentation. Under GKE a proxy of GKE's may answer instead, which has the zone and hides attributes; then the
node's labels have the position.
"""

from __future__ import annotations

from launcher.hardware.metadata_server import HttpResponse, NoAnswer, Server, parse_object, strip_text
from launcher.locality.sources.cloud import CloudSource

_FLAVOR = "Metadata-Flavor"
_PATH = "/computeMetadata/v1/"
_ZONE, _HOST = "instance/zone", "instance/attributes/physical_host"
_TOPOLOGY = "instance/attributes/physical_host_topology"


class Source(CloudSource):
    name = "gce"

    def ask(self, server: Server, values: dict[str, str]) -> str:
        _read_zone(server, values)
        if _read_topology(server, values) or _read_host(server, values):
            return ""
        return "no physical_host: this machine has no such place, or GKE hides it and the node's labels have it"


def _read_zone(server: Server, values: dict[str, str]) -> None:
    answer = _ask(server, _ZONE)
    zone = strip_text(answer.text).rpartition("/")[2] if answer.status == 200 else ""
    if zone:
        values[_ZONE] = zone
        values[f"{_ZONE}: before the last dash"] = zone.rpartition("-")[0]


def _read_topology(server: Server, values: dict[str, str]) -> bool:
    answer = _ask(server, _TOPOLOGY)
    if answer.status != 200:
        return False
    found = parse_object(answer.text)
    parts = {f"{_TOPOLOGY}: {part}": strip_text(found.get(part)) for part in ("cluster", "block", "subblock")}
    values.update(parts)
    return any(parts.values())


def _read_host(server: Server, values: dict[str, str]) -> bool:
    answer = _ask(server, _HOST)
    parts = strip_text(answer.text).strip("/").split("/")
    if answer.status != 200 or len(parts) != 3:
        return False
    values[f"{_HOST}: first part"], values[f"{_HOST}: second part"] = parts[:2]
    return True


def _ask(server: Server, key: str) -> HttpResponse:
    """Return the answer of Google's server, which identifies itself; an answer from any other server is refused."""
    answer = server.ask(_PATH + key, {_FLAVOR: "Google"})
    if answer.headers.get(_FLAVOR.lower()) != "Google":
        raise NoAnswer("is not Google's")
    if answer.status not in (200, 404):
        raise NoAnswer(f"answers {answer.status} to {key}")
    return answer
