"""This node's stay in a job: from the first look at itself to its exit code, whatever happens in between."""

from __future__ import annotations

import os

from launcher.agent.node_ready import wait_until_ready
from launcher.config.config import Config
from launcher.logs.layout import LogLayout
from launcher.supervisor.handle import Supervisor

TYPE_CHECKING = False
SWEEP_LIMIT_S = 10.0  # as the agent's
if TYPE_CHECKING:
    from launcher.agent.startup.startup import Startup
    from launcher.hardware.linux.shared_page import SharedPage


def run(
    config: Config, supervisor: Supervisor, startup: Startup | None = None, shared_page: SharedPage | None = None
) -> int:
    """Run the job on this node and return the exit code. Raises UsageError for what cannot be started.

    `arrival`: what was done before the supervisor's fork so that this node can be one of several. `board`: made then,
    too.
    """
    exit_code = 1
    layout: LogLayout | None = None
    image = None
    try:
        if config.preload or config.standby:
            from launcher.agent.preload import ForkServerClient

            image = ForkServerClient(config, supervisor, startup.node_lock.environment if startup else None)
            image.start()
        entry = wait_until_ready(config, supervisor, startup, image)
        log_dir = os.devnull if config.logs_specs else config.log_dir  # a plug-in makes its own
        layout = LogLayout(log_dir=log_dir, run_id=config.run_id or os.urandom(8).hex())
        from launcher.agent.build import (
            build_agent,  # and all of the agent: an import that is ordered goes on meanwhile
        )

        exit_code = build_agent(config, supervisor, layout, startup, entry, shared_page, image).run()
    except KeyboardInterrupt:  # SIGINT, where --signals-to-handle leaves it out
        exit_code = 130
    finally:
        supervisor.close(SWEEP_LIMIT_S)
        if layout is not None:
            layout.remove_if_unused(has_succeeded=exit_code == 0)
    return exit_code
