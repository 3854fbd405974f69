"""The agent's side of --preload: when the fork server is started, and what is logged of it.

The supervisor starts a process that imports the modules once and forks the workers (`launcher.supervisor`). An import
takes a second or many, so it starts as early as possible: when the number of workers is known, for which libraries size
their thread pools. That is before this node detects its devices, or else right after, and always before it waits for a
health check, for the store or for other nodes. A round that starts earlier waits in the supervisor.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from msgspec import Struct

from launcher.config.config import Config
from launcher.model.console import log
from launcher.model.errors import UsageError
from launcher.model.node import Slot
from launcher.ranks.preload_spec import make_fork_server_spec, predict_slots
from launcher.supervisor import messages
from launcher.supervisor.handle import Supervisor

WAIT_NOTICE_S = 10.0  # a round that waits this long for the import is logged


class ForkServerClient(Struct, eq=False):
    """The fork server of this node, and its messages to the user."""

    config: Config
    supervisor: Supervisor
    marker: Mapping[str, str]
    """For its environment."""
    wake_at: float = math.inf
    """When to call `advance`."""
    _is_started: bool = False
    _importing_since: float | None = None
    _is_ready: bool = False

    @property
    def _modules(self) -> Sequence[str]:
        return self.config.workers.preload

    def start(self, slots: Sequence[Slot] = ()) -> None:
        """Start it, unless it runs: for these slots, or for what is known of them before devices are detected.

        Raises UsageError if workers cannot be bound to CPUs.
        """
        if self._is_started:
            return
        config, workers = self.config, self.config.workers
        if known := slots or predict_slots(config.devices.worker_count, workers, os.environ):
            self._is_started = True
            spec = make_fork_server_spec(workers, config.placement.grid, config.rendezvous.run_id, known, os.environ)
            self.supervisor.preload(spec.replace(env={**spec.env, **self.marker}))

    def expect_workers(self, now: float) -> None:
        """Note that workers are about to be forked from it."""
        if not self._is_ready:
            self.wake_at = now + WAIT_NOTICE_S

    def advance(self, now: float) -> None:
        """Log what workers wait for, once `wake_at` is reached."""
        if now < self.wake_at:
            return
        self.wake_at = math.inf
        so_far_s = WAIT_NOTICE_S if self._importing_since is None else now - self._importing_since
        what = f"the import of {self._format_modules()} (--preload)" if self._modules else "a Python (--standby)"
        log(f"the workers wait for {what}, which has taken {so_far_s:.0f} s so far")

    def take(self, report: messages.Report, now: float) -> UsageError | None:
        """Handle a report of the supervisor. Returns the error if this node cannot stay: preloading was refused."""
        match report:
            case messages.Preloading():  # repeated, if it was lost
                self._importing_since = now
            case messages.Preloaded(_, seconds, remarks):
                self._is_ready, self.wake_at = True, math.inf
                if self._modules:
                    them = "them" if len(self._modules) > 1 else "it"
                    what = f"preloaded {self._format_modules()} in {seconds:.1f} s"
                    log(f"{what}; workers are forked with {them} in memory")
                for remark in remarks:
                    log(remark)
            case messages.PreloadRefused(sentence, hint):
                return UsageError(sentence, hint)
            case messages.ForkServerLost(sentence):
                self._is_ready = False
                log(sentence)
            case messages.Spawned() | messages.RoundSwept():
                self.wake_at = math.inf
        return None

    def _format_modules(self) -> str:
        *names, last = self._modules
        return f"{', '.join(names)} and {last}" if names else last
