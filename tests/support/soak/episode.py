"""One job of a soak: faults for a while, then everything is healed, then it ends in one of several ways."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from tests.support.network.namespaces import Host
from tests.support.soak import history, lives
from tests.support.soak.history import Change, History, Round
from tests.support.soak.nodes import ENDED_BY_TERM, LEASE_TTL_S, Agent
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

Ending = Literal["success", "failure", "stop"]
EXIT_CODES: dict[Ending, int] = {"success": 0, "failure": 7, "stop": ENDED_BY_TERM}
LEAST_NODES = 2
CRASHES_MAX = 6  # below --max-restarts, of which the last phase needs some
OPTIONS = (
    *("--nproc-per-node", "1", "--lease-ttl", f"{LEASE_TTL_S:g}", "--join-grace", "1", "--grow", "delay=1"),
    *("--max-restarts", str(CRASHES_MAX + 3), "--shutdown-timeout", "5"),
)
STARTED_LIMIT_S = 120.0
HEALED_LIMIT_S = 120.0
"""L1: from the last fault to a round of all nodes that are not on the bench; it takes a lease's time and some more."""
DESCRIPTORS_MAX = 64
ENDED_LIMIT_S = 120.0
FAULTS = {
    "agent told to go": 4,
    "node without power": 4,
    "agent killed": 3,
    "supervisor killed": 1,
    "keeper killed": 1,
    "agent and supervisor killed": 1,
    "agent and keeper killed": 1,
    "keeper and supervisor killed": 1,
    "agent frozen": 3,
    "keeper frozen": 1,
    "agent and supervisor frozen": 1,
    "agent and keeper frozen": 1,
    "keeper and supervisor frozen": 1,
    "node frozen": 3,
    "worker crashed": 4,
    "etcd restarted": 1,
    "etcd frozen": 1,
}


class Due(NamedTuple):
    """`heals`: what it undoes is a fault."""

    at: float
    what: Callable[[], None]
    heals: bool


class Outcome(NamedTuple):
    """`healed_s`: from the last fault to a round of all nodes."""

    broken: list[str]
    faults: Counter[str]
    round_count: int
    agent_count: int
    worker_count: int
    descriptor_count: int
    healed_s: float


class Episode:
    """`directory` is its own; `ending` is how the job shall end."""

    def __init__(
        self, directory: Path, etcd: EtcdServer, hosts: list[Host], chance: random.Random, *, name: str, ending: Ending
    ) -> None:
        self._directory = directory
        self._etcd = etcd
        self._hosts = {host.name: host for host in hosts}
        self._chance = chance
        self._run_id = name
        self._ending = ending
        self._signs = directory / "signs"
        self._signs.mkdir(parents=True)
        self._all: list[Agent] = []
        self._now: dict[str, Agent] = {}
        self._due: list[Due] = []
        self._crash_count = 0
        self._descriptor_count = 0
        self._faults: Counter[str] = Counter()
        self._history = History(etcd.endpoint, name)

    def run(self, fault_s: float) -> Outcome:
        """Raises AssertionError when something is awaited in vain."""
        try:
            for name in self._hosts:
                self._start(name)
            wait_until(self._sealed, STARTED_LIMIT_S, "the first round")
            until = time.monotonic() + fault_s
            while time.monotonic() < until:
                self._make_fault()
                self._pass(self._chance.uniform(0.2, 2.5))
            healed_s = self._heal()
            self._end()
            broken = self._broken_rules()
        except AssertionError as error:
            raise AssertionError(f"{error}{self._told()}") from None
        finally:
            self._etcd_healthy()
            for agent in self._all:
                agent.job.__exit__(None, None, None)
            self._history.close()
        return Outcome(
            broken=[f"{self._run_id}: {sentence}" for sentence in broken],
            faults=self._faults,
            round_count=len(self._sealed()),
            agent_count=len(self._all),
            worker_count=sum(len(agent.job.lives()) for agent in self._all),
            descriptor_count=self._descriptor_count,
            healed_s=healed_s,
        )

    # --- time passes ---

    def _pass(self, seconds: float) -> None:
        """Let time pass, undo what is due, and start again whoever has ended."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for due in [one for one in self._due if one.at <= now]:
                self._due.remove(due)
                due.what()
            for name, agent in list(self._now.items()):
                self._descriptor_count = max(self._descriptor_count, agent.descriptor_count())
                if not agent.is_up:
                    del self._now[name]
                    self._later(self._chance.uniform(0.1, 4.0), partial(self._start, name))
            if now >= until:
                return
            time.sleep(min(0.05, max(0.0, until - now)))

    def _later(self, seconds: float, what: Callable[[], None], *, heals: bool = False) -> None:
        self._due.append(Due(time.monotonic() + seconds, what, heals))

    def _start(self, name: str) -> None:
        host = self._hosts[name]
        where = ("--rdzv-backend", "etcd", "--rdzv-endpoint", self._etcd.endpoint, "--rdzv-id", self._run_id)
        nodes = ("--nnodes", f"{LEAST_NODES}:{len(self._hosts)}", "--local-addr", host.address)
        directory = self._directory / f"agent{len(self._all)}"
        agent = Agent(host, directory, *where, *nodes, *OPTIONS, signs=self._signs)
        self._all.append(agent)
        self._now[name] = agent

    # --- faults ---

    def _make_fault(self) -> None:
        kinds = list(FAULTS)
        kind = self._chance.choices(kinds, [FAULTS[kind] for kind in kinds])[0]
        at_work = [agent for agent in self._now.values() if agent.is_at_work]
        if kind.startswith("etcd"):
            is_done = self._harm_etcd(kind)
        else:
            is_done = len(at_work) > LEAST_NODES and self._harm(self._chance.choice(at_work), kind)
        if is_done:
            self._faults[kind] += 1

    def _harm(self, victim: Agent, kind: str) -> bool:
        """Whether that was possible."""
        has_begun = bool(victim.job.lives()) and victim.has_supervisor
        match kind:
            case "node without power":
                victim.lose_power()
            case "agent killed":
                victim.kill("agent")
            case "agent told to go" if has_begun:
                victim.tell_to_go()
            case "worker crashed" if self._crash_count < CRASHES_MAX and victim.crash_worker():
                self._crash_count += 1
            case _ if has_begun and kind != "worker crashed":
                parts, _, how = kind.rpartition(" ")
                (victim.kill if how == "killed" else partial(self._freeze, victim))(*parts.split(" and "))
            case _:
                return False
        return True

    def _freeze(self, victim: Agent, *parts: str) -> None:
        victim.freeze(*parts)
        self._later(self._chance.uniform(0.3, 2.5 * LEASE_TTL_S), victim.thaw, heals=True)

    def _harm_etcd(self, kind: str) -> bool:
        if any(due.what in (self._etcd.cont, self._etcd.start) for due in self._due):
            return False
        if kind == "etcd restarted":
            self._etcd.kill()
            self._later(self._chance.uniform(0.0, 2 * LEASE_TTL_S), self._etcd.start, heals=True)
        else:
            self._etcd.stop()
            self._later(self._chance.uniform(0.3, 2 * LEASE_TTL_S), self._etcd.cont, heals=True)
        return True

    # --- the end ---

    def _heal(self) -> float:
        """Undo every fault, and wait for a round of all nodes."""
        since = time.monotonic()
        self._due = [due._replace(at=since) if due.heals else due for due in self._due]

        def is_whole() -> bool:
            self._pass(0.0)
            return self._is_whole()

        wait_until(is_whole, HEALED_LIMIT_S, "a round of all nodes")
        return time.monotonic() - since

    def _is_whole(self) -> bool:
        """Whether all nodes that are not on the bench run one round."""
        if len(self._now) < len(self._hosts) or not (sealed := self._sealed()):
            return False
        changes = self._history.changes()
        quarantined = on_the_bench(changes)
        last = sealed[-1]
        ran = {agent.name for agent in self._now.values() if agent.job.ranks(last.number)}
        alive = [pid for agent in self._now.values() for pid in agent.job.worker_pids()]
        is_stopped = any(c.revision > last.revision and c.key.endswith("/ctl/stop") for c in changes)
        is_all = ran | quarantined >= set(self._hosts) and not ran & quarantined
        return is_all and len(alive) == last.seal["world_size"] and not is_stopped

    def _end(self) -> None:
        if self._ending == "stop":
            words = ("stop", self._run_id, "--rdzv-endpoint", self._etcd.endpoint)
            command = [os.path.join(os.path.dirname(sys.executable), "meshctl"), *words]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        else:
            (self._signs / ("finish" if self._ending == "success" else "fail")).touch()
        wait_until(lambda: not any(agent.is_up for agent in self._all), ENDED_LIMIT_S, "the end of all agents")
        for agent in self._all:
            agent.wait_until_nobody_is_left()
        self._history.catch_up()

    def _broken_rules(self) -> list[str]:
        changes, sealed = self._history.changes(), self._sealed()
        found = history.broken_rules(changes)
        if len(names := history.job_keys(changes)) != 1:
            found.append(f"S7: jobs {names} under one name")
        verdicts = [c.record for c in changes if c.key.endswith("/ctl/verdict") and c.record]
        meant = EXIT_CODES[self._ending]
        if [verdict["exit_code"] for verdict in verdicts] != [meant]:
            found.append(f"S3: the verdicts are {verdicts}, {meant} was meant")
        for agent in self._all:
            found += agent.broken_rules(meant)
        lived = [life for agent in self._all for life in agent.job.lives()]
        kin = [life for agent in self._all for life in agent.job.lives("kin")]
        worlds = [world for agent in self._all for world in lives.worlds(agent.job.directory)]
        found += lives.broken_rules(lived, kin, worlds, sealed)
        causes = {agent.root_cause() for agent in self._all if agent.exit_code == meant}
        if self._ending == "failure" and (len(causes) != 1 or "" in causes):
            found.append(f"S9: the agents name {causes} as what failed first")
        if self._descriptor_count > DESCRIPTORS_MAX:
            found.append(f"S6: an agent had {self._descriptor_count} descriptors")
        return found

    def _sealed(self) -> list[Round]:
        changes = self._history.changes()
        return history.rounds(changes, keys[0]) if (keys := history.job_keys(changes)) else []

    def _etcd_healthy(self) -> None:
        """The server is for the next job, too."""
        for due in self._due:
            if due.what in (self._etcd.cont, self._etcd.start):
                due.what()

    def _told(self) -> str:
        shown = [agent for agent in self._all if agent.is_up] or self._all[-3:]
        last = "".join(f"\n--- {agent.name}: {agent.job.stderr[-1500:]}" for agent in shown)
        return f"; faults {dict(self._faults)}; the last rounds {[r.seal for r in self._sealed()[-2:]]}{last}"


def on_the_bench(changes: list[Change]) -> set[str]:
    """The nodes that are spares because they were lost or failed too often."""
    names: dict[str, str] = {}
    spares: dict[str, str] = {}
    for change in changes:
        if change.record and "/members/" in change.key:
            names[change.record["member_id"]] = change.record["node_name"]
        elif change.record and change.key.endswith("/ctl/spares"):
            reasons = [change.record["reasons"][place] for place in change.record["reason_places"]]
            spares = dict(zip(change.record["member_ids"], reasons, strict=True))
    return {names[member_id] for member_id, reason in spares.items() if "quarantined" in reason and member_id in names}
