"""One node of a job: from the first look at itself to its exit code, whatever happens in between.

A node that has lost one of its GPUs joins as fast as any other, fails first, and takes everybody's round with it. So a
node looks at itself between the supervisor's fork and its membership: are the devices there that were asked for, do
they answer, is there room for logs, and does the user's own --health-check pass? One that is not fit says why and looks
again, with pauses, up to --start-timeout. The others do not see it meanwhile.

Here is what every start pays for, which is next to nothing. `health_gate` is imported where there is something to wait
for, and the agent itself (`build`) once the node is fit.
"""

from __future__ import annotations

import os

from launcher.agent.signals import Termination, Wakeup
from launcher.config.config import Config
from launcher.config.options.command_line import sanitize
from launcher.hardware.accelerators.slots import make_node_slots
from launcher.hardware.linux.shared_page import SharedPage
from launcher.logs.layout import LogLayout
from launcher.model.errors import UnfitError
from launcher.model.node import Slot
from launcher.supervisor.handle import SWEEP_LIMIT_S, Supervisor
from rendezvous.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.agent.preload import ForkServerClient
    from launcher.agent.startup.startup import Startup


def run(
    config: Config, supervisor: Supervisor, startup: Startup | None = None, shared_page: SharedPage | None = None
) -> int:
    """Run the job on this node and return the exit code. Raises UsageError for what cannot be started.

    `startup`: what was done before the supervisor's fork so that this node can be one of several. `shared_page`: made
    then, too.
    """
    exit_code = 1
    layout: LogLayout | None = None
    fork_server = None
    try:
        if config.preload or config.standby:
            from launcher.agent.preload import ForkServerClient

            fork_server = ForkServerClient(config, supervisor, startup.node_lock.environment if startup else None)
            fork_server.start()
        entry = wait_until_ready(config, supervisor, startup, fork_server)
        log_dir = os.devnull if config.logs_specs else config.log_dir  # a plug-in makes its own
        layout = LogLayout(log_dir=log_dir, run_id=config.run_id or os.urandom(8).hex())
        from launcher.agent.build import build_agent  # and all of the agent: a preload goes on meanwhile

        exit_code = build_agent(config, supervisor, layout, startup, *entry, shared_page, fork_server).run()
    except KeyboardInterrupt:  # SIGINT, where --signals-to-handle leaves it out
        exit_code = 130
    finally:
        supervisor.close(SWEEP_LIMIT_S)
        if layout is not None:
            layout.remove_if_unused(has_succeeded=exit_code == 0)
    return exit_code


FREE_BYTES_MIN = 16 << 20
"""With less left a log disk is full: a worker's traceback, its last lines and a page of anything else still fit."""
FREE_FRACTION_MIN = 0.01  # a small disk is full later


class NodeReady(NamedTuple):
    """A fit node: its slots, why there are so many, and what has listened for signals since before it was looked at."""

    slots: tuple[Slot, ...]
    reason: str
    termination: Termination
    wakeup: Wakeup


def wait_until_ready(
    config: Config, supervisor: Supervisor, startup: Startup | None = None, fork_server: ForkServerClient | None = None
) -> NodeReady:
    """Return once this node is fit to join. The fork server, if there is to be one, is ordered once the devices are
    known.

    Raises UsageError for what no waiting mends, TemporaryError if it is not fit in time, and EarlyExitError if this
    node is told to go meanwhile.
    """
    departure = Termination(config)
    wakeup = Wakeup([*departure.signals, "SIGCHLD"])

    def examine() -> tuple[tuple[Slot, ...], str]:
        require_log_space(config)
        slots, reason = make_node_slots(config, os.environ)
        if fork_server is not None:
            fork_server.start(slots)
        return slots, reason

    if config.health_check is None:
        try:
            return NodeReady(*examine(), departure, wakeup)
        except UnfitError:
            pass  # it is looked at again
    from launcher.agent.health_gate import HealthGate

    place = startup.node_lock.environment if startup else {}
    return NodeReady(
        *HealthGate(config, supervisor, departure, wakeup, place, fork_server).wait_until_fit(examine),
        departure,
        wakeup,
    )


def require_log_space(config: Config) -> None:
    """Raise UnfitError if what is to be kept of this job has no place: the directory that was named for its logs."""
    directory = config.log_dir
    if not directory or directory == os.devnull or config.logs_specs is not None:
        return
    name = f"log directory {sanitize(directory)}"
    try:
        disk = os.statvfs(directory)
    except OSError as error:
        raise UnfitError(f"{name} cannot be looked at: {error.strerror}") from None
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise UnfitError(f"{name} is not writable", "see mount and ls -ld")
    is_root = os.geteuid() == 0  # a part of many disks is kept for root
    free = (disk.f_bfree if is_root else disk.f_bavail) * disk.f_frsize
    files = disk.f_ffree if is_root else disk.f_favail
    if free < min(FREE_BYTES_MIN, disk.f_blocks * disk.f_frsize * FREE_FRACTION_MIN):
        raise UnfitError(f"{name} is on a full disk: {free / (1 << 20):.1f} MiB are free", "see df -h")
    if disk.f_files and not files:  # some file systems do not count
        raise UnfitError(f"{name} is on a disk where no more files can be made", "see df -i")
