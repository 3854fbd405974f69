"""The person who operates a simulated job: requests as `meshctl` leaves them in the store, and deleted keys."""

from __future__ import annotations

from rendezvous import records
from rendezvous.records import Command
from rendezvous.testing.simulation.config import PREFIX, RUN_ID, ClusterConfig
from rendezvous.testing.simulation.contract import DirectStore
from rendezvous.testing.simulation.timeline import Timeline


class Operator:
    def __init__(self, timeline: Timeline, config: ClusterConfig, server: DirectStore) -> None:
        self.drained: set[str] = set()  # nodes of which a drain was requested, ever
        self._timeline = timeline
        self._config = config
        self._server = server

    def ask(self, kind: str, target: str = "") -> None:
        """Leave a request for the leader, and retry while the store is away."""
        job_name = self._server.read_current_job()
        if self._server.is_away or not job_name:
            self._timeline.call_later(1.0, self.ask, kind, target)
            return
        self._timeline.trace(f"somebody asks: {kind} {target}".rstrip())
        self._timeline.count(f"asked to {kind}")
        if kind == "drain":
            self.drained.add(target)
        key = records.make_job_keys(PREFIX, RUN_ID, job_name).make_command_key(
            f"{self._timeline.random.getrandbits(64):016x}"
        )
        command = Command(kind=kind, target=target, by="somebody")
        self._server.store.put(key, records.encode(command, key, self._config.secret))
        self._server.deliver()

    def remove(self, what: str) -> None:
        """Delete the keys with this last component, or everything."""
        for item in self._server.store.get(f"/{PREFIX}/", prefix=True).items:
            if what in ("everything", item.key.rpartition("/")[2]):
                self._server.store.delete(item.key)
        self._server.deliver()
