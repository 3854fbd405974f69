"""The slice of this TPU host, and the host's number in it: read from the variables that GKE, LWS or KubeRay set.

The hosts of a slice are wired in a fixed order. libtpu and JAX take a host's number from TPU_WORKER_ID and the list of
all of them from TPU_WORKER_HOSTNAMES, so ranks have to follow that order, and a slice that lacks a host cannot run.
MEGASCALE_ variables join slices: they say how many there are and which one this is.

These variables are foreign input and are validated. On a Cloud TPU machine without Kubernetes they are not set; the
metadata server has the same data there, see `cloud_metadata`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from launcher.hardware.tpu import slice_types
from launcher.model.errors import UsageError
from rendezvous.values import NamedTuple

WORKER_ID = "TPU_WORKER_ID"
HOSTNAMES = "TPU_WORKER_HOSTNAMES"
TYPE = "TPU_ACCELERATOR_TYPE"
HOST_BOUNDS = "TPU_HOST_BOUNDS"
PROCESS_BOUNDS = "TPU_PROCESS_BOUNDS"  # the newer name of the same
IDENTITY_VARIABLES = (WORKER_ID, HOSTNAMES)
"""Without one of these the slice is unknown."""

_HOSTS_MAX = 10_000
_NAME_MAX = 255


class SliceIdentity(NamedTuple):
    """`name` is the same on all hosts of a slice, and "" only where a slice of one host has none.

    `hostnames`: in the order of worker ids, none if they are not listed. `slice_id` and `slice_count`: what the job's
    controller says, 0 and 1 if it says nothing; a round may use fewer slices, in another order.
    """

    name: str
    worker_id: int
    host_count: int
    hostnames: tuple[str, ...] = ()
    slice_id: int = 0
    slice_count: int = 1

    @property
    def host_pattern(self) -> str:
        """The name of any host of the slice, {} for its worker id: "train-0-{}.train"; "" if there is no pattern.

        It replaces the whole list where that would be too long to send to every node.
        """
        for end in range(len(self.hostnames[0]) if self.hostnames else 0, 0, -1):
            start = end - 1
            if self.hostnames[0][start:end] == "0":
                pattern = f"{self.hostnames[0][:start]}{{}}{self.hostnames[0][end:]}"
                if len(pattern) <= _NAME_MAX and all(
                    format_host_name(pattern, index) == name for index, name in enumerate(self.hostnames)
                ):
                    return pattern
        return ""


def format_host_name(pattern: str, worker_id: int) -> str:
    return pattern.replace("{}", str(worker_id), 1)


def find_identity(environ: Mapping[str, str]) -> SliceIdentity | None:
    """Return this host's identity; None where it is unknown or contradictory."""
    return read_identity(environ)[0]


def read_identity(environ: Mapping[str, str]) -> tuple[SliceIdentity | None, str]:
    """Return this host's identity, and a sentence about its source, or why it is unknown."""
    if not any(environ.get(name) for name in IDENTITY_VARIABLES):
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
        raise UsageError(f"{counted_by} says that the slice has {host_count} hosts, and no {WORKER_ID} which this is")
    worker_id = _parse_number(environ, variable, 0)
    if worker_id >= host_count:
        raise UsageError(f"{variable}={worker_id} is not below the {host_count} of {counted_by}")
    slice_count = max(1, _parse_number(environ, "MEGASCALE_NUM_SLICES", 1))
    slice_id = _parse_number(environ, "MEGASCALE_SLICE_ID", 0)
    if slice_id >= slice_count:
        raise UsageError(f"MEGASCALE_SLICE_ID={slice_id} is not below MEGASCALE_NUM_SLICES={slice_count}")
    found = SliceIdentity(
        name=_find_name(environ, hostnames, host_count),
        worker_id=worker_id,
        host_count=host_count,
        hostnames=hostnames,
        slice_id=slice_id,
        slice_count=slice_count,
    )
    return found, f"{host_count} by {counted_by}, {variable} {worker_id}"


def _find_name(environ: Mapping[str, str], hostnames: tuple[str, ...], host_count: int) -> str:
    """Return the first listed host's name, which is unique to the slice; TPU_NAME may be that of a whole job."""
    names = [environ.get("HOSTNAME", "")] if host_count == 1 else [*hostnames[:1]]
    names.append(environ.get("TPU_NAME", ""))
    if host_count > 1:
        names.append(environ.get("MEGASCALE_SLICE_ID", ""))
    name = next((name.strip() for name in names if name.strip() and name.isprintable()), "")
    if host_count > 1 and not name:
        raise UsageError(f"nothing names this slice of {host_count} hosts: {HOSTNAMES} and TPU_NAME are not set")
    return name[:_NAME_MAX]


def _parse_hostnames(text: str) -> tuple[str, ...]:
    """Parse NAME,NAME,... or, as metadata servers have written it, NAME:ID:ADDRESS,..."""
    names = [part.strip() for part in text.split(",")] if text.strip() else []
    parts = [name.split(":") for name in names]
    # An address like fd00::1 has two colons as well, with nothing between them.
    names = [
        part[2] if len(part) == 3 and part[0] and part[1] else name for name, part in zip(names, parts, strict=True)
    ]
    if len(names) > _HOSTS_MAX:
        raise UsageError(f"{HOSTNAMES} lists {len(names)} hosts, more than {_HOSTS_MAX}")
    for name in names:
        if not name or len(name) > _NAME_MAX or not name.isprintable() or " " in name:
            raise UsageError(f"{HOSTNAMES} holds {name[:40]!r}, which is no name of a host")
    if len(set(names)) < len(names):
        twice = next(name for position, name in enumerate(names) if name in names[:position])
        raise UsageError(f"{HOSTNAMES} lists {twice} twice")
    return tuple(names)


def _count_hosts(environ: Mapping[str, str]) -> tuple[int, str]:
    """Return the number of hosts of the slice, if they are not listed, and the variable that says so."""
    for variable in (HOST_BOUNDS, PROCESS_BOUNDS):
        sides = environ.get(variable, "").split(",")
        if len(sides) == 3 and all(map(slice_types.is_side, sides)):
            return math.prod(map(int, sides)), variable
    if environ.get(TYPE):
        return slice_types.parse(environ[TYPE]).hosts, f"{TYPE}={environ[TYPE]}"
    raise UsageError(f"{WORKER_ID}={environ.get(WORKER_ID)}, but nothing says how many hosts the slice has")


def _parse_number(environ: Mapping[str, str], variable: str, default: int) -> int:
    text = environ.get(variable, "").strip()
    if not text:
        return default  # JAX also reads an empty MEGASCALE_ variable as "one slice"
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise UsageError(f"{variable}={text[:40]!r} is not a whole number from 0")
    return int(text)
