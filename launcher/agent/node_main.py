"""One node of a job: from its own examination to its exit code.

A node that has lost one of its GPUs joins as fast as any other, fails first, and ends the round of all nodes. So a
node examines itself between the supervisor's fork and its membership: are the requested devices present, do they
answer, is there space for logs, and does the user's own --health-check pass? One that is not fit logs the reason and
repeats the examination, with pauses, up to --start-timeout. The other nodes do not see it meanwhile.

This module contains what every start costs, which is next to nothing. `health_gate` is imported when there is
something to wait for, and the agent itself (`build`) once the node is fit.
"""

from __future__ import annotations

import math
import os
import select
import signal
from typing import TYPE_CHECKING

from launcher import extensions
from launcher.agent.membership import NodeContext, read_clock
from launcher.agent.signals import Termination, Wakeup
from launcher.config.config import Config
from launcher.config.files import require_log_space
from launcher.config.options.readers import Value
from launcher.hardware.accelerators.slots import make_node_slots
from launcher.hardware.linux.shared_page import SharedPage
from launcher.logs.layout import LogLayout
from launcher.model.console import log
from launcher.model.errors import UnfitError
from launcher.model.node import Slot
from launcher.parts.host import PartHost
from launcher.parts.part import LATER_S, LatePart, Part
from launcher.supervisor.handle import SWEEP_LIMIT_S, Supervisor
from rendezvous.events import LeaveRequest, Start

if TYPE_CHECKING:
    from launcher.agent.startup.startup import Startup


def run(config: Config, supervisor: Supervisor, startup: Startup | None, shared_page: SharedPage) -> int:
    """Run the job on this node and return the exit code. Raises UsageError for a job that cannot start.

    `startup`, `shared_page`: as in NodeContext.
    """
    exit_code = 1
    layout: LogLayout | None = None
    marker = startup.node_lock.environment if startup else {}
    fork_server = None
    try:
        if config.workers.preload or config.workers.standby:
            from launcher.agent.preload import ForkServerClient

            fork_server = ForkServerClient(config, supervisor, marker)
            fork_server.start()
        termination = Termination(config.shutdown)
        wakeup = Wakeup([*termination.signals, signal.SIGCHLD])
        parts = PartHost(select.poll(), read_clock, log)
        asked = config.extensions.get("notices")
        if asked is None or asked.read() != "off":
            parts.add(_make_notices(asked, config.shutdown.shutdown_timeout_s, wakeup))
        for descriptor in (wakeup, supervisor):
            parts.poll.register(descriptor, select.POLLIN)
        node = NodeContext(config, supervisor, startup, shared_page, fork_server, termination, wakeup, parts, marker)
        slots, reason, is_usual = wait_until_ready(node)
        if not is_usual:
            log(reason)
        layout = LogLayout(
            log_dir=config.output.log_dir,
            run_id=config.rendezvous.run_id or os.urandom(8).hex(),
            temporary_dirs=supervisor.temporary_dirs,
            node=startup.name if startup else "",
        )
        from launcher.agent.build import build_agent  # and all of the agent: a preload continues meanwhile

        exit_code = build_agent(node, layout, slots, reason).run()
    except KeyboardInterrupt:  # SIGINT, where --signals-to-handle leaves it out
        exit_code = 130
    finally:
        supervisor.close(SWEEP_LIMIT_S)
        if layout is not None:
            layout.remove_needless(is_success=exit_code == 0)
    return exit_code


def wait_until_ready(node: NodeContext) -> tuple[tuple[Slot, ...], str, bool]:
    """Return what `make_node_slots` does, once this node is fit to join.

    With --preload, start the fork server once the devices are known. Raises UsageError for what waiting cannot fix,
    TemporaryError if it is not fit in time, and EarlyExitError if this node has to leave meanwhile.
    """
    config, startup = node.config, node.startup

    def examine() -> tuple[tuple[Slot, ...], str, bool]:
        require_log_space(config.output.log_dir)
        made = make_node_slots(config.devices, config.workers, os.environ)
        if startup is not None and startup.host_agents is not None:
            startup.host_agents.take_devices(made[0])
        if node.fork_server is not None:
            node.fork_server.start(made[0])
        return made

    if config.health.health_check is None:
        try:
            return examine()
        except UnfitError:
            pass  # it is examined again
    from launcher.agent.health_gate import HealthGate

    return HealthGate(node).wait_until_fit(examine)


def _make_notices(asked: Value | None, shutdown_timeout_s: float, wakeup: Wakeup) -> LatePart:
    """Return what reads the cloud's notices, a moment after the start: that takes 20 ms to import."""

    def make() -> Part | None:
        from launcher.hardware.cloud_firmware import find_cloud

        if asked is None and not find_cloud():
            return None  # as on most machines, which then load nothing more
        make_part = extensions.load_entry(extensions.NOTICES)
        part: Part | None = make_part(asked, shutdown_timeout_s, os.environ, wakeup.wake, read_clock)
        return part

    return LatePart("preemption notices", make, {Start: LATER_S, LeaveRequest: math.inf})
