"""The agent: the loop that connects agreement, workers, signals and parts on one node.

It waits for three things at once: reports of the supervisor, events of the agreement, and signals. Each is passed
to the state machine that handles it (`rendezvous.machine` for the job, `lifecycle` for the processes of a round),
and that machine's actions are carried out here. Signal handlers do nothing but wake the loop.

That is the kernel. Everything else is a part (`launcher/parts/part.py`): a turn does the kernel's own work first, of
which the parts are told, and then advances the parts that are due.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from launcher.agent import lifecycle
from launcher.agent.membership import PartContext, read_clock
from launcher.agent.worker_channel import WorkerChannel
from launcher.hardware.linux import shared_page
from launcher.logs.reports.failures import Failures, Origin, find_spawn_exit_code
from launcher.logs.reports.round_log import RoundLog, format_pids
from launcher.model.console import log
from launcher.model.errors import ShortageError, UsageError, describe, describe_bug, find_shortage_hint, sanitize
from launcher.parts.part import (
    LATER_S,
    Diagnosed,
    Effect,
    EndWorkers,
    Explained,
    Fact,
    HoldQuit,
    LeadershipChanged,
    LimitGrace,
    Publish,
    QuitSignalled,
    RoundStarting,
    VictimSuspected,
    WaitUnexplained,
)
from launcher.placement.adapter.description import NodeAssignment
from launcher.ranks.ports import MasterPort
from launcher.supervisor.handle import SWEEP_LIMIT_S
from launcher.supervisor.messages import (
    POLL_LIMIT_S,
    Exited,
    Report,
    RoundSwept,
    Spawned,
    SpawnFailed,
    SupervisorLost,
    WorkersFenced,
    name_signal,
)
from rendezvous import events
from rendezvous.errors import EXIT_USAGE, RecordError
from rendezvous.reasons import Reason

if TYPE_CHECKING:
    from launcher.diagnosis.leftovers import Leftovers

Answer = TypeVar("Answer")

STUCK_LIMIT_S = 3.0  # killed processes that still exist are named
DRAIN_LIMIT_S = 5.0  # for a console that accepts no more
SHORTAGE_LIMIT_S = 60.0
"""How long a round waits for what its workers' streams lack. Strangers at a listener are cut off after 10 s."""
SHORTAGE_PAUSE_S = 0.5
POLICY_RETRY_S = 30.0
"""Until what the end of a round takes is loaded, if it could not be."""
QUIT_LIMIT_S = 10.0
"""How long a part may hold SIGQUIT."""
GRACE_LEAST_S = 5.0
"""Workers are given this to save, however near the machine's end is, as when a round is restarted."""


class Agent(Struct, kw_only=True, eq=False):
    """The loop of one node's agent. Its pieces come from `build`."""

    node: PartContext
    """Its `running` is of `_round`, for the parts to look at."""
    port: MasterPort
    worker_channel: WorkerChannel
    round_log: RoundLog
    failures: Failures

    _round: lifecycle.Round | None = None
    _number: int = 0  # of the current or last round
    _pending: Callable[[], None] | None = None  # starts the workers of a round that waits for descriptors or memory
    _exit: events.Exit | None = None
    _is_leader: bool = False
    _loss_reason: Reason | None = None  # once the supervisor was lost
    _fork_server_error: UsageError | None = None  # why there is no fork server
    _timers: dict[Callable[[], object], float] = field(default_factory=dict)  # what to call, when
    _has_quit: bool = False  # SIGQUIT has come once
    _is_explained: bool = False  # what the round's workers wait for is known
    _grace: LimitGrace = LimitGrace(math.inf, math.inf)
    _stop_reason: str = ""  # of a round whose workers save

    def run(self) -> int:
        self._submit(events.Start(time.time() - read_clock()))
        try:
            while self._exit is None:
                self._run_once()
                if self._exit is None:
                    self._wait()
            return self._finish(self._exit)
        finally:
            self.node.parts.close()
            self.node.membership.close()
            if self.node.pump is not None:
                self.node.pump.close()

    def _wait(self) -> None:
        """Wait for an event."""
        node = self.node
        clocks = (node.membership.driver, node.parts, node.supervisor, node.termination, self.round_log)
        of_round = (self.worker_channel, self._round, node.fork_server)
        times = [one.wake_at for one in (*clocks, *of_round) if one is not None]
        left_s = min(*times, *self._timers.values()) - read_clock()
        ready = self.node.parts.poll.poll(math.ceil(min(max(0.0, left_s), POLL_LIMIT_S) * 1000))
        self.node.parts.tell_ready([descriptor for descriptor, _ in ready], self._make_fact(None))

    def _run_once(self) -> None:
        """Handle everything that has happened since the last time."""
        for signum in self.node.wakeup.take():
            self._take_signal(signum)
        if leave := self.node.termination.check(read_clock()):
            self._leave(leave)
        for report in self.node.supervisor.read_reports() if not self._loss_reason else ():
            self._take_report(report)
        for call, at in [*self._timers.items()]:
            if read_clock() >= at:
                self._timers.pop(call, None)
                call()
        if self._round is not None and self._pending is None:
            for rank in self.worker_channel.check_heartbeats(self._round, read_clock()):
                pid = self.node.running.pids.get(rank, 0)
                self._take_exit(self._round, Exited(self._round.round, rank, pid, -signal.SIGKILL, time.time()))
            if self.worker_channel.check_saves(read_clock()):
                self._submit(events.CheckpointSaved(self._round.round))
        if self._round is not None:
            self._carry_out_all(self._round, self._round.advance(read_clock()))
        if self.node.fork_server is not None:
            self.node.fork_server.advance(read_clock())
        # A loop, because an action (a spawn that fails, a round with nothing left) may cause the next event at once.
        while actions := self.node.membership.driver.run():
            for action in actions:
                self._carry_out(action)
        if self.round_log.advance(read_clock()):
            self._tell(WaitUnexplained())
        if (is_leader := self.node.membership.driver.machine.is_leader) != self._is_leader:
            self._is_leader = is_leader
            self._tell(LeadershipChanged(is_leader))
            self.node.membership.log_remarks()
        self.node.parts.run(self._carry_out_effect)

    # --- facts and effects ---

    def _make_fact(self, what: object) -> Fact:
        return Fact(what, self._number, read_clock(), time.time())

    def _tell(self, what: object) -> None:
        self.node.parts.tell(self._make_fact(what))

    def _submit(self, event: events.Event) -> None:
        self.node.membership.driver.submit(event)
        self._tell(event)

    def _carry_out_effect(self, effect: Effect) -> None:
        """Do what a part asks for; nothing for a round that is over."""
        round = self._round
        match effect:
            case events.SendNote() | events.AnswerCommand():
                self.node.membership.driver.submit(effect)
            case events.LeaveRequest():
                if leave := self.node.termination.leave(effect):
                    self._leave(leave)
            case Publish(what):
                self._tell(what)
            case LimitGrace():
                self._grace = effect
                if round is not None and self._stop_reason and round.wake_at < math.inf:  # a save is under way
                    grace_s = self._request_stop(round, round.wake_at - read_clock())
                    self._carry_out_all(round, round.stop(signal.SIGTERM, grace_s, read_clock()))
            case HoldQuit(until) if self._quit in self._timers:
                self._timers[self._quit] = min(until, read_clock() + QUIT_LIMIT_S)
            case Explained(number) if round is not None and round.round == number:
                self._end_window(round)
            case Diagnosed(number, finding) if round is not None and round.round == number:
                self.failures.finding = finding
                if (share := self.node.running.share) is not None and share.group_rank == 0:
                    self._submit(events.RoundExamined(number, finding.sentences))
            case EndWorkers(number, local_ranks, why) if round is not None and round.round == number:
                self._is_explained = True
                live = [local_rank for local_rank in local_ranks if local_rank in round.live]
                self.worker_channel.abort(round, live, why, read_clock())

    # --- actions of the agreement ---

    def _carry_out(self, action: events.Action) -> None:
        match action:
            case events.StartRound():
                self._start(action)
                return
            case events.StopRound(round):
                if self._round is not None and self._round.round == round:
                    self.round_log.log_end(round, action.reason)
                    self.node.running.is_stopping = True
                    self._tell(action)
                    if action.mode != "fence":
                        self.node.parts.run(self._carry_out_effect)
                    self._stop(self._round, action.mode, action.reason)
                    return
            case events.ExtendWatchdog(until):
                self.node.supervisor.extend_watchdog(until)
                return
            case events.Log():
                self.round_log.note(action, read_clock())
            case events.Exit():
                self._exit = action
        self._tell(action)

    def _start(self, start: events.StartRound) -> None:
        self._number = start.round
        try:
            share = self.node.spec_builder.read_assignment(start.assignment, start.coordinator)
        except RecordError as error:
            self._refuse(start.round, error)
            return
        self.round_log.log_start(start, share)
        builder = self.node.spec_builder
        builder.enter_job(self.node.membership.driver.machine.joined_root)
        self.failures.begin(
            start.round,
            share,
            partial(self.node.layout.make_error_path, start.round, start.restart_count),
            builder.find_log_file,
            partial(builder.describe_rank, share),
        )
        # No wait helps a first round that asks for more than this user's limit allows.
        limit_s = 0.0 if self.node.running.share is None else SHORTAGE_LIMIT_S
        self._round = lifecycle.Round(start.round, len(share.ranks))
        self.node.running.begin(start.round, share)
        self._is_explained, self._stop_reason = False, ""
        self._tell(RoundStarting(start, share))
        self.node.parts.run(self._carry_out_effect)
        self._start_workers(start, share, read_clock() + limit_s)

    def _start_workers(self, start: events.StartRound, share: NodeAssignment, until: float) -> None:
        """Start the round's workers, or again in a moment where their streams cannot be opened now.

        The others of the round wait in torch's store meanwhile. Raises ShortageError after `until`.
        """
        if self.node.pump is not None:
            self.node.pump.reset_counts()
        try:
            self.worker_channel.begin(self.node.running.pids, len(share.ranks), read_clock())
            specs = self.node.spec_builder.make_specs(start.round, start.restart_count, share, self.node.pump)
        except ShortageError as error:
            self.worker_channel.end()  # nobody looks at workers that are not there
            if read_clock() >= until:
                for_s = "" if self._pending is None else f", for {SHORTAGE_LIMIT_S:g} s"
                raise ShortageError(f"{error}{for_s}", error.hint) from None
            if self._pending is None:
                log(f"{error} ({error.hint}); retrying for {SHORTAGE_LIMIT_S:g} s")
            self._pending = partial(self._start_workers, start, share, until)
            self._timers[self._retry_start] = read_clock() + SHORTAGE_PAUSE_S
            return
        self._pending = None
        self._timers[self._prepare_end] = read_clock() + LATER_S
        self.node.supervisor.spawn(start.round, specs)
        self.node.running.note_start(self.node.spec_builder.list_log_files(share))
        if self.node.fork_server is not None:
            self.node.fork_server.expect_workers(read_clock())

    def _retry_start(self) -> None:
        if self._pending is not None:
            self._pending()

    def _refuse(self, round: int, error: RecordError) -> None:
        """Run nothing of it. Others wait for this node's ranks, so it has failed, and the leader seals a new round."""
        log(f"round {round} cannot run here, since no leader wrote this node's assignment: {error}")
        self._round = lifecycle.Round(round, 0)
        self._submit(events.RoundFailed(round, 1, False, ""))

    def _request_stop(self, round: lifecycle.Round, grace_s: float) -> float:
        """Ask the round's workers to save, and tell them until when; return how long they may take."""
        now = read_clock()
        if self._grace.kill_at > now:
            grace_s = min(grace_s, max(GRACE_LEAST_S, self._grace.kill_at - now))
        self.worker_channel.request_stop(round.round, min(now + grace_s, self._grace.save_by), self._stop_reason)
        return grace_s

    def _stop(self, round: lifecycle.Round, mode: str, reason: Reason) -> None:
        # Others may take this node's place, or it has no worker that could use a grace.
        if mode == "fence" or self._fork_server_error is not None or self._pending is not None:
            self._carry_out_all(round, round.kill())
            return
        if (leftovers := _attempt(self._find_leftovers, None)) is not None:
            self._wait_for_leftovers(round, leftovers)
            return
        signum = self.node.termination.signum if mode == "grace" and self.node.termination.signum else signal.SIGTERM
        grace_s = self.node.membership.driver.machine.settings.get_grace_s(mode)
        if mode == "grace":
            self._stop_reason = describe(reason)
            grace_s = self._request_stop(round, grace_s)
        self._carry_out_all(round, round.stop(signum, grace_s, read_clock()))
        if mode == "grace" and grace_s > 0 and round.live:
            is_typed = signum == signal.SIGINT and (os.isatty(0) or os.isatty(2))
            more = "; press Ctrl-C again to kill them now" if is_typed else ""
            passed = f"{signal.Signals(signum).name} is passed to the workers"
            if notice := self.node.termination.notice_signum:
                passed = f"{name_signal(notice)} is passed to the workers that handle it, SIGTERM to the others"
            log(f"{passed}, which have {grace_s:g} s{more}")

    def _find_leftovers(self) -> Leftovers | None:
        """Return what the workers of a job that has succeeded have left; None if that is nothing."""
        machine = self.node.membership.driver.machine
        if machine.verdict is None or machine.verdict.kind != "success" or not self.node.supervisor.list_left():
            return None
        from launcher.diagnosis.leftovers import find_leftovers

        # The rest of what the agreement waits for this node is the sweep's.
        limit_s = min(machine.settings.shutdown_timeout_s, machine.settings.stop_limit_s - SWEEP_LIMIT_S)
        return find_leftovers(self.node.supervisor, self.node.running, read_clock(), max(0.0, limit_s))

    def _wait_for_leftovers(self, round: lifecycle.Round, leftovers: Leftovers) -> None:
        def check() -> None:
            if self._round is not round:  # another stop has swept it meanwhile
                return
            is_hurried = self.node.termination.signum is not None
            if wait_s := _attempt(partial(leftovers.advance, read_clock(), is_hurried=is_hurried), 0.0):
                self._timers[check] = read_clock() + wait_s
            else:
                self._carry_out_all(round, round.kill())

        check()

    # --- reports of the supervisor ---

    def _take_report(self, report: Report) -> None:
        if self.node.fork_server is not None and (refusal := self.node.fork_server.take(report, read_clock())):
            self._fork_server_error = refusal  # without the fork server no worker can start
            self._leave(events.LeaveRequest(Reason.of("agent/fork-server-failed", error=str(refusal)), EXIT_USAGE))
        self._tell(report)
        round = self._round
        match report:
            case Spawned(number, local_rank, pid) if round is not None and round.round == number:
                self.node.running.pids[local_rank] = pid
            case Exited(number, local_rank):
                # Not live: its end was noted when it stopped responding.
                if round is not None and round.round == number and local_rank in round.live:
                    self._take_exit(round, report)
            case SpawnFailed(number, local_rank, sentence, error_number):
                if round is not None and round.round == number:
                    hint = find_shortage_hint(error_number)
                    sentence = f"{sentence} ({hint})" if hint else sentence
                    end = Exited(number, local_rank, 0, find_spawn_exit_code(error_number), time.time())
                    self._take_exit(round, end, error_number, sentence)
            case RoundSwept(number):
                if round is not None and round.round == number:
                    self._report_stopped(round)
            case WorkersFenced():
                log("the watchdog expired: this node could not renew its membership, so its workers were killed")
                self._submit(events.WatchdogExpired())
            case SupervisorLost(sentence, exit_code):
                self._take_supervisor_loss(sentence, exit_code)

    def _take_exit(self, round: lifecycle.Round, end: Exited, spawn_error: int = 0, sentence: str = "") -> None:
        """`spawn_error`, `sentence`: why it could not be started."""
        local_rank, exit_code = end.local_rank, end.exit_code
        claim = self.node.shared_page.list_claims().get(local_rank) if exit_code != 0 else None
        # A worker that ends because it was stopped has not failed, unless it says so.
        has_failed = exit_code != 0 and (not round.is_stopping or claim is not None)
        origin: Origin = "own"
        if has_failed:
            origin = self.failures.note(
                local_rank,
                end.pid,
                exit_code,
                end.at,
                sentence or self.worker_channel.end_reasons.get(local_rank),
                spawn_error=spawn_error,
                claim=claim,
                is_leaving=self.node.termination.signum is not None,
            )
        # One that was ended because of a hang has been explained. Those that lose it as a peer still wait for it here.
        may_be_victim = origin == "another" or (origin == "unclear" and not self._is_explained)
        may_be_victim &= self._has_survivors(round, local_rank)
        self.node.running.exit_codes[local_rank] = exit_code
        if may_be_victim and not self._is_explained and not round.failures:
            self._tell(VictimSuspected(local_rank))
        worker_exit = lifecycle.WorkerExit(
            local_rank,
            exit_code,
            is_secondary=origin == "another",
            is_claimed=claim is not None,
            may_be_victim=may_be_victim,
        )
        self._carry_out_all(round, round.take_exit(worker_exit, read_clock()))

    def _has_survivors(self, round: lifecycle.Round, local_rank: int) -> bool:
        """Whether other workers may live than this one that has failed, here or on another node."""
        share = self.node.running.share
        return (share is not None and share.group_world_size > 1) or bool(round.live - {local_rank})

    def _end_window(self, round: lifecycle.Round) -> None:
        """Go on with a restart that has waited for a look at the survivors, unless one of them is about to end."""
        from launcher.hardware.linux.kernel import read_stat

        self._is_explained = True
        stats = [read_stat(pid) for pid in self.node.running.list_live().values()]
        if all(stat is not None and not stat.is_ending for stat in stats):  # else it may be the cause
            self._carry_out_all(round, round.end_window(read_clock()))

    def _take_supervisor_loss(self, sentence: str, exit_code: int) -> None:
        """Handle the supervisor's loss: the kernel kills its workers. Check that all are dead, then leave the job."""
        self.node.parts.poll.unregister(self.node.supervisor)
        left = self.node.supervisor.kill_orphans(SWEEP_LIMIT_S)
        log(f"{sentence}; its workers were killed" + (f"; {format_pids(left)} could not be killed" if left else ""))
        self._timers.pop(self._report_stuck, None)
        self._loss_reason = Reason.of("agent/supervisor-lost", error=sentence)
        self._submit(events.LeaveRequest(self._loss_reason, exit_code))
        if self._round is not None:
            self._report_stopped(self._round)

    def _report_stuck(self) -> None:
        log(
            f"some processes still exist {STUCK_LIMIT_S:g} s after SIGKILL: waiting for "
            f"{self.node.supervisor.describe_remaining()}"
        )
        self.node.supervisor.wake()

    def _prepare_end(self) -> None:
        """Load what the end of a round takes, and begin to read the kernel's log."""
        if not _attempt(_load_policy, False):
            self._timers[self._prepare_end] = read_clock() + POLICY_RETRY_S
        _attempt(self.failures.watch_kernel, None)

    # --- actions of the round ---

    def _carry_out_all(self, round: lifecycle.Round, actions: list[lifecycle.RoundAction]) -> None:
        for action in actions:
            match action:
                case lifecycle.SignalWorkers(signum):
                    self.worker_channel.signal_workers(round, signum, self.node.termination.notice_signum)
                case lifecycle.SweepRound():
                    self._pending = None
                    self.node.supervisor.sweep(round.round)
                    self._timers[self._report_stuck] = read_clock() + STUCK_LIMIT_S
                case lifecycle.ReportSucceeded():
                    self._submit(events.RoundSucceeded(round.round))
                case lifecycle.ReportFailed(cause):
                    self._report_failed(round, cause)

    def _report_failed(self, round: lifecycle.Round, cause: lifecycle.WorkerExit) -> None:
        """Report the cause, with what a worker claims and what follows from its class."""
        share = self.node.running.share
        taken = share is not None and _attempt(lambda: self.port.is_taken(share), False)
        root = self.failures.set_root_cause(cause.local_rank, is_port_taken=taken)
        final_reason, is_node_fault = root.consequence
        for kind, reason in self.node.shared_page.list_claims().values():
            if kind == shared_page.CLAIM_GIVES_UP:
                final_reason = Reason.of("agent/gave-up", text=sanitize(reason))
            is_node_fault |= kind == shared_page.CLAIM_BLAMES_NODE
        self._submit(
            events.RoundFailed(
                round.round,
                root.exit_code,
                cause.is_secondary,
                root.text,
                root.rank,
                taken,
                is_final=final_reason is not None,
                final_reason=final_reason,
                is_node_fault=is_node_fault,
                failure_class=root.failure_class,
            )
        )

    def _report_stopped(self, round: lifecycle.Round) -> None:
        """Report that nothing of the round is left."""
        if self.worker_channel.check_saves(math.inf):  # after the last look: what a failure undoes counts from here
            self._submit(events.CheckpointSaved(round.round))
        step = self._read_step() if self.node.running.has_workers else -1
        self._round, self._pending = None, None
        self._timers.pop(self._report_stuck, None)
        self.node.running.has_workers = False
        self.round_log.end_round()
        self.worker_channel.end()
        self.port.renew()
        self._submit(events.RoundStopped(round.round, self.port.number, step))

    def _read_step(self) -> int:
        """Return the highest training step of the round that has ended, -1 if none is known."""
        step = self.node.shared_page.read_step()
        if self.node.config.hangs.progress_file:
            step = max(step, _attempt(partial(_read_progress_file, self.node.config.hangs.progress_file), -1))
        return step

    # --- signals and the end ---

    def _take_signal(self, signum: int) -> None:
        if signum == signal.SIGCHLD:
            self.node.supervisor.reap()
        elif signum == signal.SIGQUIT and self.node.termination.signum is None and self._can_hold():
            self._has_quit, self._timers[self._quit] = True, -math.inf
            self._tell(QuitSignalled())
            self.node.parts.run(self._carry_out_effect)  # one may hold it, to show first what the workers do
        elif leave := self.node.termination.take_signal(signum):
            self._leave(leave)
        elif signum == signal.SIGINT and self._round is not None and self._round.live:
            self._carry_out_all(self._round, self._round.kill())
            log("SIGINT again: the workers are killed")

    def _can_hold(self) -> bool:
        """Whether SIGQUIT first shows what the workers do. A second one does not wait for that."""
        return self._round is not None and bool(self._round.live) and not self._has_quit

    def _quit(self) -> None:
        if leave := self.node.termination.take_signal(signal.SIGQUIT):
            self._leave(leave)

    def _leave(self, leave: events.LeaveRequest) -> None:
        self.round_log.set_leaving()
        self._submit(leave)

    def _finish(self, end: events.Exit) -> int:
        """Leave nothing behind, then report how it ended."""
        if self._round is not None and not self._loss_reason:
            self.node.supervisor.sweep(self._round.round)
        self.node.supervisor.close(SWEEP_LIMIT_S)
        if self.node.pump is not None:
            self.node.pump.drain(DRAIN_LIMIT_S)  # when it is closed, it reports what it could not write
        if self._fork_server_error is not None and (end.verdict is None or end.verdict.kind != "failure"):
            raise self._fork_server_error
        _attempt(partial(self.failures.report_end, end, self.node.config.workers.script, self._loss_reason), None)
        return end.exit_code


def _load_policy() -> bool:
    """Import what the end of a round takes: when it comes there may be no descriptor left for that."""
    import launcher.model.sentences  # noqa: F401  # workers are told why they are to save
    import rendezvous.sentences  # noqa: F401
    from rendezvous.policy import charge  # noqa: F401

    return True


def _read_progress_file(path: str) -> int:
    from launcher.worker.progress_file import read_progress_file

    return read_progress_file(path)


def _attempt(call: Callable[[], Answer], otherwise: Answer) -> Answer:
    """Call what may import or open something. Where nothing is left for that it costs the answer, and no job."""
    try:
        return call()
    except (OSError, ImportError, MemoryError) as error:
        log(f"this agent lacks resources at the moment: {describe_bug(error)}")
        return otherwise
