"""This node's part in the agreement, in a thread of torchrun's agent.

torchrun asks from its main thread, when it pleases: where do I stand, is anybody waiting, we are done. The agreement
speaks when something happens. Between the two is one round at a time, which begins when the others seal it, and is over
on this node when torchrun has stopped its workers and comes back for the next. What torchrun does is told by the
methods here, what the others want is read from them; all of them are for torchrun's thread.

There is no warden beside torchrun's agent. If the lease cannot be renewed, this node's workers are stopped by
torchrun's own means, which take it up to half a minute, and not by the kernel.
"""

from __future__ import annotations

import math
import threading

from launcher.arrival import Arrival
from launcher.console import tell
from launcher.errors import TemporaryError
from launcher.membership import join, now, settings
from launcher.reporting.narrator import Narrator
from launcher.roster.description import Share, read_share
from launcher.torchrun_handler.port import OfferedPort
from launcher.torchrun_handler.terms import Terms, limits
from rendezvous import events
from rendezvous.events import Exit, StartRound

LOOK_LIMIT_S = 3600.0  # the longest sleep of the thread; nothing depends on it
EXIT_LEFT = 143  # as after SIGTERM


class Member:
    """Raises UsageError and TemporaryError, when the store does not take this node in."""

    def __init__(self, terms: Terms, arrival: Arrival) -> None:
        config = terms.config
        self._limits = limits(settings(config))
        self._knows_workers = terms.knows_workers
        self._narrator = Narrator(is_alone=False, max_restarts=0)
        self.offer = OfferedPort(arrival.address, config.worker_port_range)
        self._wakeup = threading.Event()
        self._news = threading.Condition()  # for what torchrun's thread waits for, and what guards the rest
        self._start: StartRound | None = None  # of the round on this node, until torchrun's workers of it are gone
        self._is_begun = False  # torchrun has, or had, workers of it
        self._stop: str | None = None  # why it ends, once it does
        self._has_succeeded = False
        self._is_leaving = False
        self._leash_until = math.inf
        self._end: Exit | None = None
        self._mistake: Exception | None = None  # ours, made in the thread
        self._listener = arrival.listener
        self._membership = join(
            config,
            self._limits,
            terms.mesh,
            arrival,
            slot_count=terms.slot_count,
            run_id=config.run_id or "",
            node_name=arrival.name,
            worker_port=self.offer.number,
            wake=self._wakeup.set,
        )
        self._driver = self._membership.driver
        self._thread = threading.Thread(target=self._live, name="meshrun", daemon=True)

    # --- what torchrun's thread asks ---

    @property
    def end(self) -> Exit | None:
        """How this node's part in the job ended, None while it has not."""
        return self._end

    @property
    def has_workers(self) -> bool:
        """Whether torchrun has begun a round, and has not come back for the next."""
        return self._is_begun and not self._has_ended

    @property
    def has_succeeded(self) -> bool:
        """Whether the workers of the last round on this node have."""
        return self._has_succeeded

    def next_round(self) -> tuple[StartRound, Share] | None:
        """Wait for a round with ranks for this node; None once there will be none.

        Raises what went wrong in the thread.
        """
        if not self._thread.is_alive() and self._end is None and self._mistake is None:
            self._driver.submit(events.Start())
            self._thread.start()
        with self._news:
            self._news.wait_for(lambda: self._start is not None or self._has_ended)
            self._require_no_mistake()
            return None if self._start is None else (self._start, read_share(self._start.assignment))

    def is_over(self) -> bool:
        """Whether the round on this node ends, or has ended. Raises what went wrong in the thread."""
        self._require_no_mistake()
        return self._stop is not None or self._start is None or self._end is not None

    def why_over(self) -> str:
        """The reason for that."""
        return self._stop or (self._end.reason if self._end is not None else "")

    def wait_for_end(self, limit_s: float) -> Exit | None:
        """Wait until this node's part has ended; None if it has not within the limit."""
        with self._news:
            self._news.wait_for(lambda: self._has_ended, limit_s)
        return self._end

    def wait_until_over(self, limit_s: float) -> bool:
        """Wait until the round on this node ends; whether it does within the limit."""
        with self._news:
            return self._news.wait_for(lambda: self._stop is not None or self._has_ended, limit_s)

    # --- what torchrun's thread tells ---

    def begin(self) -> None:
        """torchrun starts its workers of the round."""
        self._is_begun = True

    def stopped(self) -> None:
        """torchrun has no workers of the round any more. If nobody wanted that, they have failed.

        Raises TemporaryError when no port can be had for another one.
        """
        with self._news:
            start, stop, is_begun = self._start, self._stop, self._is_begun
            self._start, self._stop, self._is_begun, self._has_succeeded = None, None, False, False
        if start is None:
            return
        if stop is None and is_begun:
            self._driver.submit(events.RoundFailed(start.round, 1, False, ""))
        try:
            self.offer.renew()
        except TemporaryError as error:  # nobody could meet here
            self.leave(str(error))
            raise
        finally:
            self._driver.submit(events.RoundStopped(start.round, self.offer.number))

    def succeeded(self) -> None:
        """All workers of the round on this node have succeeded, and are gone."""
        if self._start is not None:
            self._has_succeeded = True
            self._driver.submit(events.RoundSucceeded(self._start.round))

    def give_up(self, exit_code: int, failure: str, rank: int) -> None:
        """torchrun has stopped its workers after a failure, for good: the job fails, and this node stays for that.

        Also where the round ends already, for the same reason perhaps: with this node it cannot begin again.
        """
        if not self.has_workers or self._start is None:
            self.leave("torchrun has ended", exit_code)
            return
        round = self._start.round
        self._driver.submit(events.RoundFailed(round, exit_code, False, failure, rank, is_final=True))
        self._be_without_workers()

    def leave(self, reason: str, exit_code: int = EXIT_LEFT) -> None:
        """torchrun has no workers any more, and goes."""
        if self._thread.ident is None:  # it never asked for a round, so there is nobody to tell
            self._end = self._end or Exit(exit_code, reason, None)
            return
        self._driver.submit(events.LeaveRequest(reason, exit_code))
        self._be_without_workers()

    def close(self) -> None:
        """After the end: give back what is held."""
        if self._thread.ident is None:
            self._end = self._end or Exit(0, "", None)
            self._give_up_membership()
        self.offer.close()

    # --- the thread ---

    @property
    def _has_ended(self) -> bool:
        return self._end is not None or self._mistake is not None

    def _require_no_mistake(self) -> None:
        if self._mistake is not None:
            raise self._mistake

    def _be_without_workers(self) -> None:
        """From here on every round ends as soon as the others want it to."""
        with self._news:
            self._is_leaving = True
            start = self._start if self._stop is not None else None
        if start is not None:
            self._driver.submit(events.RoundStopped(start.round, 0))
        self._wakeup.set()

    def _live(self) -> None:
        try:
            while self._end is None:
                self._wakeup.clear()
                self._turn()
                if self._end is None:
                    self._wakeup.wait(max(0.0, min(self._wake_at() - now(), LOOK_LIMIT_S)))
        except Exception as error:  # whose thread this is does not matter to whoever reads the message
            self._mistake = error
        finally:
            self._give_up_membership()
            with self._news:
                self._news.notify_all()

    def _give_up_membership(self) -> None:
        self._membership.close()
        self._listener.close()

    def _turn(self) -> None:
        if self._start is not None and now() >= self._leash_until:
            self._leash_until = math.inf
            self._driver.submit(events.WatchdogExpired())
        while actions := self._driver.run():
            for action in actions:
                self._carry_out(action)
        if self._start is None and not self._is_leaving:
            self._narrator.waits(now())

    def _wake_at(self) -> float:
        if self._start is not None:
            return min(self._driver.wake_at, self._leash_until)
        return min(self._driver.wake_at, math.inf if self._is_leaving else self._narrator.wake_at)

    def _carry_out(self, action: events.Action) -> None:
        match action:
            case StartRound():
                self._begin_round(action)
            case events.StopRound(round, _, reason):
                self._end_round(round, reason)
            case events.ExtendWatchdog(until):
                self._leash_until = until
            case events.Log(sentence, is_remark):
                self._narrator.note(sentence, is_remark=is_remark)
            case Exit():
                with self._news:
                    self._end = action
                    self._news.notify_all()

    def _begin_round(self, start: StartRound) -> None:
        share = read_share(start.assignment)
        with self._news:
            self._start, self._stop = start, None
            self._news.notify_all()
        if self._is_leaving:
            self._driver.submit(events.LeaveRequest("torchrun has ended", EXIT_LEFT))
        else:
            self._narrator.runs()
            tell(f"round {start.round}: {self._summary(share)}; this is node {share.group_rank}")

    def _end_round(self, round: int, reason: str) -> None:
        with self._news:
            if self._start is None or self._start.round != round:
                return
            self._stop = self._stop or reason
            self._news.notify_all()
        if not self._has_succeeded:
            self._narrator.ends(round, reason)
        if self._is_leaving:
            self._driver.submit(events.RoundStopped(round, 0))

    def _summary(self, share: Share) -> str:
        """The round in a few words. Where nobody knows how many workers a node has, the plan's ranks are nodes."""
        count = share.group_world_size
        return share.summary if self._knows_workers else f"{count} node{'s' * (count > 1)}"
