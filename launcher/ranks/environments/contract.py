"""What a worker must be told through its environment: the contract of a framework's plug-in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.model.node import Slot
from rendezvous.values import Protocol, dataclass


@dataclass(frozen=True, kw_only=True)
class WorkerAssignment:
    """One worker's place in one round. Ranks and sizes as torchrun names them; `group` is the node.

    `mesh_*` run from the outermost axis to the innermost; `mesh_groups` are the groups over several axes that were
    declared, as "dp+cp". `master_addr` and `master_port` are where rank 0
    listens in this round. `slice_index`: the TPU slice this node is in, of `slice_count`; 0 where there are none.
    """

    run_id: str
    round: int
    restart_count: int
    max_restarts: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group_rank: int
    group_world_size: int
    role: str
    role_rank: int
    role_world_size: int
    master_addr: str
    master_port: int
    mesh_axes: tuple[str, ...]
    mesh_shape: tuple[int, ...]
    mesh_coordinates: tuple[int, ...]
    slot: Slot
    error_file: str
    mesh_groups: tuple[str, ...] = ()
    slice_index: int = 0
    slice_count: int = 0


class Environment(Protocol):
    name: str

    def variables(self, assignment: WorkerAssignment, parent: Mapping[str, str]) -> dict[str, str]:
        """What to add to, or overwrite in, the parent's environment for this worker."""

    def remarks(self, slots: Sequence[Slot], parent: Mapping[str, str], has_other_nodes: bool) -> list[str]:
        """Sentences for the start. `slots`: this node's."""
