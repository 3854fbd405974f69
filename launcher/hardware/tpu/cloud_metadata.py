"""The slice of a Cloud TPU machine without Kubernetes, read from Google's metadata server.

The result has the names of the variables that GKE sets, so that other modules read one format. The server is queried
by its address, never by name, because a resolver may take seconds; only where a chip was found, since elsewhere no
server or a foreign one may answer; and within a limit that covers all queries together. An answer without the header
of Google's server is rejected.

Keys and forms: the clients of JAX (_src/clusters/cloud_tpu_cluster.py), torch_xla (_internal/tpu.py) and ray
(accelerators/tpu.py). Not tried on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from launcher.hardware.metadata_server import NoAnswer, Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.hardware.metadata_server import Server

ADDRESS = ("169.254.169.254", 80)
LIMIT_S = 1.0  # on its machine the server answers in milliseconds
SKIP = "TPU_SKIP_MDS_QUERY"  # libtpu's own variable for "do not query": GKE sets it, and so does JAX without a chip

_ATTRIBUTES = "/computeMetadata/v1/instance/attributes/"
_ANSWER_MAX = 1 << 20  # the hosts of the largest slices
_FLAVOR = "Metadata-Flavor"
# Of the attribute tpu-env, which has lines such as HOST_BOUNDS: '2,2,1'. Those of _SAME have the variable's name.
_VARIABLES_BY_KEY = {
    "ACCELERATOR_TYPE": "TPU_ACCELERATOR_TYPE",
    "CHIPS_PER_HOST_BOUNDS": "TPU_CHIPS_PER_HOST_BOUNDS",
    "HOST_BOUNDS": "TPU_HOST_BOUNDS",
    "NODE_ID": "TPU_NAME",
    "TOPOLOGY": "TPU_TOPOLOGY",
    "WORKER_ID": "TPU_WORKER_ID",
}
_VARIABLE_PREFIXES = ("TPU_", "MEGASCALE_")
# Separate attributes, for what tpu-env lacks.
_VARIABLES_BY_ATTRIBUTE = {
    "worker-network-endpoints": "TPU_WORKER_HOSTNAMES",
    "agent-worker-number": "TPU_WORKER_ID",
    "accelerator-type": "TPU_ACCELERATOR_TYPE",
    "instance-id": "TPU_NAME",
}


class TpuMetadata(NamedTuple):
    """`variables`: as GKE would have set them; none if the server has no TPU data. `reason`: a sentence."""

    variables: Mapping[str, str]
    reason: str


_cache: dict[tuple[str, int], TpuMetadata] = {}  # a machine's data do not change while it is up


def fetch_metadata(
    environ: Mapping[str, str], address: tuple[str, int] = ADDRESS, limit_s: float | None = None
) -> TpuMetadata:
    """Return the metadata server's data, queried once, within `limit_s` or LIMIT_S. Only where a chip was found."""
    if environ.get(SKIP):
        return TpuMetadata({}, f"{SKIP}={environ[SKIP]}: the metadata server is not asked")
    if address not in _cache:
        _cache[address] = _fetch_metadata(address, LIMIT_S if limit_s is None else limit_s)
    return _cache[address]


def merge_metadata(environ: Mapping[str, str], address: tuple[str, int] = ADDRESS) -> Mapping[str, str]:
    """Return these variables over what the metadata server has answered before; nothing is queried."""
    known = _cache.get(address)
    return {**known.variables, **environ} if known and not environ.get(SKIP) else environ


def _fetch_metadata(address: tuple[str, int], limit_s: float) -> TpuMetadata:
    server = Server(address, limit_s)
    try:
        variables = _parse_tpu_env(_fetch_attribute(server, "tpu-env"))
        for attribute, name in _VARIABLES_BY_ATTRIBUTE.items():
            text = "" if name in variables else _fetch_attribute(server, attribute).strip()
            if text and text.isprintable():
                variables[name] = text
    except NoAnswer as error:
        return TpuMetadata({}, f"the metadata server {error}")
    return TpuMetadata(variables, "by the metadata server" if variables else "the metadata server knows of no TPU")


def _parse_tpu_env(text: str) -> dict[str, str]:
    """Parse flat YAML: a name, a colon and a value that may be quoted, one a line."""
    variables = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        name = _VARIABLES_BY_KEY.get(key.strip(), key.strip())
        value = value.strip().strip("'\"")
        if value and value.isprintable() and name.startswith(_VARIABLE_PREFIXES):
            variables[name] = value
    return variables


def _fetch_attribute(server: Server, attribute: str) -> str:
    """Return one attribute; "" if it does not exist. Raises NoAnswer."""
    answer = server.ask(_ATTRIBUTES + attribute, {_FLAVOR: "Google"}, size_max=_ANSWER_MAX)
    if answer.headers.get(_FLAVOR.lower()) != "Google":
        raise NoAnswer("is not Google's")
    if answer.status not in (200, 404):
        raise NoAnswer(f"answers {answer.status} to {attribute}")
    return answer.text if answer.status == 200 else ""
