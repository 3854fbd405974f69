"""Controllers on Kubernetes whose variables say everything: how many pods, which one this is, where the first one is.

LeaderWorkerSet says it for any program. The others start one JAX process in each pod, and tell it where the first one
is to be reached; a launcher in its place needs to know the same. Their port is left to JAX.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from launcher.config.options.command_line import DetectedValue
from launcher.config.options.network import SERVED_PORT
from launcher.config.options.readers import is_host, parse_integer
from launcher.config.schedulers.contract import Detection, describe_node
from rendezvous.stores.addresses import join_address


class _VariableNames(NamedTuple):
    controller: str
    count_name: str
    index_name: str
    address_name: str


# By the variable that has the index, in which they all differ.
_PODS = {
    names.index_name: names
    for names in (
        _VariableNames("LeaderWorkerSet", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"),
        _VariableNames("Kubeflow JAXJob", "NUM_PROCESSES", "PROCESS_ID", "COORDINATOR_ADDRESS"),
        _VariableNames("Kubeflow Trainer (JAX)", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"),
        _VariableNames("xpk", "NNODES", "NODE_RANK", "JAX_COORDINATOR_ADDRESS"),
    )
}


def detect(environ: Mapping[str, str], known_by: tuple[str, ...]) -> Detection:
    """What these variables, all of which are there, say."""
    names = next(_PODS[name] for name in known_by if name in _PODS)
    host = environ[names.address_name].partition(":")[0]
    return detect_group(environ, known_by, *names, host, SERVED_PORT)


def detect_group(
    environ: Mapping[str, str],
    known_by: tuple[str, ...],
    controller: str,
    count_name: str,
    index_name: str,
    address_name: str,
    host: str,
    port: int,
) -> Detection:
    """So many pods, the first of which, `host`, is to serve the store on `port`; the run is called after it."""
    count, index = parse_integer(environ[count_name]), parse_integer(environ[index_name])
    if count is None or index is None or not 0 <= index < count or not is_host(host):
        found = ", ".join(f"{name}={environ[name]!r}" for name in (count_name, index_name, address_name))
        reason = f"its variables cannot be read: {found}"
        return Detection(controller=controller, known_by=known_by, reason=reason, must_report=True)
    if count == 1:
        return Detection(controller=controller, known_by=known_by, reason="it has one pod")
    return Detection(
        controller=controller,
        known_by=known_by,
        reason=describe_node(index, count, host),
        values={
            "nnodes": DetectedValue(str(count), count_name),
            "node-rank": DetectedValue(str(index), index_name),
            "rdzv-backend": DetectedValue("c10d", address_name),
            "rdzv-endpoint": DetectedValue(join_address(host, port), address_name),
            "rdzv-id": DetectedValue(host, address_name),
        },
    )
