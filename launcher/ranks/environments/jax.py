"""The variables that JAX reads, so that `jax.distributed.initialize()` works without arguments in any script.

JAX takes the coordinator's address from JAX_COORDINATOR_ADDRESS, but number and count of processes only from an
argument or from a cluster that it recognises (jax/_src/distributed.py and jax/_src/clusters of 0.10.2). The first one
that it tests for is Open MPI, by four variables. They are set here and in no other environment: libraries that use MPI
would mistake them for mpirun's. Where MPI is in use the four are left out; `launcher.worker.init_jax()` then passes JAX
the arguments. Where one process has all TPU chips of its host JAX takes number and count from the TPU's own variables,
which say the same; where several share a host, these do not number processes (cloud_tpu_cluster.py).

The process of rank 0 serves the coordinator at MASTER_ADDR:MASTER_PORT, which is new in every round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.model.node import Slot
from launcher.ranks.environments.contract import DeviceEnvironment, WorkerAssignment
from rendezvous.stores.addresses import join_address

COORDINATOR, BIND = "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS"
LOCAL_DEVICES = "JAX_LOCAL_DEVICE_IDS"
_GPU_KINDS = ("nvidia", "amd")  # JAX_LOCAL_DEVICE_IDS is about these
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")


class JaxEnvironment(DeviceEnvironment, frozen=True, kw_only=True):
    """The variables of JAX's workers."""

    mpi_reason: str = ""
    """Why MPI is in use, see `detect_mpi`; "" if it is not."""

    def variables(self, assignment: WorkerAssignment, parent: Mapping[str, str]) -> dict[str, str]:
        """Return what to add to, or overwrite in, the parent's environment for this worker."""
        variables = {COORDINATOR: join_address(assignment.master_addr, assignment.master_port)}
        if bind := _choose_bind_host(assignment.master_addr, parent):
            variables[BIND] = f"{bind}:{assignment.master_port}"
        devices = assignment.slot.devices
        kind = devices[0].kind if devices else ""
        if kind == "tpu" and assignment.local_world_size == 1:
            return variables
        seen = self.find_visible_devices(assignment, parent)
        if kind in _GPU_KINDS:
            ids = [str(number if seen.variables else device.index) for number, device in enumerate(devices)]
            given = parent.get(LOCAL_DEVICES, "") if assignment.local_world_size == 1 else ""
            if not given or (seen.variables and not set(given.split(",")) <= set(ids)):
                variables[LOCAL_DEVICES] = ",".join(ids)
        if not self.mpi_reason:
            # docs/internals/decisions/0026-open-mpi-variables-for-jax.md
            variables["OMPI_MCA_orte_hnp_uri"] = "meshrun"  # besides the address only its presence counts
            variables["OMPI_COMM_WORLD_SIZE"] = str(assignment.world_size)
            variables["OMPI_COMM_WORLD_RANK"] = str(assignment.rank)
            variables["OMPI_COMM_WORLD_LOCAL_RANK"] = str(seen.local_rank)
        return variables

    def remarks(self, slots: Sequence[Slot], parent: Mapping[str, str], has_other_nodes: bool) -> list[str]:
        """Describe what does not work as usual, and the alternative."""
        sentences = []
        if self.mpi_reason:
            sentences.append(
                f"{self.mpi_reason}, so workers get no OMPI_ variables, and jax.distributed.initialize() needs "
                "arguments: call launcher.worker.init_jax() instead"
            )
        proxies = sorted(name for name in parent if name.lower() in _PROXIES and parent[name])
        if proxies and has_other_nodes:
            sentences.append(
                f"{proxies[0]} is set, and JAX's processes may fail to connect through a proxy: add the nodes to "
                "no_proxy"
            )
        return sentences


def _choose_bind_host(master_addr: str, parent: Mapping[str, str]) -> str:
    """Return the host on which rank 0 listens; "" keeps JAX's default, which is every address.

    An address that is no loopback may not be this machine's own: there may be a name or a translated address in
    front of it. The user's own choice keeps its host; its port would be the same in every round.
    """
    if given := parent.get(BIND, ""):
        return given.rpartition(":")[0]
    if master_addr == "::1":
        return "[::1]"
    return master_addr if master_addr == "localhost" or master_addr.startswith("127.") else ""
