"""The variables that PaddlePaddle reads, so that `paddle.distributed.init_parallel_env()` works in any script.

Paddle names its own launcher's variables: a worker's number and their count, an endpoint for each worker, and the one
at which rank 0 serves the store (paddle/distributed/parallel.py and phi/core/distributed/store/store_utils.cc of
3.3.1). The store takes its address from PADDLE_MASTER alone, not from MASTER_ADDR. It is MASTER_ADDR:MASTER_PORT, which
is new in every round.

The store tells the workers where each listens, so the endpoints are names: Paddle counts them, finds the worker's own
among them, and makes the name of an NCCL group of them. All have the host of rank 0, and ports that count from its
port. Programs that connect to them, as parameter servers do, need Paddle's own launcher.

The store is reached by IPv4 alone: Paddle separates host and port at the first colon, and looks a name up as IPv4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.model.errors import UsageError
from launcher.model.node import Slot
from launcher.ranks.environments.contract import DeviceEnvironment, WorkerAssignment

BACKEND = "PADDLE_DISTRI_BACKEND"
SELECTED_GPUS = "FLAGS_selected_gpus"
_GPU_KINDS = ("nvidia", "amd")  # Paddle's builds for ROCm have the same flag
_PORT_COUNT = 65535
_WITHOUT = "use --framework torch to leave out Paddle's variables"
_TEXT_LENGTH_MAX = 128 * 1024 - len("PADDLE_TRAINER_ENDPOINTS=") - 1  # Linux, binfmts.h: MAX_ARG_STRLEN


class PaddleEnvironment(DeviceEnvironment, frozen=True, kw_only=True):
    """The variables of Paddle's workers."""

    def variables(self, assignment: WorkerAssignment, parent: Mapping[str, str]) -> dict[str, str]:
        """Return what to add to, or overwrite in, the parent's environment for this worker.

        Raises UsageError if rank 0 is at an IPv6 address, or if a variable cannot hold the endpoints of all workers.
        """
        host, port = assignment.master_addr, assignment.master_port
        if ":" in host:
            raise UsageError(
                f"Paddle cannot reach rank 0 at {host}: its store has no IPv6",
                f"give each node an IPv4 address with --local-addr or LAUNCHER_INTERFACE, or {_WITHOUT}",
            )
        if (length := assignment.world_size * len(f"{host}:{_PORT_COUNT},")) > _TEXT_LENGTH_MAX:
            raise UsageError(
                f"Paddle needs the endpoints of all workers in one variable: {length:,} bytes for "
                f"{assignment.world_size:,} workers at {host}, and Linux allows {_TEXT_LENGTH_MAX:,}",
                f"set --local-addr to an IPv4 address, which is shorter than a host name, or {_WITHOUT}",
            )
        endpoints = [f"{host}:{1 + (port - 1 + rank) % _PORT_COUNT}" for rank in range(assignment.world_size)]
        variables = {
            "PADDLE_TRAINER_ID": str(assignment.rank),
            "PADDLE_TRAINERS_NUM": str(assignment.world_size),
            "PADDLE_MASTER": endpoints[0],
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoints[assignment.rank],
            "PADDLE_GLOBAL_RANK": str(assignment.rank),
            "PADDLE_GLOBAL_SIZE": str(assignment.world_size),
            "PADDLE_LOCAL_RANK": str(assignment.local_rank),
            "PADDLE_LOCAL_SIZE": str(assignment.local_world_size),
            "PADDLE_RANK_IN_NODE": str(assignment.local_rank),
            "PADDLE_NNODES": str(assignment.group_world_size),
        }
        devices = assignment.slot.devices
        kind = devices[0].kind if devices else ""
        if kind in _GPU_KINDS:
            seen = self.find_visible_devices(assignment, parent)
            numbers = (number if seen.variables else device.index for number, device in enumerate(devices))
            variables[SELECTED_GPUS] = ",".join(map(str, numbers))
        elif kind == "cpu":
            variables[BACKEND] = parent.get(BACKEND) or "gloo"
        return variables

    def remarks(self, slots: Sequence[Slot], parent: Mapping[str, str], has_other_nodes: bool) -> list[str]:
        """Return a sentence where Paddle needs variables that are not set here."""
        kinds = {device.kind for slot in slots for device in slot.devices} - {"cpu", *_GPU_KINDS}
        if not kinds:
            return []
        return [f"Paddle needs {BACKEND} and FLAGS_selected_... for {min(kinds)} devices: set them in the script"]
