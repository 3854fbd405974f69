"""Controllers on Kubernetes with complete variables: the number of pods, this one's index, the first one's address.

LeaderWorkerSet sets them for any program. The others start one JAX process in each pod, with the address of the first
one; a launcher in its place needs the same. Their port is left to JAX.
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


# By the variable of the index, which differs for all.
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
    """Detect by these variables, all of which are set."""
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
    """Return `count_name` pods, the first of which, `host`, serves the store on `port`; the run is named after it."""
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
