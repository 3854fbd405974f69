"""The agent: the loop that joins agreement, workers and signals on one node.

It waits for three things at once: reports of the warden, events of the agreement, and signals. Each is handed
to the machine that knows what it means (`rendezvous.protocol` for the job, `lifecycle` for the processes of a
round), and what that machine wants done is done here. Signal handlers do nothing but wake the loop.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from launcher import lifecycle
from launcher import mesh as meshes
from launcher.blame import is_peer_loss
from launcher.config import Config
from launcher.console import say, tell
from launcher.devices.choose import worker_devices
from launcher.errors import EXIT_FENCED, TemporaryError
from launcher.memory_events import MemoryEvents, is_out_of_memory
from launcher.mesh import Axis, Mesh
from launcher.node import Slot
from launcher.output.layout import LogLayout
from launcher.placement import Limits
from launcher.ports import HeldPort
from launcher.roster import Description, RosterPlanner, Share, describe, read_share
from launcher.warden import Exited, Gone, LeashExpired, Report, Spawned, SpawnFailed, Warden, WardenLost, WorkerSpec
from launcher.workers import WorkerMaker
from rendezvous import messages
from rendezvous.driver import Driver
from rendezvous.protocol import Protocol
from rendezvous.records import Spec, Verdict
from rendezvous.settings import Settings
from rendezvous.stores.memory import MemoryStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.output.pump import OutputPump
    from launcher.report import WorkerFailure

SWEEP_LIMIT_S = 10.0  # a killed process may hang in a driver; after this the agent ends and says so
DRAIN_LIMIT_S = 5.0  # for a console that takes no more
TAIL_LIMIT_S = 0.5  # for the last lines of a round that failed
_DEFAULT_MESH = Mesh(axes=(Axis(name="dp", size=None),))
_PREFIX = "meshrun"


def run(config: Config, warden: Warden) -> int:
    """Run the job on this node and return the exit code. Raises UsageError for what cannot be started."""
    try:
        return Agent(config, warden).run()
    except KeyboardInterrupt:  # SIGINT, where --signals-to-handle leaves it out
        return 130
    finally:
        warden.close(SWEEP_LIMIT_S)


class Agent:
    def __init__(self, config: Config, warden: Warden) -> None:
        self._config = config
        self._warden = warden
        self._host = os.uname().nodename
        self._wake_fd, wake_end = _wake_pipe()
        self._signals = _Signals(config.signals_to_handle, wake_end)
        slots, self._reason = worker_devices(config.worker_count, config.devices_per_worker, os.environ)
        mesh = config.mesh or _DEFAULT_MESH
        meshes.require_fit(mesh, len(slots))
        run_id = config.run_id or os.urandom(8).hex()
        self._layout = LogLayout(log_dir=config.log_dir, run_id=run_id)
        self._port = None if config.master_port is not None else HeldPort()
        self._maker = WorkerMaker(
            config=config,
            mesh=mesh,
            slots=slots,
            run_id=run_id,
            host=self._host,
            layout=self._layout,
            parent=os.environ,
        )
        self._settings = _settings(config)
        self._driver = self._new_driver(run_id, mesh, slots, wake_end)
        self._pump: OutputPump | None = None
        self._memory = MemoryEvents()
        self._oom_kills: int | None = None

        self._round: lifecycle.Round | None = None
        self._share: Share | None = None
        self._restart_count = 0
        self._failures: dict[int, WorkerFailure] = {}  # of the last round that failed, by local rank, first one first
        self._leave_signal: int | None = None
        self._end: messages.End | None = None
        self._lost: str = ""  # why the warden is gone

    def _new_driver(self, run_id: str, mesh: Mesh, slots: Sequence[Slot], wake_end: int) -> Driver:
        config = self._config
        planner = RosterPlanner(mesh, Limits(nodes_min=config.nodes_min, nodes_max=config.nodes_max))
        description = Description(
            slot_count=len(slots),
            address=config.master_addr or config.local_addr or "127.0.0.1",
            role=config.role,
            master_port=config.master_port or 0,
        )
        protocol = Protocol(
            settings=self._settings,
            # Nobody else reads the store of one machine, so nothing has to be compared with other agents.
            spec=Spec(mesh=str(mesh), limits=f"{config.nodes_min}:{config.nodes_max}", digest=""),
            node_name=self._host,
            boot_id="",
            description=describe(description),
            worker_port=self._port.number if self._port else 0,
            prefix=_PREFIX,
            run_id=run_id,
            sizer=planner.size,
            chance=_chance,
        )
        return Driver(
            protocol=protocol,
            store=MemoryStore(clock=_now),
            planner=planner.plan,
            clock=_now,
            wake=lambda: _wake(wake_end),
            is_local=True,
        )

    def run(self) -> int:
        tell(self._reason)
        if self._maker.captures:
            from launcher.output.pump import OutputPump

            self._pump = OutputPump(warn=tell)
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        poll.register(self._warden.fileno(), select.POLLIN)
        self._driver.submit(messages.Begin())
        try:
            while self._end is None:
                self._turn()
                if self._end is None:
                    poll.poll(_milliseconds(min(self._driver.wake_at, self._round_wake_at) - _now()))
                    _empty(self._wake_fd)
                    if self._lost:
                        poll.unregister(self._warden.fileno())
            return self._finish(self._end)
        finally:
            self._driver.close(self._settings.call_limit_s)
            if self._pump is not None:
                self._pump.close()

    @property
    def _round_wake_at(self) -> float:
        return self._round.wake_at if self._round is not None else math.inf

    def _turn(self) -> None:
        """Everything that has happened since the last time."""
        for signum in self._signals.taken():
            self._take_signal(signum)
        for report in self._warden.reports() if not self._lost else ():
            self._take_report(report)
        if self._round is not None and _now() >= self._round.wake_at:
            self._do(self._round, self._round.passed(_now()))
        # Looped, because what is done here (a spawn that fails, a round with nothing left) may go straight back.
        while actions := self._driver.run():
            for action in actions:
                self._carry_out(action)

    # --- what the agreement wants ---

    def _carry_out(self, action: messages.Action) -> None:
        match action:
            case messages.StartRound():
                self._start(action)
            case messages.StopRound(round, mode, _):
                if self._round is not None and self._round.round == round:
                    self._stop(self._round, mode)
            case messages.ExtendLeash(until):
                self._warden.extend_leash(until)
            case messages.Say(sentence):
                if self._config.nodes_max > 1:
                    tell(sentence)
            case messages.End():
                self._end = action

    def _start(self, start: messages.StartRound) -> None:
        share = read_share(start.assignment)
        if start.round > 1:
            used = f"{start.restart_count} of {self._config.max_restarts} restarts used"
            tell(f"round {start.round} starts with {_workers(len(share.ranks))}, {used}")
        self._share, self._restart_count = share, start.restart_count
        self._failures = {}
        self._round = lifecycle.Round(start.round, len(share.ranks))
        self._oom_kills = self._memory.oom_kill_count()
        self._warden.spawn(start.round, self._make(start, share))

    def _make(self, start: messages.StartRound, share: Share) -> list[WorkerSpec]:
        try:
            return self._maker.make(start.round, start.restart_count, share, self._pump)
        except OSError as error:
            raise TemporaryError(
                f"cannot prepare {_workers(len(share.ranks))}: {error.strerror}", "see ulimit -n"
            ) from error

    def _stop(self, round: lifecycle.Round, mode: str) -> None:
        if mode == "fence":
            self._do(round, round.kill())
            return
        signum = self._leave_signal if mode == "grace" and self._leave_signal else signal.SIGTERM
        self._do(round, round.stop(signum, self._settings.grace_s(mode), _now()))

    # --- what the warden says ---

    def _take_report(self, report: Report) -> None:
        round = self._round
        match report:
            case Spawned():
                pass
            case Exited(number, local_rank, pid, exit_code, at):
                if round is not None and round.round == number:
                    self._take_end(round, local_rank, pid, exit_code, at, None)
            case SpawnFailed(number, local_rank, sentence, error_number):
                if round is not None and round.round == number:
                    self._take_end(round, local_rank, 0, _spawn_exit_code(error_number), time.time(), sentence)
            case Gone(number):
                if round is not None and round.round == number:
                    self._do(round, round.gone())
            case LeashExpired():
                tell("the leash has run out: this node could not renew its membership, so its workers were killed")
                self._driver.submit(messages.LeashEnded())
            case WardenLost(sentence):
                self._take_loss(sentence)

    def _take_end(
        self, round: lifecycle.Round, local_rank: int, pid: int, exit_code: int, at: float, sentence: str | None
    ) -> None:
        is_echo = False
        if exit_code != 0:
            failure = self._failure(round, local_rank, pid, exit_code, at, sentence)
            is_echo = is_peer_loss(failure.message or "\n".join(failure.tail))
            self._failures.setdefault(local_rank, failure)
        known = len(round.failures)
        actions = round.ended(lifecycle.End(local_rank, exit_code, is_echo), _now())
        if exit_code != 0 and len(round.failures) == known:
            self._failures.pop(local_rank, None)  # it ended because it was told to
        self._do(round, actions)

    def _failure(
        self, round: lifecycle.Round, local_rank: int, pid: int, exit_code: int, at: float, sentence: str | None
    ) -> WorkerFailure:
        from launcher.output.error_file import read_error_file
        from launcher.report import WorkerFailure

        assert self._share is not None
        error_file = self._maker.error_file(round.round, self._restart_count, local_rank)
        message = read_error_file(error_file) if error_file else None
        return WorkerFailure(
            rank=self._share.ranks[local_rank],
            local_rank=local_rank,
            pid=pid,
            exit_code=exit_code,
            time=time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)),
            host=self._host,
            error_file=error_file if message is not None else None,
            message=message,
            tail=self._pump.tail(local_rank, "stderr") if self._pump else (),
            is_out_of_memory=is_out_of_memory(exit_code, self._oom_kills, self._memory.oom_kill_count()),
            sentence=sentence,
        )

    def _take_loss(self, sentence: str) -> None:
        """The warden is gone, and the kernel kills its workers. See that all are, then leave the job."""
        self._lost = sentence
        left = self._warden.kill_orphans(SWEEP_LIMIT_S)
        tell(f"{sentence}; its workers were killed" + (f", but {_pids(left)} would not go" if left else ""))
        self._driver.submit(messages.Leave(sentence, EXIT_FENCED))
        if self._round is not None:
            self._do(self._round, self._round.gone())

    # --- what the round wants ---

    def _do(self, round: lifecycle.Round, actions: list[lifecycle.Action]) -> None:
        for action in actions:
            match action:
                case lifecycle.Signal(signum):
                    self._warden.signal(round.round, signum)
                case lifecycle.Sweep():
                    self._warden.sweep(round.round)
                case lifecycle.TellSucceeded():
                    self._driver.submit(messages.RoundSucceeded(round.round))
                case lifecycle.TellFailed(cause):
                    self._tell_failed(round, cause)
                case lifecycle.TellStopped():
                    self._tell_stopped(round)

    def _tell_failed(self, round: lifecycle.Round, cause: lifecycle.End) -> None:
        import json

        failure = self._failures[cause.local_rank]
        tell(f"rank {failure.rank} (pid {failure.pid}) {_ending(failure)} in round {round.round}")
        # The cause comes first in the report, whoever ended before it.
        self._failures = {cause.local_rank: failure, **self._failures}
        exit_code = failure.exit_code if failure.exit_code > 0 else 128 - failure.exit_code
        text = json.dumps(failure.to_json())
        self._driver.submit(messages.RoundFailed(round.round, exit_code, cause.is_echo, text))

    def _tell_stopped(self, round: lifecycle.Round) -> None:
        if self._failures and self._pump is not None:
            self._pump.drain(TAIL_LIMIT_S)
            for local_rank, failure in self._failures.items():
                self._failures[local_rank] = replace(failure, tail=self._pump.tail(local_rank, "stderr"))
        self._round = None
        if self._port is not None:
            held, self._port = self._port, HeldPort()
            held.close()
        self._driver.submit(messages.RoundStopped(round.round, self._port.number if self._port else 0))

    # --- signals and the end ---

    def _take_signal(self, signum: int) -> None:
        if signum == signal.SIGCHLD:
            self._warden.reap()
        elif self._leave_signal is None:
            self._leave_signal = signum
            name = signal.Signals(signum).name
            tell(f"{name}: passing it to the workers, which have {self._config.shutdown_timeout_s:g} s")
            self._driver.submit(messages.Leave(f"stopped by {name}", 128 + signum))
        elif signum == signal.SIGINT and self._round is not None:
            tell("SIGINT again: killing the workers")
            self._do(self._round, self._round.kill())

    def _finish(self, end: messages.End) -> int:
        """Leave nothing behind, then say how it ended."""
        if self._round is not None and not self._lost:
            self._warden.sweep(self._round.round)
        self._warden.close(SWEEP_LIMIT_S)
        if self._pump is not None and not self._pump.drain(DRAIN_LIMIT_S):
            tell(f"some output could not be written within {DRAIN_LIMIT_S:g} s and is only in the log files")
        if end.verdict is not None and end.verdict.kind == "failure":
            self._report(end.verdict)
        elif end.exit_code == 0:
            self._layout.remove_if_unused()
        else:
            tell(end.reason)
        return end.exit_code

    def _report(self, verdict: Verdict) -> None:
        import json

        if not verdict.failure:
            tell(f"error: {verdict.reason}")
            return
        from launcher import report
        from launcher.output.error_file import pass_on_error_file

        root = report.WorkerFailure.from_json(json.loads(verdict.failure))
        own = self._failures.get(root.local_rank)
        is_own = own is not None and (own.host, own.pid, own.rank) == (root.host, root.pid, root.rank)
        root = own if is_own and own is not None else root
        others = [failure for failure in self._failures.values() if failure is not root]
        say(report.render(self._config.script, [root, *others], outcome=verdict.reason))
        target = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if target and root.error_file:
            try:
                pass_on_error_file(root.error_file, target, root.exit_code)
            except OSError as error:
                tell(f"cannot copy the failure to {target}: {error.strerror}")


class _Signals:
    """Signals are noted and wake the loop; what they mean is decided there."""

    def __init__(self, names: Sequence[str], wake_end: int) -> None:
        self._taken: list[int] = []
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for name in (*names, "SIGCHLD"):
            signal.signal(getattr(signal, name), lambda signum, frame: self._taken.append(signum))

    def taken(self) -> list[int]:
        taken, self._taken = self._taken, []
        return taken


def _settings(config: Config) -> Settings:
    return Settings(
        lease_ttl_s=math.inf if config.lease_ttl_s is None else config.lease_ttl_s,
        max_restarts=config.max_restarts,
        shutdown_timeout_s=config.shutdown_timeout_s,
        restart_grace_s=min(Settings.restart_grace_s, config.shutdown_timeout_s),
    )


def _ending(failure: WorkerFailure) -> str:
    from launcher.report import signal_name

    if failure.sentence:
        return f"could not be started: {failure.sentence}"
    name = signal_name(failure.exit_code)
    if name:
        return f"was killed by {name}" + (" (out of memory)" if failure.is_out_of_memory else "")
    return f"failed with exit code {failure.exit_code}"


def _spawn_exit_code(error_number: int) -> int:
    """As a shell would end: 127 not found, 126 not executable."""
    import errno

    return {errno.ENOENT: 127, errno.EACCES: 126, errno.ENOEXEC: 126}.get(error_number, 1)


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _pids(pids: Sequence[int]) -> str:
    return ("pid " if len(pids) == 1 else "pids ") + ", ".join(map(str, pids))


def _now() -> float:
    """Seconds that also pass while the machine sleeps; never compared with another machine's."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _chance() -> float:
    return int.from_bytes(os.urandom(6), "big") / 2**48


def _milliseconds(seconds: float) -> float | None:
    return None if seconds == math.inf else max(0.0, math.ceil(seconds * 1000))


def _wake_pipe() -> tuple[int, int]:
    return os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)


def _wake(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):  # the pipe is full: the loop is woken already
        os.write(fd, b"\0")


def _empty(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while len(os.read(fd, 4096)) == 4096:
            pass
