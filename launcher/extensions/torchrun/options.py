"""torchrun's rendezvous parameters as options of this project.

torchrun passes the endpoint, the run's name, the numbers of nodes and the pairs of --rdzv-conf. They become the
options of the same names, and all that torchrun has no flag for (the mesh, the traffic, how long to wait before
growing) comes from LAUNCHER_ variables, parsed and refused by the same code as in a job of our own. torchrun's PET_
variables are its own: it has read them. It does not pass the number of workers that it starts on a node, which the
placement needs. That is `nproc` in --rdzv-conf, or the variable of --nproc-per-node. A node's locality may be set
there, too: `locality`, with / between the levels since a comma ends a pair, or @FILE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import structs
from msgspec.structs import replace

from launcher.config.config import Config, PlacementOptions, resolve
from launcher.config.options.command_line import ParsedArgs
from launcher.model.errors import UsageError
from rendezvous.records import UNNAMED_RUN
from rendezvous.settings import Settings

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

TORCHRUN_GRACE_S = 30.0  # from SIGTERM to SIGKILL when torchrun restarts its workers; no option changes it
UNLIMITED = 1_000_000  # torchrun's agents count restarts, each its own, and end the job when one has none left
_UNSET_TIMEOUT = 900  # torchrun's default in the settings of every backend
_NPROC = "nproc"
_LOCALITY = "locality"
_PET_NPROC = "PET_NPROC_PER_NODE"


def get_worker_count(config: Config) -> int | None:
    """Return how many workers torchrun starts on this node, None if nobody has said so: then it counts as one slot."""
    count = config.devices.worker_count
    return count if isinstance(count, int) else None


def read_options(parameters: RendezvousParameters, environ: Mapping[str, str]) -> Config:
    """Read what torchrun's command line says to this plug-in. Raises UsageError for invalid options."""
    endpoint, run_id = parameters.endpoint.strip(), parameters.run_id
    if not endpoint:
        raise UsageError(
            "--rdzv-backend meshrun needs --rdzv-endpoint", "set --rdzv-endpoint HOST:PORT,... to the etcd servers"
        )
    if run_id in ("", UNNAMED_RUN):
        sentence = "an etcd rendezvous needs --rdzv-id"
        raise UsageError(sentence, "use the same --rdzv-id on every node, and a different one for each run")
    conf = dict(parameters.config)
    if conf.get("timeout") == _UNSET_TIMEOUT and isinstance(conf["timeout"], int):
        del conf["timeout"]
    values = {
        "rdzv-backend": "etcd",
        "rdzv-endpoint": endpoint,
        "rdzv-id": run_id,
        "nnodes": f"{parameters.min_nodes}:{parameters.max_nodes}",
        "standalone": "0",
        "node-rank": "0",
    }
    if (place := conf.pop(_LOCALITY, None)) is not None:
        text = str(place)
        values["locality"] = text if text.startswith("@") else text.replace("/", ",")
    values |= _read_worker_count(conf.pop(_NPROC, None), environ.get(_PET_NPROC, ""))
    if parameters.local_addr:
        values["local-addr"] = parameters.local_addr
    if conf:
        values["rdzv-conf"] = ",".join(f"{key}={value}" for key, value in conf.items())
    own = {name: text for name, text in environ.items() if not name.startswith("PET_")}
    config = resolve(ParsedArgs(values, script="torchrun"), own, "python")
    if (count := get_worker_count(config)) is not None:
        return replace(config, placement=_require_whole_nodes(config.placement, str(count)))
    if config.placement.mesh is not None:
        raise UsageError(
            f"{config.placement.origins['mesh']}={config.placement.mesh}: the number of workers per node is not known",
            "add --rdzv-conf nproc=8 (the value of --nproc-per-node)",
        )
    return config


def adjust_settings(settings: Settings) -> Settings:
    """Return the agreement's limits where torchrun runs the workers.

    It counts restarts itself, for each agent separately, so nothing here may end the job before it does, or quarantine
    a node for workers' failures that were perhaps another's: torchrun does not report what failed. torchrun also
    decides how long stopping takes.
    """
    return structs.replace(
        settings,
        max_restarts=UNLIMITED,
        no_progress_rounds=UNLIMITED,
        quarantine_failures=UNLIMITED,
        restart_grace_s=TORCHRUN_GRACE_S,
        shutdown_timeout_s=TORCHRUN_GRACE_S,
    )


def _read_worker_count(given: object, pet: str) -> dict[str, str]:
    """Return --nproc-per-node, if it is known as a number."""
    if given is None:
        return {"nproc-per-node": pet} if pet.isascii() and pet.isdigit() else {}
    text = str(given)
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UsageError(f"--rdzv-conf: {_NPROC}={text} is not a number of workers")
    return {"nproc-per-node": text}


def _require_whole_nodes(options: PlacementOptions, count: str) -> PlacementOptions:
    """Require whole nodes: torchrun starts all workers of a node or none, so the placement must not divide one."""
    if options.texts.get("unit", count) != count:
        raise UsageError(
            f"{options.origins['unit']}={options.texts['unit']}: torchrun assigns ranks to whole "
            f"nodes, of {count} workers here",
            "leave it out",
        )
    return replace(options, texts={**options.texts, "unit": count})


BACKEND = "meshrun"
