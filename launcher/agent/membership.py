"""This node, before it is a member of its job, and its membership in the agreement: its settings, its store.

On one machine the store is inside the agent and no other process can reach it. So the lease has no end and there is
no watchdog unless the user sets one: Ctrl-Z or a debugger must not kill a run. With other nodes both are needed, and
the store is in the network; see `cluster`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from launcher.config.config import Config, RendezvousOptions
from launcher.model.console import log
from launcher.model.errors import UsageError
from rendezvous.driver.driver import Driver
from rendezvous.errors import SettingsError
from rendezvous.settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from launcher.agent.preload import ForkServerClient
    from launcher.agent.signals import Termination, Wakeup
    from launcher.agent.startup.startup import Startup
    from launcher.hardware.linux.shared_page import SharedPage
    from launcher.logs.layout import LogLayout
    from launcher.logs.pump import OutputPump
    from launcher.model.node import Slot
    from launcher.parts.host import PartHost
    from launcher.parts.part import RunningRound
    from launcher.ranks.spec_builder import WorkerSpecBuilder
    from launcher.supervisor.handle import Supervisor
    from launcher.views.questions.messages import Question
    from launcher.views.sinks.event_file import EventSink
    from rendezvous.stores.server.server import StoreServer

PREFIX = "meshrun"


class NodeContext(Struct, frozen=True):
    """What there is of this node before it is a member."""

    config: Config
    supervisor: Supervisor
    startup: Startup | None
    """The preparation, before the supervisor's fork, of a node that is one of several."""
    shared_page: SharedPage
    """Created then, too."""
    fork_server: ForkServerClient | None
    """None without --preload and --standby."""
    termination: Termination
    wakeup: Wakeup
    parts: PartHost
    """With the parts that there are before the agent."""
    marker: Mapping[str, str]
    """Variables by which the next agent finds processes that this one has left."""


def make_settings(
    options: RendezvousOptions, max_restarts: int, shutdown_timeout_s: float, *, handles_sigterm: bool = True
) -> Settings:
    """Return the agreement's limits for this run. Raises UsageError for impossible ones, such as too short a lease.

    `handles_sigterm`: a SIGTERM ends workers. Where it does not, as under JAX, nothing waits for that when a round has
    failed; a stop that leaves time to save is another matter.
    """
    # docs/internals/decisions/agreement.md#0004-endless-lease-in-a-private-store
    no_lease = math.inf if options.network is None else DEFAULTS.lease_ttl_s
    try:
        return Settings(
            lease_ttl_s=no_lease if options.lease_ttl_s is None else options.lease_ttl_s,
            max_restarts=max_restarts,
            shutdown_timeout_s=shutdown_timeout_s,
            restart_grace_s=min(DEFAULTS.restart_grace_s, shutdown_timeout_s) if handles_sigterm else 0.0,
            **options.settings,  # type: ignore[arg-type]  # the options have parsed each by its field's type
        )
    except SettingsError as error:
        raise UsageError(f"{options.origins['lease_ttl_s']}: {error}", error.hint) from None


class NodeMembership(Struct, eq=False):
    """This node's membership of the job. Close it when the agent has ended."""

    driver: Driver
    locality: tuple[tuple[str, str], ...] = ()
    """The node's place in the network, (level, domain) pairs, outermost first."""
    elastic_max: int | None = None
    """The largest size of the elastic axis, None for no limit."""
    server: StoreServer | None = None
    """Of the store, if this agent serves it."""
    remarks: tuple[str, ...] = ()
    """About the whole job, for the node that leads it first to say."""

    def log_remarks(self) -> None:
        """Log the remarks if this node leads the job, and none has before it; once."""
        if self.remarks and self.driver.machine.is_leader and not self.driver.machine.has_taken_over:
            for remark in filter(None, self.remarks):
                log(remark)
            self.remarks = ()

    def close(self) -> None:
        """Close everything, the store that others may need last."""
        self.driver.close(self.driver.machine.settings.call_limit_s)
        if self.server is not None:
            self.server.close()


def read_clock() -> float:
    """Return seconds that also pass while the machine sleeps; never compared with another machine's."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def draw_random() -> float:
    """Return a random number in [0, 1)."""
    return int.from_bytes(os.urandom(6), "big") / 2**48


Ask = Callable[["Question", float], bytes]
"""Asks this agent from another of its threads, as other processes do. Raises OSError."""


class PartContext(NodeContext, frozen=True, kw_only=True):
    """What parts may look at. None of it is theirs to change but `parts` and `sinks`, before the first round."""

    layout: LogLayout
    host: str
    slots: Sequence[Slot]
    reason: str
    """Explains the number of slots."""
    pump: OutputPump | None
    spec_builder: WorkerSpecBuilder
    membership: NodeMembership
    running: RunningRound
    sinks: list[Callable[[], EventSink]]
    """Make what events go to, once there are any; extensions add theirs."""
