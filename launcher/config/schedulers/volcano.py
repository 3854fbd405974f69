"""Volcano's plug-in "pytorch" names the master's pod and counts the pods; its other plug-ins set too little for a job.

The workers of any launcher also have MASTER_ADDR, WORLD_SIZE and similar variables. They describe pods only if Volcano
lists the master among the hosts of its tasks, in variables such as VC_MASTER_HOSTS.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.config.options.readers import parse_integer
from launcher.config.schedulers.contract import Detection
from launcher.config.schedulers.pods import detect_group

_INDEX_ONLY = ("VC_TASK_INDEX",)


def detect(environ: Mapping[str, str], known_by: tuple[str, ...]) -> Detection | None:
    """Return the detection; None where the variables are not Volcano's."""
    if known_by == _INDEX_ONLY:
        reason = "VC_TASK_INDEX counts the pods of one task only; the plug-in pytorch says what a job has to know"
        return Detection(controller="Volcano", known_by=known_by, reason=reason)
    host, port = environ["MASTER_ADDR"], parse_integer(environ["MASTER_PORT"])
    lists = sorted(name for name in environ if name.startswith("VC_") and name.endswith("_HOSTS"))
    list_name = next((name for name in lists if host in environ[name].split(",")), "")
    if not list_name or port is None or not 0 < port < 65536:
        return None
    # The port that Volcano has opened is free: every round has a MASTER_PORT of its own.
    return detect_group(environ, (*known_by, list_name), "Volcano", "WORLD_SIZE", "RANK", "MASTER_ADDR", host, port)
