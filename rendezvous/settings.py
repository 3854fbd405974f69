"""Every limit and time of the agreement, in seconds, validated once, each with its reason."""

from __future__ import annotations

import math

from msgspec import Struct

from rendezvous.errors import SettingsError

OPERATIONS_MIN = 8  # or comparisons: what the transactions of a leader need in any case


class Settings(Struct, frozen=True, kw_only=True):
    lease_ttl_s: float = 5.0
    """Time without renewal after which a member is lost. Infinite only with a private store."""
    keep_alive_parts: int = 5
    """Number of renewals per lease: if two fail, a third is still in time."""
    call_parts: int = 5
    """Time limit of a read: the lease divided by this number. A renewal consists of two such calls."""
    write_limit_s: float = 5.0
    """Time limit of a write, after which its outcome counts as unknown. A write waits for the disks of most servers;
    repeating it puts more load on a slow disk. etcd itself times out after 7 s."""
    kill_margin_s: float = 1.0
    """How much earlier than the lease the watchdog expires, so that workers have exited when the member is lost."""
    retry_delay_s: float = 0.2
    """Pause before a failed request is repeated."""
    retry_delay_max_s: float = 3.0
    """Longest pause: retry_delay_s doubles with each consecutive write that gets no reply."""

    presence_proof: bool = True
    """Whether refused connections prove that a node is gone. Turn this off if middleboxes forge resets."""
    successor_delay_s: float = 0.1
    """How long the second successor of a lost leader waits for the first; the third waits twice as long."""
    resync_ttls: float = 2.0
    """Longest interval between reads of all watched keys, in case a watch has gone stale."""
    view_ttls: float = 7.0
    """A node whose re-reads fail for this long kills its workers, even if it renews its lease. Before this time, a
    member that has not stopped a round is not removed. So reads can fail for 20 s."""
    isolation_ttls: float = 2.0
    """How long a member can be unreachable before it is removed, if it was reachable before and still renews its
    lease."""

    continues_without_store: bool = True
    """Whether a round continues during a store outage, if all of its members see the same outage."""
    probe_s: float = 1.0
    """Time within which all members must confirm an outage; otherwise no watchdog is extended."""
    outage_limit_s: float = 600.0
    """Longest store outage that a round survives."""

    target_nodes: int = 0
    """First round: number of nodes to wait for, up to start_timeout_s, even if fewer suffice; 0: off."""
    grow: str = "delay"
    """When a job restarts to use nodes that joined later: "never", after a "delay", or at the next "checkpoint"."""
    join_grace_s: float = 30.0
    """First round: time to wait for more nodes after the last one has joined, if a world is possible (torchrun: 30)."""
    start_timeout_s: float = 600.0
    """First round: time limit for a world to become possible (torchrun's join time-out: 600)."""
    rejoin_timeout_s: float = 1800.0
    """Later rounds: time limit for missing nodes to rejoin while too few are present."""
    grow_delay_s: float = 300.0
    """Time after the last node has joined before a running job restarts to use it."""
    election_spread_s: float = 1.0
    """If no successor replaces a lost leader, other members try after random delays of up to this time."""

    settle_s: float = 1.0
    """If a node is lost within this time after a failure, the loss may be the cause: connections break before leases
    end."""
    leave_settle_s: float = 0.2
    """Departures this close together cause a single restart."""
    announce_limit_s: float = 0.1
    """How long a leaving member waits for replies to its announcement before it signals its workers."""
    restart_grace_s: float = 5.0
    """Time from SIGTERM to SIGKILL when a failure or a lost node ends a round."""
    shutdown_timeout_s: float = 30.0
    """Time from the stop signal to SIGKILL when workers may save (torchrun's option and default)."""
    stop_limit_s: float = 30.0
    """How long after the grace period a member that has not stopped is fenced, but never before view_ttls."""

    operations_per_txn: int = 100
    """Maximum number of operations or comparisons in a transaction of the leader. etcd allows 128 by default
    (--max-txn-ops)."""
    observe_pause_s: float = 1e-4
    """Pause per member between two observations by the leader; an observation takes about 8 µs per member."""

    max_restarts: int = 0
    """Worker failures that the job survives (torchrun's default)."""
    restart_window_s: float = math.inf
    """Only failures within this time count against max_restarts."""
    min_round_time_s: float = 5.0
    """A round that ends sooner counts as short: it made no progress."""
    backoff_first_s: float = 1.0
    """Pause after the second short round in a row, doubled for each further one. The first causes no pause."""
    backoff_max_s: float = 60.0
    """Longest pause after a short round."""
    no_progress_rounds: int = 10
    """The job ends after this many short rounds in a row, whatever their cause."""
    stuck_rounds: int = 3
    """If workers report steps, the job ends after this many failed rounds in a row without a new highest step."""
    quarantine_failures: int = 3
    """A node is quarantined if its workers failed first in this many rounds within quarantine_window_s."""
    flap_limit: int = 3
    """A node is quarantined if it was lost this many times within quarantine_window_s, whatever its member ids."""
    quarantine_window_s: float = 1800.0
    """Time in which failures and losses of a node are counted."""
    quarantine_first_s: float = 60.0
    """Length of a node's first quarantine, doubled for each further one."""
    quarantine_max_s: float = 3600.0
    """Longest quarantine."""
    port_taken_rounds: int = 3
    """Number of rounds in a row that can fail without a charge because another process uses the worker port."""
    blame_window_s: float = 0.1
    """If the failures of two nodes are this close together, it is uncertain which came first."""
    farewell_s: float = 10.0
    """How long the agent that serves the store waits for other agents to read the verdict."""
    keep_finished_s: float = 3600.0
    """How long late agents can read a verdict."""
    on_finished: str = "next"
    """Action if a job of this run id has ended. `next`: start a new job unless it succeeded; `exit`: exit with its
    result; `rerun`: always start a new job."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, str):
                continue
            if not value >= 0:  # also refuses NaN
                raise SettingsError(f"{name} is {value}, it cannot be negative")
        if self.grow not in ("never", "delay", "checkpoint"):
            raise SettingsError(f"grow is {self.grow!r}, not never, delay or checkpoint")
        if self.keep_alive_parts < 2:
            raise SettingsError(f"keep_alive_parts is {self.keep_alive_parts}, a lease needs 2 renewals at least")
        if self.operations_per_txn < OPERATIONS_MIN:
            raise SettingsError(
                f"operations_per_txn is {self.operations_per_txn}, a leader's transactions need {OPERATIONS_MIN}"
            )
        pause_share = 1 - 1 / self.keep_alive_parts - 2 / max(self.call_parts, 1)
        if pause_share <= 0:
            raise SettingsError(
                f"call_parts is {self.call_parts}, the two calls of a renewal leave no time for a pause"
            )
        needed = self.keep_alive_interval_s + 2 * self.call_limit_s + self.kill_margin_s
        if self.lease_ttl_s < math.inf and self.lease_ttl_s <= needed:
            raise SettingsError(
                f"a lease of {self.lease_ttl_s:g} s is too short: a renewal every {self.keep_alive_interval_s:g} s, "
                f"two calls of up to {self.call_limit_s:g} s and a margin of {self.kill_margin_s:g} s must fit in it",
                f"give more than {self.kill_margin_s / pause_share:g} s",
            )

    @property
    def keep_alive_interval_s(self) -> float:
        return self.lease_ttl_s / self.keep_alive_parts

    @property
    def call_limit_s(self) -> float:
        """The longest a renewal's two calls or a read may take, each: no longer than a write."""
        return min(self.lease_ttl_s / self.call_parts, self.write_limit_s)

    @property
    def isolation_s(self) -> float:
        return self.isolation_ttls * self.lease_ttl_s

    @property
    def silence_s(self) -> float:
        """How long nothing may arrive over a presence connection before it counts as ended: half a lease."""
        return self.lease_ttl_s / 2

    @property
    def view_s(self) -> float:
        return self.view_ttls * self.lease_ttl_s

    def get_grace_s(self, mode: str) -> float:
        """Return the time from the stop signal to KILL in a stop of this mode: "kill", "grace" or "fence"."""
        return {"kill": self.restart_grace_s, "grace": self.shutdown_timeout_s}.get(mode, 0.0)

    def compute_gone_within_s(self, mode: str) -> float:
        """Return the time from a stop until a member that has not stopped is given up.

        Not before its last read of the store is too old: a node that does not receive the stop, though it renews its
        lease, has killed its workers by then.
        """
        view_s = self.view_s if self.lease_ttl_s < math.inf else 0.0
        return max(self.get_grace_s(mode) + self.stop_limit_s, view_s)

    def compute_retry_s(self, unanswered: int) -> float:
        """Return the pause after this many consecutive writes without a reply."""
        doublings = min(unanswered - 1, 60)
        return float(min(self.retry_delay_s * 2.0**doublings, max(self.retry_delay_s, self.retry_delay_max_s)))

    def compute_backoff_s(self, short_rounds: int) -> float:
        """Return the pause before the round after `short_rounds` short ones in a row."""
        if short_rounds < 2:
            return 0.0
        doublings = min(short_rounds - 2, 60)  # beyond any limit, and still a number
        return float(min(self.backoff_first_s * 2.0**doublings, self.backoff_max_s))


DEFAULTS = Settings()
