"""Amazon's metadata server, IMDSv2: region and zone. It has no switches.

The network nodes above a machine are available from an API that needs a permission (`aws ec2
describe-instance-topology`), and on Kubernetes from labels that AWS's controller sets. The placement group is what was
requested and its partition what fails together; neither implies nearness, so they are logged and not used.

A query needs a token, and the answer with the token must not cross more hops than the machine's owner allows: by
default one, too few for a container with a network of its own. It is then dropped, and the server seems not to answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.hardware.metadata_server import NoAnswer, Server, strip_text
from launcher.locality.sources.cloud import CloudSource

_OFF = "AWS_EC2_METADATA_DISABLED"  # Amazon's own libraries heed it
_TOKEN = "X-aws-ec2-metadata-token"
_LOCATION_KEYS = ("placement/region", "placement/availability-zone")
_GROUP, _PARTITION = "placement/group-name", "placement/partition-number"
_NO_SWITCHES = (
    "it knows no switches: `aws ec2 describe-instance-topology` and the node labels "
    "topology.k8s.aws/network-node-layer-N name them"
)


class Source(CloudSource):
    name = "aws"
    server_name = "IMDSv2"

    def explain_skip(self, environ: Mapping[str, str]) -> str:
        return f"{_OFF} is set" if environ.get(_OFF, "").lower() == "true" else ""

    def ask(self, server: Server, values: dict[str, str]) -> str:
        headers = {_TOKEN: _fetch_token(server)}
        for key in _LOCATION_KEYS:
            values[key] = _read_value(server, headers, key)
        return _NO_SWITCHES + _describe_placement(
            _read_value(server, headers, _GROUP), _read_value(server, headers, _PARTITION)
        )


def _fetch_token(server: Server) -> str:
    try:
        answer = server.ask("/latest/api/token", {f"{_TOKEN}-ttl-seconds": "60"}, method="PUT")
    except NoAnswer as error:
        raise NoAnswer(f"{error}; in a container its hop limit must be 2 or more") from None
    token = strip_text(answer.text)
    if answer.status != 200:
        off = ": it is turned off for this machine" if answer.status == 403 else ""
        raise NoAnswer(f"gives no token, it answers {answer.status}{off}")
    if not (token.isascii() and token.isprintable() and token and " " not in token):
        raise NoAnswer("gives a token that is none")
    return token


def _read_value(server: Server, headers: Mapping[str, str], key: str) -> str:
    """Return the value of a key; empty if there is none, as for machines in no placement group."""
    answer = server.ask(f"/latest/meta-data/{key}", headers)
    if answer.status not in (200, 404):
        raise NoAnswer(f"answers {answer.status} to {key}")
    return strip_text(answer.text) if answer.status == 200 else ""


def _describe_placement(group: str, partition: str) -> str:
    group = group if group.isprintable() else ""
    partition = f", partition {partition}" if partition.isdecimal() else ""
    return f"; the placement group {group[:60]}{partition} says what was asked for, not what is near" if group else ""
