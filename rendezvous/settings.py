"""Every limit and time of the agreement, in seconds, validated once, each with its reason."""

from __future__ import annotations

import math

from msgspec import Struct

from rendezvous.errors import SettingsError

OPERATIONS_MIN = 8  # or comparisons: what the transactions of a leader need in any case


class Settings(Struct, frozen=True, kw_only=True):
    lease_ttl_s: float = 5.0
    """How long a silent member stays a member. Infinite only on a private store, where no other can take its place."""
    keep_alive_parts: int = 5
    """Renewals per TTL: two may be lost and a third still comes in time."""
    call_parts: int = 5
    """The longest a read may take before the store counts as silent, as a part of the TTL: a longer lease waits longer
    for a slow store. A renewal is two such calls."""
    write_limit_s: float = 5.0
    """The longest a write may take before its outcome counts as unknown. It waits for the disks of most servers; a
    time-out that is too short repeats it, which loads a slow disk more. etcd itself times out after 7 s."""
    kill_margin_s: float = 1.0
    """The watchdog ends this long before the lease, so that workers have died when the member is lost."""
    retry_delay_s: float = 0.2
    """Pause before a refused request is repeated; a healthy store answers within milliseconds."""
    retry_delay_max_s: float = 3.0
    """The pause doubles up to this while consecutive writes get no reply."""

    presence_proof: bool = True
    """Whether refused dials prove that a node is gone; off if middleboxes forge resets."""
    successor_delay_s: float = 0.1
    """How long the second successor of a lost leader waits for the first; the third waits twice as long."""
    resync_ttls: float = 2.0
    """Every member re-reads its watched keys at least this often: a watch may have gone stale."""
    view_ttls: float = 7.0
    """Workers live no longer than this after such a read was sent, even if the lease is renewed; and a member that has
    not stopped a round is not removed sooner. So reads may fail for 20 s while leases are renewed."""
    isolation_ttls: float = 2.0
    """A member that renews its lease but has been unreachable for this many TTLs, after it was reached, is removed."""

    continues_without_store: bool = True
    """Whether a store outage leaves a running round alone, as long as its whole roster sees the same outage."""
    probe_s: float = 1.0
    """Within this all members must confirm an outage, or no watchdog is extended."""
    outage_limit_s: float = 600.0
    """The longest outage that a round survives."""

    target_nodes: int = 0
    """First round: wait for this many nodes up to start_timeout_s, even if fewer suffice; 0 turns this off."""
    grow: str = "delay"
    """When a job uses nodes that joined later: "never", after "delay", or at the next "checkpoint"."""
    join_grace_s: float = 30.0
    """First round: how long to wait for more nodes after the last arrival once a world is possible (torchrun: 30)."""
    start_timeout_s: float = 600.0
    """First round: how long to wait for a possible world at all (torchrun's join time-out: 600)."""
    rejoin_timeout_s: float = 1800.0
    """Later rounds: how long too few nodes may wait for others to rejoin."""
    grow_delay_s: float = 300.0
    """Time without a new node before a running job restarts to use it."""
    election_spread_s: float = 1.0
    """If no successor has replaced a lost leader, the others try after a random time within this, not all at once."""

    settle_s: float = 1.0
    """How long after a failure the loss of a node still explains it: peers' sockets break before a lease ends."""
    leave_settle_s: float = 0.2
    """Departures this close together make one restart."""
    announce_limit_s: float = 0.1
    """How long a departing member waits for its announcement to be acknowledged before it signals its workers."""
    restart_grace_s: float = 5.0
    """TERM to KILL when a round ends by failure or loss."""
    shutdown_timeout_s: float = 30.0
    """Stop signal to KILL when workers may save (torchrun's flag and default)."""
    stop_limit_s: float = 30.0
    """Beyond the grace: a member that has not stopped by then is fenced, but never within a lease's time."""

    operations_per_txn: int = 100
    """The most operations, or comparisons, of a leader's transaction. etcd allows 128 unless its --max-txn-ops says
    otherwise."""
    observe_pause_s: float = 1e-4
    """Per member, between two observations of the leader: one takes some 8 us per member, so a tenth of the time."""

    max_restarts: int = 0
    """Worker failures the job survives (torchrun's default)."""
    restart_window_s: float = math.inf
    """Only failures this recent count against max_restarts."""
    min_round_time_s: float = 5.0
    """A round that ended sooner made no progress."""
    backoff_first_s: float = 1.0
    """Pause after the second short round in a row; doubled for each further one. The first is restarted at once."""
    backoff_max_s: float = 60.0
    no_progress_rounds: int = 10
    """This many short rounds in a row end the job, whatever their reason."""
    stuck_rounds: int = 3
    """This many failed rounds in a row that got no further than any before end the job, if workers report steps."""
    quarantine_failures: int = 3
    """This many first failures of workers on one node within quarantine_window_s quarantine it."""
    flap_limit: int = 3
    """This many losses of one node within quarantine_window_s quarantine it, whatever its member ids."""
    quarantine_window_s: float = 1800.0
    quarantine_first_s: float = 60.0
    """How long the first quarantine lasts; doubled for each further one."""
    quarantine_max_s: float = 3600.0
    port_taken_rounds: int = 3
    """This many rounds in a row may end uncharged because another process listened on the worker port."""
    blame_window_s: float = 0.1
    """Of two first failures this close together it is not certain which came first."""
    farewell_s: float = 10.0
    """How long the agent that serves the store waits for others to read the verdict."""
    keep_finished_s: float = 3600.0
    """How long late agents can read the verdict."""
    on_finished: str = "next"
    """What an agent does that finds this run id's job ended. `next`: open the next one if it has failed or was stopped;
    `exit`: end as it did; `rerun`: open the next one in any case."""

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
