"""One examination: a run's steps on this machine, and the findings of each.

The steps are those of a run, in another order, and a failure does not prevent the next: without workers the store is
still queried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.agent.membership import make_settings
from launcher.config.config import Config
from launcher.hardware.accelerators import slots
from launcher.meshctl.doctor import addresses, environment, machine_reader, probes, resources, sidecars, store
from launcher.meshctl.doctor.findings import Finding, Severity
from launcher.meshctl.doctor.machine import PlannedRun
from launcher.model import mesh as meshes
from launcher.model.errors import LauncherError, UsageError
from launcher.model.node import Slot


class ExaminationRequest(NamedTuple):
    """`rank`: of the environment to show, None for none. `node_count` None: as many as the options say."""

    rank: int | None = None
    node_count: int | None = None


class Examination:
    """`findings`: the problems. The other fields and the methods return parts of the document."""

    def __init__(self, config: Config, environ: Mapping[str, str], hostname: str, request: ExaminationRequest) -> None:
        self._config = config
        self._environ = environ
        self._hostname = hostname
        self._request = request
        self.findings: list[Finding] = []
        self.slots, self.reason = self._examine_workers()
        self.framework = probes.choose_framework(config, self.slots, environ)
        self.machine = machine_reader.read_machine(environ, config.log_dir)
        self.devices = self._examine_devices()
        self.network = self._examine_network()
        self.locality = self._examine_locality()
        self._node_count, self._world = self._plan_world()
        self.findings += probes.check_interpreter(config, environ)
        self._check_settings()
        self.environment = self._examine_environment()
        self._run_checks()
        self.store = self._examine_store()

    def _examine_workers(self) -> tuple[tuple[Slot, ...], str]:
        """Return the workers of a run and the reason, or why there can be none."""
        try:
            return slots.make_node_slots(self._config, self._environ)
        except LauncherError as error:
            self._add_stop("workers", error)
            return (), str(error)

    def _examine_devices(self) -> list[dict[str, Any]]:
        kinds = probes.examine_devices(self._config, self._environ)
        if self.slots:  # else the problem has been reported
            self.findings += probes.check_devices(kinds)
        return kinds

    def _examine_network(self) -> dict[str, Any]:
        """Return the interfaces, the advertised address, and the reason for it."""
        address, reason, findings = addresses.find_advertised_address(self._config)
        self.findings += findings
        return {
            "interfaces": [
                {**interface._asdict(), "addresses": list(interface.addresses)} for interface in self.machine.interfaces
            ],
            "rdma_devices": list(self.machine.rdma_devices),
            "address": address,
            "reason": reason,
        }

    def _examine_locality(self) -> dict[str, Any]:
        names = filter(None, (self._config.node_name, self._hostname, self.network["address"]))
        self.found_locality, shown, findings = probes.examine_locality(
            self._config, self.slots, self._environ, tuple(names)
        )
        self.findings += findings
        return shown

    def _plan_world(self) -> tuple[int, environment.PlannedWorld | None]:
        """Return the number of nodes, and their plan; None without one."""
        config, count = self._config, environment.choose_node_count(self._config, self._request.node_count)
        if not self.slots:
            return count, None
        try:
            if config.network is None and config.mesh is not None:
                meshes.require_fit(config.mesh, len(self.slots))
            return count, environment.plan_world(config, self.slots, count, self.found_locality)
        except UsageError as error:
            many = "" if count == 1 else f"{count} nodes like this one: "
            may_grow = config.network is not None and config.nodes_max is None
            level: Severity = "note" if may_grow and self._request.node_count is None else "stop"
            self.findings.append(Finding("placement", level, f"{many}{error}", "", error.hint or ""))
            return count, None

    def _check_settings(self) -> None:
        """Check whether the agreement's limits can be kept together."""
        try:
            make_settings(self._config)
        except UsageError as error:
            self._add_stop("options", error)

    def _examine_environment(self) -> dict[str, Any] | None:
        """Return the environment of the requested rank's worker; without a request that of rank 0 is tried.

        Raises UsageError for a rank that does not exist.
        """
        if self._world is None:
            return None
        rank = self._request.rank or 0
        share = environment.find_share(rank, self._world)
        try:
            maker = environment.make_worker_maker(self._config, self.slots, self._environ, self._hostname)
            shown = environment.compare_environment(self._config, maker, share, rank, self._environ)
        except LauncherError as error:
            self._add_stop("workers", error)
            return None
        remarks = [remark for remark in maker.list_remarks() if remark != self.framework["reason"]]
        self.findings += [Finding("start", "note", remark) for remark in remarks]
        if self._request.rank is None:
            return None
        return {
            "rank": shown.rank,
            "local_rank": shown.local_rank,
            "node": shown.node_index,
            "nodes": self._world.node_count,
            "world_size": self._world.size,
            "added": dict(shown.added),
            "changed": {name: {"from": old, "to": new} for name, (old, new) in shown.changed.items()},
            "unset": list(shown.unset),
        }

    def _run_checks(self) -> None:
        run = PlannedRun(
            worker_count=len(self.slots),
            accelerators=frozenset(device.kind for slot in self.slots for device in slot.devices) - {"cpu"},
            node_count=self._node_count,
            frameworks=tuple(self.framework["names"]),
            shutdown_timeout_s=self._config.shutdown_timeout_s,
            is_bound=self._config.numa_binding is not None,
            environ=self._environ,
        )
        for check in (*resources.CHECKS, *sidecars.CHECKS):
            self.findings += check(self.machine, run)
        if self._config.health_check:
            seen = f"{self._config.origins['health_check']} is not run by this command"
            self.findings.append(Finding("health-check", "note", seen, "a node that fails it does not join"))

    def _examine_store(self) -> dict[str, Any] | None:
        """Examine the store, if there is one in the network."""
        network = self._config.network
        if network is None:
            return None
        reached = store.check_store(self._config, network, self._environ)
        self.findings += reached.findings
        return {
            "kind": network.backend,
            "endpoints": list(network.endpoints),
            "tls": network.uses_tls,
            "state": reached.state,
            "sentence": reached.sentence,
            "served_by": reached.served_by,
            "version": reached.version,
            "rights": reached.rights,
            "seconds": reached.seconds,
        }

    def _add_stop(self, check: str, error: LauncherError) -> None:
        self.findings.append(Finding(check, "stop", str(error), "", error.hint or ""))
