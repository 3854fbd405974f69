"""The floors of the house: imports go downwards only, and the lower floors touch no clock, file or socket.

A module belongs to exactly one floor. A new one fails the test until it is placed here.
"""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("rendezvous", "launcher")

# From the lowest to the highest. "*" stands for everything below a package.
FLOORS: dict[str, tuple[str, ...]] = {
    "values": (
        "rendezvous",
        "rendezvous.policy",
        "rendezvous.state",
        "rendezvous.driver",
        "rendezvous.leader",
        "rendezvous.member",
        "rendezvous.peers",
        "rendezvous.stores.addresses",
        "rendezvous.errors",
        "rendezvous.events",
        "rendezvous.records",
        "rendezvous.settings",
        "rendezvous.values",
        # The store's contract stands this low because its words (Put, Compare, Batch) are what protocol and
        # messages are made of. It imports nothing but errors.
        "launcher.config",
        "launcher.controllers",
        "launcher.controllers.*",
        "launcher.doctor.findings",
        "launcher.doctor.machine",
        "launcher.doctor.sizes",
        "launcher.errors",
        "launcher.locality",
        "launcher.locality.keys",
        "launcher.locality.labels",
        "launcher.locality.levels",
        "launcher.locality.merge",
        "launcher.locality.order",
        "launcher.locality.texts",
        "launcher.mesh",
        "launcher.node",
        "launcher.options",
        "launcher.options.legacy",
        "launcher.options.meeting",
        "launcher.options.network",
        "launcher.options.reading",
        "launcher.options.redirects",
        "launcher.options.sharing",
        "launcher.options.signals",
        "launcher.options.standing",
        "launcher.options.static",
        "launcher.options.table",
        "launcher.options.terms",
        "launcher.options.warm",
        "launcher.topology",
        "launcher.traffic",
        "rendezvous.stores.contract",
    ),
    "decisions": (
        "launcher.binding",
        "launcher.heartbeats",
        "launcher.doctor.resources",
        "launcher.doctor.surroundings",
        "launcher.health.pauses",
        "launcher.lifecycle",
        "launcher.overview.ranges",
        "launcher.overview.state",
        "launcher.placement",
        "launcher.placement.*",
        "launcher.reporting",
        "launcher.reporting.blame",
        "launcher.reporting.report",
        "launcher.roster",
        "launcher.roster.demand",
        "launcher.roster.description",
        "launcher.roster.ground",
        "launcher.roster.joined",
        "launcher.roster.numbering",
        "rendezvous.peers.liveness",
        "rendezvous.policy.quarantine",
        "rendezvous.policy.budget",
        "rendezvous.policy.candidates",
        "rendezvous.policy.charge",
        "rendezvous.policy.decide",
        "rendezvous.policy.decisions",
        "rendezvous.leader.election",
        "rendezvous.member.leave",
        "rendezvous.state.watch_cache",
        "rendezvous.state.state",
        "rendezvous.state.intents",
        "rendezvous.state.own_records",
        "rendezvous.state.life",
        "rendezvous.member.join",
        "rendezvous.state.request_queue",
        "rendezvous.leader.leader",
        "rendezvous.member.lease",
        "rendezvous.member.local_round",
        "rendezvous.state.key_cache",
        "rendezvous.member.outage",
        "rendezvous.leader.takeover",
        "rendezvous.machine",
        "rendezvous.policy.commands",
        "rendezvous.leader.commit",
        "rendezvous.leader.observe",
        "rendezvous.member.stale_watch",
        "rendezvous.peers.messages",
        "rendezvous.driver.store_health",
        "rendezvous.policy.view",
        "rendezvous.leader.guarded_write",
    ),
    "contracts": ("launcher.devices", "launcher.environments"),
    "hands": (
        "launcher.arrival",
        "launcher.arrival.addresses",
        "launcher.arrival.control_group",
        "launcher.arrival.limits",
        "launcher.arrival.namesakes",
        "launcher.arrival.predecessors",
        "launcher.arrival.probe",
        "launcher.binding.here",
        "launcher.binding.sysfs",
        "launcher.board",
        "launcher.console",
        "launcher.conversation",
        "launcher.credentials",
        "launcher.departure",
        "launcher.devices.*",
        "launcher.doctor.cgroups",
        "launcher.doctor.limited",
        "launcher.doctor.reading",
        "launcher.environments.*",
        "launcher.files",
        "launcher.forkserver",
        "launcher.forkserver.*",
        "launcher.health",
        "launcher.health.waiting",
        "launcher.interfaces",
        "launcher.locality.aws",
        "launcher.locality.azure",
        "launcher.locality.cloud",
        "launcher.locality.command",
        "launcher.locality.explicit",
        "launcher.locality.gather",
        "launcher.locality.gce",
        "launcher.locality.hints",
        "launcher.locality.kubernetes",
        "launcher.locality.metadata",
        "launcher.locality.node_object",
        "launcher.locality.nvlink",
        "launcher.locality.oci",
        "launcher.locality.signs",
        "launcher.locality.slice",
        "launcher.locality.slurm",
        "launcher.membership",
        "launcher.networked",
        "launcher.output",
        "launcher.output.*",
        "launcher.plugins",
        "launcher.preloading",
        "launcher.reporting.ending",
        "launcher.reporting.events",
        "launcher.reporting.failures",
        "launcher.reporting.memory_events",
        "launcher.reporting.narrator",
        "launcher.stores",
        "launcher.wakeup",
        "launcher.supervisor",
        "launcher.supervisor.*",
        "launcher.worker",
        "launcher.worker.*",
        "launcher.workers",
        "launcher.workers.as_main",
        "launcher.workers.commands",
        "launcher.workers.hearing",
        "launcher.workers.image",
        "launcher.workers.master_port",
        "launcher.workers.ports",
        "launcher.workers.timers",
        "rendezvous.driver.driver",
        "rendezvous.driver.worker_pool",
        "rendezvous.stores.foreign_listener",
        "rendezvous.peers.*",
        "rendezvous.stores",
        "rendezvous.stores.*",
        "rendezvous.testing",
        "rendezvous.testing.*",
    ),
    "agent": (
        "launcher.agent",
        "launcher.stay",
        "launcher.torchrun_handler",
        "launcher.torchrun_handler.*",
    ),
    "command": (
        "launcher",  # what is reached from it by name
        "launcher.__main__",
        "launcher.cli",
        "launcher.control",
        "launcher.control.*",
        "launcher.ctl",
        "launcher.doctor",
        "launcher.doctor.addresses",
        "launcher.doctor.detected",
        "launcher.doctor.document",
        "launcher.doctor.environment",
        "launcher.doctor.look",
        "launcher.doctor.store",
        "launcher.doctor.words",
        "launcher.functions",
        "launcher.functions.*",
        "launcher.help",
        "launcher.overview",
        "launcher.overview.changes",
        "launcher.overview.command",
        "launcher.overview.document",
        "launcher.overview.places",
        "launcher.overview.reading",
        "launcher.overview.watching",
        "launcher.overview.words",
        "launcher.preview",
        "launcher.preview.*",
    ),
}
PURE = ("values", "decisions")
IMPURE_MODULES = frozenset({"os", "time", "random", "asyncio", "threading", "socket", "subprocess", "logging"})


def sources(root: Path) -> dict[str, ast.Module]:
    """Every module of the packages under `root`: dotted name -> syntax tree."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text(), filename=str(path))
    return found


def floors_of(module: str) -> list[str]:
    exact = [floor for floor, names in FLOORS.items() if module in names]
    return exact or [floor for floor, names in FLOORS.items() if any(fnmatch.fnmatchcase(module, one) for one in names)]


def imports(module: str, tree: ast.Module, modules: Mapping[str, object]) -> Iterator[str]:
    """What a module imports, anywhere in it: inside functions and for type checkers too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; write the whole name"
            assert node.module is not None
            for alias in node.names:
                # `from package import name`: the name may be a module or something inside the package.
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if called in ("__import__", "import_module") and node.args and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)


def faults(modules: Mapping[str, ast.Module]) -> list[str]:
    """Every breach of the rules, as a sentence."""
    found: list[str] = []
    order = list(FLOORS)
    for module, tree in modules.items():
        floors = floors_of(module)
        if len(floors) != 1:
            found.append(f"{module} stands on {len(floors)} floors, not on one: place it in FLOORS")
            continue
        floor = floors[0]
        for imported in imports(module, tree, modules):
            package = imported.partition(".")[0]
            if floor in PURE and package in IMPURE_MODULES:
                found.append(f"{module} ({floor}) imports {imported}: pass in what it needs")
            if package not in PACKAGES:
                continue
            if package == "launcher" and module.partition(".")[0] == "rendezvous":
                found.append(f"{module} imports {imported}: agreement knows nothing of nodes")
            found.extend(
                f"{module} ({floor}) imports {imported} ({above}): imports go downwards"
                for above in floors_of(imported)
                if order.index(above) > order.index(floor)
            )
    return found


def test_every_module_keeps_to_its_floor() -> None:
    assert faults(sources(REPOSITORY)) == []


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("rendezvous.records", "import launcher.node", "agreement knows nothing of nodes"),
        ("rendezvous.policy.decide", "import time", "pass in what it needs"),
        ("launcher.mesh", "def late():\n    from os import path", "pass in what it needs"),
        ("launcher.placement.order", "import random", "pass in what it needs"),
        ("launcher.node", "from launcher.placement import plan", "imports go downwards"),
        ("launcher.devices", "from launcher.devices import cpu", "imports go downwards"),
        ("launcher.supervisor", "if TYPE_CHECKING:\n    from launcher import agent", "imports go downwards"),
        ("launcher.mesh", "__import__('launcher.cli')", "imports go downwards"),
        ("launcher.brand_new", "", "place it in FLOORS"),
    ],
)
def test_a_breach_is_found(module: str, source: str, fault: str) -> None:
    others = dict.fromkeys(("launcher.agent", "launcher.cli", "launcher.devices.cpu"), ast.parse(""))
    found = faults({**others, module: ast.parse(source)})
    assert len(found) == 1
    assert fault in found[0]


def test_an_import_downwards_is_no_breach() -> None:
    source = "import threading\nfrom rendezvous import errors\nfrom launcher.node import Node"
    assert faults({"launcher.devices.cpu": ast.parse(source)}) == []
