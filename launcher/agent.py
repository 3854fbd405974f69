"""The agent: the loop that joins agreement, workers and signals on one node.

It waits for three things at once: reports of the warden, events of the agreement, and signals. Each is handed
to the machine that knows what it means (`rendezvous.machine` for the job, `lifecycle` for the processes of a
round), and what that machine wants done is done here. Signal handlers do nothing but wake the loop.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from functools import partial

from launcher import lifecycle
from launcher import mesh as meshes
from launcher.config import Config
from launcher.console import tell
from launcher.conversation import Conversation
from launcher.errors import EXIT_USAGE, shortage_hint
from launcher.health import Entry
from launcher.membership import join, now, settings
from launcher.output.layout import LogLayout
from launcher.reporting.failures import Failures, spawn_exit_code
from launcher.reporting.narrator import Narrator, pids, recorder
from launcher.warden import Exited, Gone, LeashExpired, Report, Spawned, SpawnFailed, Warden, WardenLost
from launcher.workers import WorkerMaker
from launcher.workers.master_port import MasterPort
from rendezvous import events
from rendezvous.errors import RecordError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from launcher.arrival import Arrival
    from launcher.board import Board
    from launcher.errors import UsageError
    from launcher.preloading import Image
    from launcher.roster.description import Share

SWEEP_LIMIT_S = 10.0  # a killed process may hang in a driver; after this the agent ends and says so
STUCK_LIMIT_S = 3.0  # killed processes that are still there are named
DRAIN_LIMIT_S = 5.0  # for a console that takes no more
_POLL_LIMIT_S = 86400.0  # poll() counts milliseconds in 31 bits


class Agent:
    def __init__(
        self,
        config: Config,
        warden: Warden,
        layout: LogLayout,
        arrival: Arrival | None,
        entry: Entry,
        board: Board | None,
        image: Image | None = None,
    ) -> None:
        self._config = config
        self._warden = warden
        self._image = image
        self._layout = layout
        self._host = arrival.name if arrival else config.node_name or os.uname().nodename
        slots, self._reason, self._departure, self._wakeup = entry
        mesh = config.mesh or meshes.DEFAULT
        if arrival is None:
            meshes.require_fit(mesh, len(slots))
        self._port = MasterPort(config.master_port, config.worker_port_range)
        self._maker = WorkerMaker(
            config=config,
            mesh=mesh,
            slots=slots,
            host=self._host,
            layout=layout,
            parent=os.environ,
            board=board,
        )
        self._maker.add(arrival.place.environment if arrival else {})
        if os.environ.get("TORCHELASTIC_ENABLE_FILE_TIMER") == "1":
            from launcher.workers import timers

            self._maker.add(timers.watch(warden.pid, os.environ.get("TORCHELASTIC_TIMER_FILE")))
        self._record = recorder(config, self._host, layout.run_id, self._maker.error_file)
        self._settings = settings(config, heeds_stop=not self._maker.is_jax)
        hears_saves = arrival is not None and self._settings.growth == "checkpoint"  # only a job that may grow
        self._conversation = Conversation(board, warden, config.heartbeat_timeout_s, hears_saves=hears_saves)
        self._maker.add(self._conversation.environment)
        self._narrator = Narrator(is_alone=arrival is None, max_restarts=config.max_restarts)
        self._membership = join(
            config,
            self._settings,
            mesh,
            arrival,
            slot_count=len(slots),
            run_id=layout.run_id,
            node_name=self._host,
            worker_port=self._port.number,
            wake=self._wakeup.wake,
            devices=[device for slot in slots for device in slot.devices],
        )
        self._driver = self._membership.driver
        self._pump = self._maker.new_pump()
        self._failures = Failures(self._host, self._pump, aborts_echo=self._maker.is_jax)

        self._round: lifecycle.Round | None = None
        self._share: Share | None = None  # of the round that is or was
        self._end: events.Exit | None = None
        self._lost = ""  # why the warden is gone
        self._refusal: UsageError | None = None  # why there is no image
        self._stuck_at = math.inf  # when a sweep has taken so long that it is explained
        self._poll = select.poll()

    def run(self) -> int:
        tell(self._reason)
        for remark in self._maker.remarks():
            tell(remark)
        self._poll.register(self._wakeup, select.POLLIN)
        self._poll.register(self._warden, select.POLLIN)
        self._conversation.register(self._poll)
        self._driver.submit(events.Start())
        try:
            while self._end is None:
                self._turn()
                if self._end is None:
                    self._wait()
            return self._finish(self._end)
        finally:
            self._membership.close()
            if self._pump is not None:
                self._pump.close()

    def _wait(self) -> None:
        """Until something happens."""
        if self._round is None:
            self._narrator.waits(now())
        talk_at = self._conversation.wake_at
        mind_at = self._narrator.wake_at if self._round is None else min(self._round.wake_at, talk_at)
        wake_at = min(self._driver.wake_at, mind_at, self._stuck_at, self._departure.wake_at, self._warden.late_at)
        if self._image is not None:
            wake_at = min(wake_at, self._image.wake_at)
        self._poll.poll(math.ceil(min(max(0.0, wake_at - now()), _POLL_LIMIT_S) * 1000))

    def _turn(self) -> None:
        """Everything that has happened since the last time."""
        for signum in self._wakeup.take():
            self._take_signal(signum)
        if leave := self._departure.looked(now()):
            self._leave(leave)
        for round in self._conversation.saved():
            self._driver.submit(events.CheckpointSaved(round))
        for report in self._warden.reports() if not self._lost else ():
            self._take_report(report)
        if self._round is not None:
            for local_rank, pid, sentence in self._conversation.lost(self._round, now()):
                self._take_end(self._round, local_rank, pid, -signal.SIGKILL, time.time(), sentence)
        if self._round is not None and now() >= self._round.wake_at:
            self._do(self._round, self._round.passed(now()))
        if self._image is not None and now() >= self._image.wake_at:
            self._image.late(now())
        if now() >= self._stuck_at:
            self._stuck_at = math.inf
            tell(f"not everything is gone {STUCK_LIMIT_S:g} s after SIGKILL: waiting for {self._warden.still_there()}")
        # Looped, because what is done here (a spawn that fails, a round with nothing left) may go straight back.
        while actions := self._driver.run():
            for action in actions:
                self._carry_out(action)

    # --- what the agreement wants ---

    def _carry_out(self, action: events.Action) -> None:
        self._record(action)
        match action:
            case events.StartRound():
                self._start(action)
            case events.StopRound(round, mode, reason):
                if self._round is not None and self._round.round == round:
                    self._narrator.ends(round, reason)
                    self._stop(self._round, mode)
            case events.ExtendWatchdog(until):
                self._warden.extend_leash(until)
            case events.Log(sentence, is_remark):
                self._narrator.note(sentence, is_remark=is_remark)
            case events.Exit():
                self._end = action

    def _start(self, start: events.StartRound) -> None:
        try:
            share = self._maker.read(start.assignment)
        except RecordError as error:
            self._refuse(start.round, error)
            return
        self._narrator.begins(start, share)
        self._failures.begin(start.round, share, partial(self._maker.error_file, start.round, start.restart_count))
        self._round, self._share = lifecycle.Round(start.round, len(share.ranks)), share
        self._conversation.begin(len(share.ranks), now())
        specs = self._maker.make(start.round, start.restart_count, share, self._pump)
        self._warden.spawn(start.round, specs)
        if self._image is not None:
            self._image.awaited(now())

    def _refuse(self, round: int, error: RecordError) -> None:
        """Run nothing of it. Others wait for this node's ranks, so it has failed, and the leader seals another one."""
        tell(f"round {round} cannot run here, since no leader wrote this node's assignment: {error}")
        self._round, self._share = lifecycle.Round(round, 0), None
        self._driver.submit(events.RoundFailed(round, 1, False, ""))

    def _stop(self, round: lifecycle.Round, mode: str) -> None:
        if mode == "fence" or self._refusal is not None:
            self._do(round, round.kill())
            return
        signum = self._departure.signum if mode == "grace" and self._departure.signum else signal.SIGTERM
        grace_s = self._settings.grace_s(mode)
        if mode == "grace":
            self._conversation.ask_to_stop(round.round)
        self._do(round, round.stop(signum, grace_s, now()))
        if mode == "grace" and grace_s > 0 and round.live:
            tell(f"{signal.Signals(signum).name} is passed to the workers, which have {grace_s:g} s")

    # --- what the warden says ---

    def _take_report(self, report: Report) -> None:
        self._record(report)
        if self._image is not None and (refusal := self._image.take(report, now())):
            self._take_refusal(refusal)
        round = self._round
        match report:
            case Spawned(_, local_rank, pid):
                self._conversation.began(local_rank, pid)
            case Exited(number, local_rank, pid, exit_code, at):
                if round is not None and round.round == number and local_rank in round.live:
                    self._take_end(round, local_rank, pid, exit_code, at, self._conversation.sentence(local_rank))
            case SpawnFailed(number, local_rank, sentence, error_number):
                if round is not None and round.round == number:
                    hint = shortage_hint(error_number)
                    sentence = f"{sentence} ({hint})" if hint else sentence
                    self._take_end(round, local_rank, 0, spawn_exit_code(error_number), time.time(), sentence)
            case Gone(number):
                if round is not None and round.round == number:
                    self._do(round, round.gone())
            case LeashExpired():
                tell("the leash has run out: this node could not renew its membership, so its workers were killed")
                self._driver.submit(events.WatchdogExpired())
            case WardenLost(sentence, exit_code):
                self._take_loss(sentence, exit_code)

    def _take_end(
        self, round: lifecycle.Round, local_rank: int, pid: int, exit_code: int, at: float, sentence: str | None
    ) -> None:
        # A worker that ends because it was told to has not failed.
        has_failed = exit_code != 0 and not round.is_stopping
        is_echo = has_failed and self._failures.note(local_rank, pid, exit_code, at, sentence)
        self._do(round, round.ended(lifecycle.End(local_rank, exit_code, is_echo), now()))

    def _take_loss(self, sentence: str, exit_code: int) -> None:
        """The warden is gone, and the kernel kills its workers. See that all are, then leave the job."""
        self._lost = sentence
        self._poll.unregister(self._warden)
        left = self._warden.kill_orphans(SWEEP_LIMIT_S)
        tell(f"{sentence}; its workers were killed" + (f", but {pids(left)} would not go" if left else ""))
        self._stuck_at = math.inf
        self._driver.submit(events.LeaveRequest(sentence, exit_code))
        if self._round is not None:
            self._do(self._round, self._round.gone())

    def _take_refusal(self, refusal: UsageError) -> None:
        """There will be no image, and no worker without it: leave the job."""
        self._refusal = refusal
        self._leave(events.LeaveRequest(str(refusal), EXIT_USAGE))

    # --- what the round wants ---

    def _do(self, round: lifecycle.Round, actions: list[lifecycle.Action]) -> None:
        for action in actions:
            match action:
                case lifecycle.Signal(signum):
                    self._conversation.signal(round, signum)
                case lifecycle.Sweep():
                    self._warden.sweep(round.round)
                    self._stuck_at = now() + STUCK_LIMIT_S
                case lifecycle.TellSucceeded():
                    self._driver.submit(events.RoundSucceeded(round.round))
                case lifecycle.TellFailed(cause):
                    exit_code, text, rank = self._failures.blame(cause.local_rank)
                    taken = self._share is not None and self._port.is_taken(self._share)
                    self._driver.submit(events.RoundFailed(round.round, exit_code, cause.is_echo, text, rank, taken))
                case lifecycle.TellStopped():
                    self._tell_stopped(round)

    def _tell_stopped(self, round: lifecycle.Round) -> None:
        self._failures.settle()
        self._round, self._stuck_at = None, math.inf
        self._port.renew()
        self._driver.submit(events.RoundStopped(round.round, self._port.number))

    # --- signals and the end ---

    def _take_signal(self, signum: int) -> None:
        if signum == signal.SIGCHLD:
            self._warden.reap()
        elif leave := self._departure.told(signum):
            self._leave(leave)
        elif signum == signal.SIGINT and self._round is not None and self._round.live:
            self._do(self._round, self._round.kill())
            tell("SIGINT: no more waiting, the workers are killed")

    def _leave(self, leave: events.LeaveRequest) -> None:
        self._narrator.leaves()
        self._driver.submit(leave)

    def _finish(self, end: events.Exit) -> int:
        """Leave nothing behind, then say how it ended."""
        if self._round is not None and not self._lost:
            self._warden.sweep(self._round.round)
        self._warden.close(SWEEP_LIMIT_S)
        if self._pump is not None:
            self._pump.drain(DRAIN_LIMIT_S)  # what it could not write it says itself when it is closed
        if self._refusal is not None and (end.verdict is None or end.verdict.kind != "failure"):
            raise self._refusal
        self._failures.tell_end(end, self._config.script, self._lost)
        return end.exit_code
