"""The agent: the loop that connects agreement, workers and signals on one node.

It waits for three things at once: reports of the supervisor, events of the agreement, and signals. Each is passed
to the state machine that handles it (`rendezvous.machine` for the job, `lifecycle` for the processes of a round),
and that machine's actions are carried out here. Signal handlers do nothing but wake the loop.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
from _socket import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from launcher.agent import lifecycle
from launcher.agent.inspection.observer import Observer
from launcher.agent.membership import NodeMembership, read_clock
from launcher.agent.signals import Termination, Wakeup, name_signal
from launcher.agent.worker_channel import WorkerChannel
from launcher.hardware.linux import shared_page
from launcher.logs.reports.failures import Failures, Origin, find_spawn_exit_code
from launcher.logs.reports.round_log import RoundLog, format_pids
from launcher.model.console import log, write_stderr
from launcher.model.errors import ShortageError, UsageError, describe, describe_bug, find_shortage_hint, sanitize
from launcher.observe.local_listener import open_listener
from launcher.placement.adapter.description import NodeAssignment
from launcher.ranks.ports import MasterPort
from launcher.ranks.spec_builder import WorkerSpecBuilder
from launcher.supervisor.handle import SWEEP_LIMIT_S, Supervisor
from launcher.supervisor.messages import (
    POLL_LIMIT_S,
    Exited,
    Report,
    RoundSwept,
    Spawned,
    SpawnFailed,
    SupervisorLost,
    WorkersFenced,
    WorkerSpec,
)
from rendezvous import events
from rendezvous.errors import EXIT_USAGE, RecordError
from rendezvous.reasons import Reason
from rendezvous.settings import Settings

if TYPE_CHECKING:
    from launcher.agent.diagnosis.inquiries import Inquiries
    from launcher.agent.diagnosis.progress import NodeProgress
    from launcher.agent.preload import ForkServerClient
    from launcher.diagnose.answer import Conclusion
    from launcher.diagnose.request import LocalRound
    from launcher.extensions.notices.notice import NoticeUpdate
    from launcher.logs.pump import OutputPump

Answer = TypeVar("Answer")

STUCK_LIMIT_S = 3.0  # killed processes that still exist are named
DRAIN_LIMIT_S = 5.0  # for a console that accepts no more
SHORTAGE_LIMIT_S = 60.0
"""How long a round waits for what its workers' streams lack. Strangers at a listener are cut off after 10 s."""
SHORTAGE_PAUSE_S = 0.5
PROGRESS_RETRY_S = 30.0
PROGRESS_DELAY_S = 1.0  # from a round's start until its progress is watched: what does that takes 3 ms to import


class PendingStart(Struct, frozen=True, kw_only=True):
    """The start of a round that waits for descriptors or memory."""

    start: events.StartRound
    share: NodeAssignment
    retry_at: float
    until: float
    """When it is given up."""


class Agent(Struct, kw_only=True, eq=False):
    """The loop of one node's agent. Its parts come from `build`."""

    script: str
    reason: str
    """Explains the number of workers, for the first line."""
    settings: Settings
    supervisor: Supervisor
    fork_server: ForkServerClient | None
    membership: NodeMembership
    termination: Termination
    wakeup: Wakeup
    port: MasterPort
    spec_builder: WorkerSpecBuilder
    worker_channel: WorkerChannel
    pump: OutputPump | None
    observer: Observer
    round_log: RoundLog
    failures: Failures
    make_inquiries: Callable[[select.poll, int | None, Callable[[], LocalRound | None]], Inquiries]
    make_progress: Callable[[NodeAssignment, float], NodeProgress] | None = None
    """Makes `progress`, the watch over a round that runs here; None with --hang-timeout 0."""
    progress: NodeProgress | None = None
    on_hang: str = "report"
    """"report" or "restart"."""
    progress_file: str | None = None

    _round: lifecycle.Round | None = None
    _assignment: NodeAssignment | None = None  # of the current or last round
    _pending: PendingStart | None = None  # while the round has no workers yet
    _exit: events.Exit | None = None
    _loss_reason: Reason | None = None  # once the supervisor was lost
    _fork_server_error: UsageError | None = None  # why there is no fork server
    _stuck_at: float = math.inf  # when a sweep has taken so long that its delay is logged
    _listener: socket | None = None  # until `_inquiries` has it
    _inquiries: Inquiries | None = None
    """Made with the first question, or what else it is needed for."""
    _inquire_at: float = math.inf  # when that is tried again
    _specs: Sequence[WorkerSpec] = ()  # of the round; none before its workers are started
    _exit_codes: dict[int, int] = field(default_factory=dict)  # in the round, by local rank
    _has_asked: bool = False  # SIGQUIT has come once
    _is_explained: bool = False  # what the round's workers wait for is known
    _progress_at: float = math.inf  # when the round's `progress` is made
    _watch_kernel_at: float = math.inf  # once the first workers have been started
    _stop_reason: str = ""  # of a round whose workers save
    _untold_silence: str = ""  # of this node; said once all are silent: one that waits for a save of another is well
    _poll: select.poll = field(default_factory=select.poll)

    def run(self) -> int:
        log(self.reason)
        for remark in filter(None, (self.spec_builder.choice.reason, *self.spec_builder.list_remarks())):
            log(remark)
        self._poll.register(self.wakeup, select.POLLIN)
        self._poll.register(self.supervisor, select.POLLIN)
        self._listener = open_listener()
        if self._listener is not None:
            self._poll.register(self._listener, select.POLLIN)
            self.observer.socket_name = self._listener.getsockname()[1:].decode()
        self._submit(events.Start(time.time() - read_clock()))
        try:
            while self._exit is None:
                self._run_once()
                if self._exit is None:
                    self._wait()
            return self._finish(self._exit)
        finally:
            self.observer.finish()
            if self._inquiries is not None:
                self._inquiries.close()
            elif self._listener is not None:
                self._listener.close()
            self.membership.close()
            if self.pump is not None:
                self.pump.close()

    def _wait(self) -> None:
        """Wait for an event."""
        if self._round is None:
            self.round_log.log_waiting(read_clock())
        talk_at = min(self.worker_channel.wake_at, self._find_progress_wake())
        mind_at = self.round_log.wake_at if self._round is None else min(self._round.wake_at, talk_at)
        wake_at = min(
            self.membership.driver.wake_at,
            mind_at,
            self.round_log.running_wake_at,
            self._stuck_at,
            self._watch_kernel_at,
            self.termination.wake_at,
            self.supervisor.reports_due_at,
            math.inf if self._pending is None else self._pending.retry_at,
            self._inquire_at,
        )
        if self.fork_server is not None:
            wake_at = min(wake_at, self.fork_server.wake_at)
        wake_at = min(wake_at, self.observer.wake_at)
        if self._inquiries is not None:
            wake_at = min(wake_at, self._inquiries.wake_at)
        ready = self._poll.poll(math.ceil(min(max(0.0, wake_at - read_clock()), POLL_LIMIT_S) * 1000))
        if self._listener is not None and any(number == self._listener.fileno() for number, _ in ready):
            self._get_inquiries()

    def _run_once(self) -> None:
        """Handle everything that has happened since the last time."""
        for signum in self.wakeup.take():
            self._take_signal(signum)
        for update in self.termination.take_notices(read_clock()):
            self._take_notice(update)
        if leave := self.termination.check(read_clock()):
            self._leave(leave)
        for report in self.supervisor.read_reports() if not self._loss_reason else ():
            self._take_report(report)
        if self._pending is not None and read_clock() >= self._pending.retry_at:
            self._start_workers(self._pending.start, self._pending.share, self._pending.until)
        if self._round is not None and self._pending is None:
            for local_rank, pid, sentence in self.worker_channel.check_heartbeats(self._round, read_clock()):
                self._take_exit(self._round, local_rank, pid, -signal.SIGKILL, time.time(), sentence)
        if self._round is not None and self.worker_channel.check_saves(read_clock()):
            self._submit(events.CheckpointSaved(self._round.round))
        if read_clock() >= self._find_progress_wake():
            self._check_progress()
        if self._round is not None and read_clock() >= self._round.wake_at:
            self._carry_out_all(self._round, self._round.advance(read_clock()))
        self.round_log.log_running(read_clock())
        if self.fork_server is not None and read_clock() >= self.fork_server.wake_at:
            self.fork_server.report_delay(read_clock())
        if read_clock() >= self._stuck_at:
            self._stuck_at = math.inf
            log(
                f"some processes still exist {STUCK_LIMIT_S:g} s after SIGKILL: waiting for "
                f"{self.supervisor.describe_remaining()}"
            )
            self.supervisor.wake()
        if read_clock() >= self._watch_kernel_at:
            self._watch_kernel_at = math.inf if _attempt(_load_policy, False) else read_clock() + PROGRESS_RETRY_S
            self.failures.watch_kernel()
        self.observer.advance(read_clock())
        if self._inquiries is None and read_clock() >= self._inquire_at:
            self._get_inquiries()
        if self._inquiries is not None:
            for conclusion in self._inquiries.advance(read_clock()):
                self._take_conclusion(conclusion)
        # A loop, because an action (a spawn that fails, a round with nothing left) may cause the next event at once.
        while actions := self.membership.driver.run():
            for action in actions:
                self._carry_out(action)

    # --- actions of the agreement ---

    def _carry_out(self, action: events.Action) -> None:
        self.observer.history.take(action)
        match action:
            case events.StartRound():
                self._start(action)
            case events.StopRound(round):
                if self._round is not None and self._round.round == round:
                    self.round_log.log_end(round, action.reason)
                    self._stop(self._round, action.mode, action.reason)
            case events.ExtendWatchdog(until):
                self.supervisor.extend_watchdog(until)
            case events.NoteReceived(member_id, text):
                if inquiries := self._get_inquiries():
                    _attempt(partial(inquiries.take_note, member_id, text, read_clock()), None)
            case events.PassOn(token):
                if inquiries := self._get_inquiries():
                    inquiries.pass_on(token, read_clock())
                else:
                    self._submit(events.AnswerCommand(token, "{}"))
            case events.Log():
                self.round_log.note(action, read_clock())
            case events.Exit():
                self._exit = action

    def _start(self, start: events.StartRound) -> None:
        try:
            share = self.spec_builder.read_assignment(start.assignment, start.coordinator)
        except RecordError as error:
            self._refuse(start.round, error)
            return
        self.round_log.log_start(start, share)
        builder = self.spec_builder
        self.failures.begin(
            start.round,
            share,
            partial(builder.find_error_file, start.round, start.restart_count),
            builder.find_log_file,
            partial(builder.describe_rank, share),
        )
        # No wait helps a first round that asks for more than this user's limit allows.
        limit_s = 0.0 if self._assignment is None else SHORTAGE_LIMIT_S
        self._round, self._assignment = lifecycle.Round(start.round, len(share.ranks)), share
        self._specs, self._exit_codes = (), {}
        self._is_explained, self._stop_reason = False, ""
        self._untold_silence = ""
        self._start_workers(start, share, read_clock() + limit_s)

    def _start_workers(self, start: events.StartRound, share: NodeAssignment, until: float) -> None:
        """Start the round's workers, or again in a moment where their streams cannot be opened now.

        The others of the round wait in torch's store meanwhile. Raises ShortageError after `until`.
        """
        self.worker_channel.begin(len(share.ranks), read_clock())
        self.progress, self._progress_at = None, math.inf
        if self.pump is not None:
            self.pump.reset_counts()
        try:
            specs = self.spec_builder.make_specs(start.round, start.restart_count, share, self.pump)
        except ShortageError as error:
            if (now := read_clock()) >= until:
                for_s = "" if self._pending is None else f", for {SHORTAGE_LIMIT_S:g} s"
                raise ShortageError(f"{error}{for_s}", error.hint) from None
            if self._pending is None:
                log(f"{error} ({error.hint}); retrying for {SHORTAGE_LIMIT_S:g} s")
            retry_at = now + SHORTAGE_PAUSE_S
            self._pending = PendingStart(start=start, share=share, retry_at=retry_at, until=until)
            return
        self._pending, self._progress_at = None, read_clock() + PROGRESS_DELAY_S
        self._watch_kernel_at = self._progress_at
        self.supervisor.spawn(start.round, specs)
        if self.fork_server is not None:
            self.fork_server.expect_workers(read_clock())
        self.observer.begin_round(start.round, self.spec_builder.list_log_files(share))
        self._specs = specs

    def _submit(self, event: events.Event) -> None:
        self.membership.driver.submit(event)
        self.observer.history.take(event)

    def _get_inquiries(self) -> Inquiries | None:
        """Return what answers; None where nothing is left to load it with, which is tried again in a moment."""
        if self._inquiries is not None:
            return self._inquiries
        listener = self._listener
        try:
            inquiries = self.make_inquiries(
                self._poll, None if listener is None else listener.fileno(), self.read_round
            )
        except (OSError, ImportError, MemoryError) as error:
            if self._inquire_at == math.inf:
                log(f"this agent cannot answer questions at the moment: {describe_bug(error)}")
                if listener is not None:
                    self._poll.unregister(listener)  # it stays readable, and the loop would not rest
            self._inquire_at = read_clock() + SHORTAGE_PAUSE_S
            return None
        self._inquiries, self._listener, self._inquire_at = inquiries, None, math.inf
        if listener is not None:
            self._poll.register(listener.detach(), select.POLLIN)
        return inquiries

    def read_round(self) -> LocalRound | None:
        """Return what is looked at of the round that runs here; None before its workers are started."""
        share = self._assignment
        if self._round is None or share is None or not self._specs:
            return None
        from launcher.diagnose.request import LocalRound

        return LocalRound(
            number=self._round.round,
            mesh=self.spec_builder.make_worker_mesh(share),
            targets=self.spec_builder.make_targets(share, self._specs, self.worker_channel.list_started()),
            exit_codes={share.ranks[local_rank]: exit_code for local_rank, exit_code in self._exit_codes.items()},
        )

    def _refuse(self, round: int, error: RecordError) -> None:
        """Run nothing of it. Others wait for this node's ranks, so it has failed, and the leader seals a new round."""
        log(f"round {round} cannot run here, since no leader wrote this node's assignment: {error}")
        self._round, self._assignment = lifecycle.Round(round, 0), None
        self._submit(events.RoundFailed(round, 1, False, ""))

    def _request_stop(self, round: lifecycle.Round, grace_s: float) -> float:
        """Ask the round's workers to save, and tell them until when; return how long they may take."""
        grace_s, until = self.termination.limit_save(grace_s, read_clock())
        self.worker_channel.request_stop(round.round, until, self._stop_reason)
        return grace_s

    def _stop(self, round: lifecycle.Round, mode: str, reason: Reason) -> None:
        # Others may take this node's place, or it has no worker that could use a grace.
        if mode == "fence" or self._fork_server_error is not None or self._pending is not None:
            self._carry_out_all(round, round.kill())
            return
        signum = self.termination.signum if mode == "grace" and self.termination.signum else signal.SIGTERM
        grace_s = self.settings.get_grace_s(mode)
        if mode == "grace":
            self._stop_reason = describe(reason)
            grace_s = self._request_stop(round, grace_s)
        self._carry_out_all(round, round.stop(signum, grace_s, read_clock()))
        if mode == "grace" and grace_s > 0 and round.live:
            is_typed = signum == signal.SIGINT and (os.isatty(0) or os.isatty(2))
            more = "; press Ctrl-C again to kill them now" if is_typed else ""
            passed = f"{signal.Signals(signum).name} is passed to the workers"
            if notice := self.termination.notice_signum:
                passed = f"{name_signal(notice)} is passed to the workers that handle it, SIGTERM to the others"
            log(f"{passed}, which have {grace_s:g} s{more}")

    # --- reports of the supervisor ---

    def _take_report(self, report: Report) -> None:
        self.observer.history.take(report)
        if self.fork_server is not None and (refusal := self.fork_server.take(report, read_clock())):
            self._take_fork_server_error(refusal)
        round = self._round
        match report:
            case Spawned(_, local_rank, pid):
                self.worker_channel.add_worker(local_rank, pid)
            case Exited(number, local_rank, pid, exit_code, at):
                # Not live: its end was noted when it stopped responding.
                if round is not None and round.round == number and local_rank in round.live:
                    self._take_exit(round, local_rank, pid, exit_code, at, self.worker_channel.explain_end(local_rank))
            case SpawnFailed(number, local_rank, sentence, error_number):
                if round is not None and round.round == number:
                    hint = find_shortage_hint(error_number)
                    sentence = f"{sentence} ({hint})" if hint else sentence
                    exit_code = find_spawn_exit_code(error_number)
                    self._take_exit(round, local_rank, 0, exit_code, time.time(), sentence, error_number)
            case RoundSwept(number):
                if round is not None and round.round == number:
                    self._carry_out_all(round, round.take_gone())
            case WorkersFenced():
                log("the watchdog expired: this node could not renew its membership, so its workers were killed")
                self._submit(events.WatchdogExpired())
            case SupervisorLost(sentence, exit_code):
                self._take_supervisor_loss(sentence, exit_code)

    def _take_exit(
        self,
        round: lifecycle.Round,
        local_rank: int,
        pid: int,
        exit_code: int,
        at: float,
        sentence: str | None,
        spawn_error: int = 0,
    ) -> None:
        claim = self.worker_channel.list_claims().get(local_rank) if exit_code != 0 else None
        # A worker that ends because it was stopped has not failed, unless it says so.
        has_failed = exit_code != 0 and (not round.is_stopping or claim is not None)
        origin: Origin = "own"
        if has_failed:
            origin = self.failures.note(
                local_rank,
                pid,
                exit_code,
                at,
                sentence,
                spawn_error=spawn_error,
                claim=claim,
                is_leaving=self.termination.signum is not None,
            )
        # One that was ended because of a hang has been explained. Those that lose it as a peer still wait for it here.
        may_be_victim = origin == "another" or (origin == "unclear" and not self._is_explained)
        may_be_victim &= self._has_survivors(round, local_rank)
        self._exit_codes[local_rank] = exit_code
        may_ask = may_be_victim and not self._is_explained and not round.failures
        if may_ask and (inquiries := self._get_inquiries()):
            inquiries.examination.report_failure()
        if exit_code == 0 and self._assignment is not None and not round.is_stopping:
            left = len(round.live - {local_rank})
            self.round_log.note_success(self._assignment.ranks, local_rank, left, read_clock())
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
        has_other_nodes = self._assignment is not None and self._assignment.group_world_size > 1
        return has_other_nodes or bool(round.live - {local_rank})

    def _take_supervisor_loss(self, sentence: str, exit_code: int) -> None:
        """Handle the supervisor's loss: the kernel kills its workers. Check that all are dead, then leave the job."""
        self._poll.unregister(self.supervisor)
        left = self.supervisor.kill_orphans(SWEEP_LIMIT_S)
        log(f"{sentence}; its workers were killed" + (f"; {format_pids(left)} could not be killed" if left else ""))
        self._stuck_at = math.inf
        self._loss_reason = Reason.of("agent/supervisor-lost", error=sentence)
        self._submit(events.LeaveRequest(self._loss_reason, exit_code))
        if self._round is not None:
            self._carry_out_all(self._round, self._round.take_gone())

    def _take_fork_server_error(self, error: UsageError) -> None:
        """Leave the job: without the fork server no worker can start."""
        self._fork_server_error = error
        self._leave(events.LeaveRequest(Reason.of("agent/fork-server-failed", error=str(error)), EXIT_USAGE))

    # --- progress ---

    def _find_progress_wake(self) -> float:
        """Return when to call `_check_progress`: only while workers run that are not stopping."""
        round, share = self._round, self._assignment
        if self.make_progress is None or round is None or round.is_stopping or share is None:
            return math.inf
        if not round.live and share.group_world_size == 1:  # of several nodes, others may wait for those that ended
            return math.inf
        return self._progress_at if self.progress is None else self.progress.wake_at

    def _check_progress(self) -> None:
        assert self._round is not None
        if self.progress is None:
            assert self.make_progress is not None
            assert self._assignment is not None
            self._progress_at = read_clock() + PROGRESS_RETRY_S  # if it cannot be made now
            self.progress = _attempt(partial(self.make_progress, self._assignment, read_clock()), None)
            return
        now = read_clock()
        news = self.progress.check(self.worker_channel.list_pids(self._round), now)
        inquiries = self._get_inquiries() if news is not None or self.progress.needs_counters else None
        if isinstance(news, str):
            if not self._untold_silence:
                log(news)
            self._untold_silence = ""
        elif news is not None:
            where = "" if self._round.live else "; the workers here have ended, others of the round have not"
            self._untold_silence = f"{news}{where}"
        if inquiries is None:
            return
        if news is not None:
            inquiries.examination.report_silence(now, is_silent=not isinstance(news, str))
        if self.progress.needs_counters:
            inquiries.examination.count_calls(self.progress.take_counters, now)

    def _take_conclusion(self, conclusion: Conclusion) -> None:
        """Log what the leader has concluded about all workers without a person's question, and act on a hang."""
        if conclusion.purpose == "failure":
            if conclusion.is_news:
                log(f"before round {conclusion.round} was stopped: {conclusion.answer.sentences[0]}")
            if self._round is not None and self._round.round == conclusion.round:
                self._end_window(self._round)
            return
        silence, self._untold_silence = self._untold_silence, ""
        for sentence in (silence, *conclusion.answer.sentences, *conclusion.answer.folders):
            if sentence:
                log(sentence)
        log(f"hint: {conclusion.answer.hint}")
        answer = conclusion.answer
        self.observer.history.add_hang(answer.kind, answer.culprits, answer.sentences[0], answer.folders)
        if self.on_hang == "restart" and self._round is not None and self._round.round == conclusion.round:
            self._end_hang(self._round, conclusion)

    def _end_window(self, round: lifecycle.Round) -> None:
        """Go on with a restart that has waited for a look at the survivors, unless one of them is about to end."""
        from launcher.hardware.linux.kernel import read_stat

        self._is_explained = True
        stats = [read_stat(pid) for pid in self.worker_channel.list_pids(round).values()]
        if all(stat is not None and not stat.is_ending for stat in stats):  # else it may be the cause
            self._carry_out_all(round, round.end_window(read_clock()))

    def _end_hang(self, round: lifecycle.Round, conclusion: Conclusion) -> None:
        """End the workers of this node whose end makes all restart."""
        assert self._assignment is not None
        if conclusion.answer.kind == "healthy":
            log("no restart: the workers are busy, and none waits for another")
            return
        self._is_explained = True
        ranks = conclusion.to_end or (0,)
        own = [local for local, rank in enumerate(self._assignment.ranks) if rank in ranks and local in round.live]
        self.worker_channel.abort(round, own, "no sign of progress", read_clock())

    # --- actions of the round ---

    def _carry_out_all(self, round: lifecycle.Round, actions: list[lifecycle.RoundAction]) -> None:
        for action in actions:
            match action:
                case lifecycle.SignalWorkers(signum):
                    self.worker_channel.signal_workers(round, signum, self.termination.notice_signum)
                case lifecycle.SweepRound():
                    self._pending = None
                    self.supervisor.sweep(round.round)
                    self._stuck_at = read_clock() + STUCK_LIMIT_S
                case lifecycle.ReportSucceeded():
                    self._submit(events.RoundSucceeded(round.round))
                case lifecycle.ReportFailed(cause):
                    self._report_failed(round, cause)
                case lifecycle.ReportStopped():
                    self._report_stopped(round)

    def _report_failed(self, round: lifecycle.Round, cause: lifecycle.WorkerExit) -> None:
        """Report the cause, with what a worker claims and what follows from its class."""
        share = self._assignment
        taken = share is not None and _attempt(lambda: self.port.is_taken(share), False)
        root = self.failures.set_root_cause(cause.local_rank, is_port_taken=taken)
        final_reason, is_node_fault = root.consequence
        for kind, reason in self.worker_channel.list_claims().values():
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
        if self.worker_channel.check_saves(math.inf):  # after the last look: what a failure undoes counts from here
            self._submit(events.CheckpointSaved(round.round))
        self._round, self._stuck_at, self._pending = None, math.inf, None
        self.port.renew()
        self._submit(events.RoundStopped(round.round, self.port.number, self._read_step()))

    def _read_step(self) -> int:
        """Return the highest training step of the round that has ended, -1 if none is known."""
        step = self.worker_channel.read_step()
        if self.progress_file:
            step = max(step, _attempt(partial(_read_progress_file, self.progress_file), -1))
        return step

    # --- signals and the end ---

    def _take_signal(self, signum: int) -> None:
        if signum == signal.SIGCHLD:
            self.supervisor.reap()
        elif signum == signal.SIGQUIT and self.termination.signum is None and self._can_ask():
            self._has_asked = True
            if inquiries := self._get_inquiries():
                inquiries.ask_why(self._end_after_answer, read_clock())
            else:
                self._end_after_answer(None)
        elif leave := self.termination.take_signal(signum):
            self._leave(leave)
        elif signum == signal.SIGINT and self._round is not None and self._round.live:
            self._carry_out_all(self._round, self._round.kill())
            log("SIGINT again: the workers are killed")

    def _can_ask(self) -> bool:
        """Whether SIGQUIT first shows what the workers do. A second one does not wait for that."""
        return self._round is not None and bool(self._round.live) and not self._has_asked

    def _end_after_answer(self, conclusion: Conclusion | None) -> None:
        """Show what the workers do, then act on SIGQUIT."""
        answer = _attempt(partial(_render_answer, conclusion), "") if conclusion else ""
        write_stderr(answer or "no agent has reported what its workers do")
        if leave := self.termination.take_signal(signal.SIGQUIT):
            self._leave(leave)

    def _take_notice(self, update: NoticeUpdate) -> None:
        """Say what the cloud announces, and shorten a save that is under way if the machine goes before its end."""
        log(update.sentence)
        self.observer.history.take(update)
        round = self._round
        if update.leaves and round is not None and self._stop_reason and round.wake_at < math.inf:
            grace_s = self._request_stop(round, round.wake_at - read_clock())
            self._carry_out_all(round, round.stop(signal.SIGTERM, grace_s, read_clock()))

    def _leave(self, leave: events.LeaveRequest) -> None:
        self.round_log.set_leaving()
        self._submit(leave)

    def _finish(self, end: events.Exit) -> int:
        """Leave nothing behind, then report how it ended."""
        if self._round is not None and not self._loss_reason:
            self.supervisor.sweep(self._round.round)
        self.supervisor.close(SWEEP_LIMIT_S)
        if self.pump is not None:
            self.pump.drain(DRAIN_LIMIT_S)  # when it is closed, it reports what it could not write
        if self._fork_server_error is not None and (end.verdict is None or end.verdict.kind != "failure"):
            raise self._fork_server_error
        _attempt(partial(self.failures.report_end, end, self.script, self._loss_reason), None)
        return end.exit_code


def _load_policy() -> bool:
    """Import what the end of a round takes: when it comes there may be no descriptor left for that."""
    import launcher.model.sentences  # noqa: F401  # workers are told why they are to save
    import rendezvous.sentences  # noqa: F401
    from rendezvous.policy import charge  # noqa: F401

    return True


def _render_answer(conclusion: Conclusion) -> str:
    from launcher.diagnose.answer import render_answer

    return render_answer(conclusion.answer).rstrip()


def _read_progress_file(path: str) -> int:
    from launcher.agent.diagnosis.progress import read_progress_file

    return read_progress_file(path)


def _attempt(call: Callable[[], Answer], otherwise: Answer) -> Answer:
    """Call what may import or open something. Where nothing is left for that it costs the answer, and no job."""
    try:
        return call()
    except (OSError, ImportError, MemoryError) as error:
        log(f"this agent lacks resources at the moment: {describe_bug(error)}")
        return otherwise
