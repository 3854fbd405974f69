"""The slice of this TPU host, and the host's number in it.

The hosts of a slice are wired in a fixed order. libtpu and JAX take a host's number from TPU_WORKER_ID and the list of
all of them from TPU_WORKER_HOSTNAMES, so ranks have to follow that order, and a slice that lacks a host cannot run.
MEGASCALE_ variables join slices: they say how many there are and which one this is. GKE, LWS or KubeRay set these
variables; they are foreign input and are validated.

On a Cloud TPU machine without Kubernetes Google's metadata server has the same data. It is queried by its address,
never by name, because a resolver may take seconds; only where a chip was found, since elsewhere no server or a foreign
one may answer; and within a limit that covers all queries together. Keys and forms: the clients of JAX
(_src/clusters/cloud_tpu_cluster.py), torch_xla (_internal/tpu.py) and ray (accelerators/tpu.py). Not tried on hardware.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from launcher.hardware import slice_types
from launcher.hardware.metadata_server import LIMIT_S, LINK_LOCAL, NoAnswer, Server, ask_google
from launcher.model.errors import UsageError

WORKER_ID = "TPU_WORKER_ID"
HOSTNAMES = "TPU_WORKER_HOSTNAMES"
TYPE = "TPU_ACCELERATOR_TYPE"
HOST_BOUNDS = "TPU_HOST_BOUNDS"
PROCESS_BOUNDS = "TPU_PROCESS_BOUNDS"  # the newer name of the same
IDENTITY_VARIABLES = (WORKER_ID, HOSTNAMES)
"""Without one of these the slice is unknown."""

SKIP = "TPU_SKIP_MDS_QUERY"  # libtpu's own variable for "do not query": GKE sets it, and so does JAX without a chip

_HOSTS_MAX = 10_000
_NAME_MAX = 255
_ANSWER_MAX = 1 << 20  # the hosts of the largest slices
# Of the metadata server's attribute tpu-env, which has lines such as HOST_BOUNDS: '2,2,1'. Others have the variable's
# name and one of the prefixes.
_VARIABLES_BY_KEY = {
    "ACCELERATOR_TYPE": TYPE,
    "CHIPS_PER_HOST_BOUNDS": "TPU_CHIPS_PER_HOST_BOUNDS",
    "HOST_BOUNDS": HOST_BOUNDS,
    "NODE_ID": "TPU_NAME",
    "TOPOLOGY": "TPU_TOPOLOGY",
    "WORKER_ID": WORKER_ID,
}
_VARIABLE_PREFIXES = ("TPU_", "MEGASCALE_")
# Separate attributes, for what tpu-env lacks.
_VARIABLES_BY_ATTRIBUTE = {
    "worker-network-endpoints": HOSTNAMES,
    "agent-worker-number": WORKER_ID,
    "accelerator-type": TYPE,
    "instance-id": "TPU_NAME",
}


class SliceIdentity(Struct, frozen=True):
    """The TPU slice that this node is a host of."""

    name: str
    """The same on all hosts of a slice; "" only if a slice of one host has none."""
    worker_id: int
    host_count: int
    hostnames: tuple[str, ...] = ()
    """In the order of worker ids, none if they are not listed."""
    slice_id: int = 0
    """From the job's controller, 0 without one; a round may use fewer slices, in another order."""
    slice_count: int = 1
    """From the job's controller, 1 without one."""

    @property
    def host_pattern(self) -> str:
        """The name of any host of the slice, {} for its worker id: "train-0-{}.train"; "" if there is no pattern.

        It replaces the whole list where that would be too long to send to every node.
        """
        first = self.hostnames[0] if self.hostnames else ""
        for at in reversed([at for at, letter in enumerate(first) if letter == "0"]):
            pattern = f"{first[:at]}{{}}{first[at + 1 :]}"
            names = [pattern.replace("{}", str(index), 1) for index in range(len(self.hostnames))]
            if len(pattern) <= _NAME_MAX and names == list(self.hostnames):
                return pattern
        return ""


def has_identity_variable(environ: Mapping[str, str]) -> bool:
    return any(environ.get(name) for name in IDENTITY_VARIABLES)


def read_identity(environ: Mapping[str, str]) -> tuple[SliceIdentity | None, str]:
    """Return this host's identity, and a sentence about its source, or why it is unknown or contradictory."""
    if not has_identity_variable(environ):
        return None, f"neither {WORKER_ID} nor {HOSTNAMES} is set"
    try:
        return _parse_identity(environ)
    except UsageError as error:
        return None, str(error)


def _parse_identity(environ: Mapping[str, str]) -> tuple[SliceIdentity, str]:
    hostnames = _parse_hostnames(environ.get(HOSTNAMES, ""))
    host_count, counted_by = (len(hostnames), HOSTNAMES) if hostnames else _count_hosts(environ)
    variable = WORKER_ID if environ.get(WORKER_ID) or host_count == 1 else "JOB_COMPLETION_INDEX"
    if not environ.get(variable) and host_count > 1:
        raise UsageError(f"{counted_by} gives the slice {host_count} hosts, but {WORKER_ID} of this host is not set")
    worker_id = _parse_number(environ, variable, 0)
    if worker_id >= host_count:
        raise UsageError(f"{variable}={worker_id} is not below the {host_count} of {counted_by}")
    slice_count = max(1, _parse_number(environ, "MEGASCALE_NUM_SLICES", 1))
    slice_id = _parse_number(environ, "MEGASCALE_SLICE_ID", 0)
    if slice_id >= slice_count:
        raise UsageError(f"MEGASCALE_SLICE_ID={slice_id} is not below MEGASCALE_NUM_SLICES={slice_count}")
    name = _find_name(environ, hostnames, host_count)
    found = SliceIdentity(name, worker_id, host_count, hostnames, slice_id, slice_count)
    return found, f"{host_count} by {counted_by}, {variable} {worker_id}"


def _find_name(environ: Mapping[str, str], hostnames: tuple[str, ...], host_count: int) -> str:
    """Return the first listed host's name, which is unique to the slice; TPU_NAME may be that of a whole job."""
    names = [environ.get("HOSTNAME", "")] if host_count == 1 else [*hostnames[:1]]
    names.append(environ.get("TPU_NAME", ""))
    if host_count > 1:
        names.append(environ.get("MEGASCALE_SLICE_ID", ""))
    name = next((name.strip() for name in names if name.strip() and name.isprintable()), "")
    if host_count > 1 and not name:
        raise UsageError(f"this slice of {host_count} hosts has no name: {HOSTNAMES} and TPU_NAME are not set")
    return name[:_NAME_MAX]


def _parse_hostnames(text: str) -> tuple[str, ...]:
    """Parse NAME,NAME,... or, as metadata servers have written it, NAME:ID:ADDRESS,..."""
    names = []
    for name in (part.strip() for part in text.split(",") if text.strip()):
        parts = name.split(":")
        # An address like fd00::1 has two colons as well, with nothing between them.
        names.append(parts[2] if len(parts) == 3 and parts[0] and parts[1] else name)
    if len(names) > _HOSTS_MAX:
        raise UsageError(f"{HOSTNAMES} lists {len(names)} hosts, more than {_HOSTS_MAX}")
    for name in names:
        if not name or len(name) > _NAME_MAX or not name.isprintable() or " " in name:
            raise UsageError(f"{HOSTNAMES} holds {name[:40]!r}, which is not a host name")
    if len(set(names)) < len(names):
        twice = next(name for position, name in enumerate(names) if name in names[:position])
        raise UsageError(f"{HOSTNAMES} lists {twice} twice")
    return tuple(names)


def _count_hosts(environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the number of hosts of the slice, if they are not listed, and the variable that says so."""
    for variable in (HOST_BOUNDS, PROCESS_BOUNDS):
        sides = slice_types.parse_bounds(environ.get(variable, ""))
        if sides is not None:
            return math.prod(sides), variable
    if environ.get(TYPE):
        return slice_types.parse(environ[TYPE]).hosts, f"{TYPE}={environ[TYPE]}"
    raise UsageError(f"{WORKER_ID}={environ.get(WORKER_ID)}, but the number of hosts of the slice is not set")


def _parse_number(environ: Mapping[str, str], variable: str, default: int) -> int:
    text = environ.get(variable, "").strip()
    if not text:
        return default  # JAX also reads an empty MEGASCALE_ variable as "one slice"
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise UsageError(f"{variable}={text[:40]!r} is not a whole number from 0")
    return int(text)


class TpuMetadata(Struct, frozen=True):
    """`variables`: as GKE would have set them; none if the server has no TPU data. `reason`: a sentence."""

    variables: Mapping[str, str]
    reason: str


_cache: dict[tuple[str, int], TpuMetadata] = {}  # a machine's data do not change while it is up


def fetch_metadata(
    environ: Mapping[str, str], address: tuple[str, int] = LINK_LOCAL, limit_s: float | None = None
) -> TpuMetadata:
    """Return the metadata server's data, queried once, within `limit_s` or LIMIT_S. Only where a chip was found."""
    if environ.get(SKIP):
        return TpuMetadata({}, f"{SKIP}={environ[SKIP]}: the metadata server is not queried")
    if address not in _cache:
        _cache[address] = _query_metadata(Server(address, LIMIT_S if limit_s is None else limit_s))
    return _cache[address]


def merge_metadata(environ: Mapping[str, str], address: tuple[str, int] = LINK_LOCAL) -> Mapping[str, str]:
    """Return these variables over what the metadata server has answered before; nothing is queried."""
    known = _cache.get(address)
    return {**known.variables, **environ} if known and not environ.get(SKIP) else environ


def _query_metadata(server: Server) -> TpuMetadata:
    try:
        variables = _parse_tpu_env(_fetch_attribute(server, "tpu-env"))
        for attribute, name in _VARIABLES_BY_ATTRIBUTE.items():
            text = "" if name in variables else _fetch_attribute(server, attribute).strip()
            if text and text.isprintable():
                variables[name] = text
    except NoAnswer as error:
        return TpuMetadata({}, f"the metadata server {error}")
    return TpuMetadata(variables, "by the metadata server" if variables else "the metadata server lists no TPU")


def _fetch_attribute(server: Server, attribute: str) -> str:
    """Return one attribute; "" if it does not exist. Raises NoAnswer."""
    return ask_google(server, f"instance/attributes/{attribute}", attribute, _ANSWER_MAX) or ""


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
