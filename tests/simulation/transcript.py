"""Transcripts: a script of what happens to a cluster, and the record of what it did.

    # Why this transcript exists.
    world 2:3              the possible worlds: MIN:MAX nodes, or MIN:MAX/GROUP
    set max_restarts=1     settings, before the first start
    command other          the command that agents are started with from here on; attempt 2: to which they belong
    start a b n1..n8       agents start; "restart 0.1 a": when the agent of a is gone, another starts 0.1 s later
    run 3                  let three seconds pass
    fail b 3               a worker on b exits with 3; `fail b 3 echo`: it looks like the loss of a peer,
                           `fail b 3 port`: another program listens on the worker port; `fail b 3 by user code`:
                           it failed in this way; `fail b 76 gives up no data`, `fail b 75 blames node`
    step 1200 a            the workers there have reached this training step
    poison 0               the processes with rank 0 fail after 0.5 s; `poison none` ends it
    succeed a b            all workers there exit with success; save a: they save a checkpoint
    leave a b              as SIGTERM does; crash a: as SIGKILL; poweroff a: the kernel stops, too
    pause a 7              as SIGSTOP; hang a 60: its processes cannot be killed
    cut a 5                no messages between a and the store; cut a peers 5: and all other nodes;
                           cut a b 5: between these two; cut a > b 5, cut a > peers 5: this way only
    deafen a               its watches end; stall a 5: they bring no events
    lag a ctl/ 5 20        its watch of these keys, below the job's, is 5 s behind for 20 s
    revoke a               the store ends its lease early; stale a 20: a replaced leader answers its renewals, and
                           nothing else is answered; stale a 20 served: all else is answered
    slow 2 20              for 20 s the store takes 2 s for each write
    host a                 a, which starts later, serves the store of the others
    wall a                 no presence connection from or to a; mask a: peers see another address
    outage 60 renewed      the store is away; its leases are renewed, frozen or running; "silent": calls time
                           out, instead of being refused
    reset                  a middlebox resets all connections between agents; compact: the store forgets its history
    snapshot               the operator takes a snapshot of the store; restore 9: the store goes back to it, and other
                           programs write 9 revisions before any agent reaches it
    expel a                the operator deletes the member key of a; remove spec (or current, or everything)
    ask drain a            a request as from meshctl: drain, undrain, takeover, stop
    answer lost: seal      the next request of this kind is applied, but its answer is lost;
                           also "request lost", "request late" and "request refused"; "request slow" and
                           "answer slow" (0.9 s); answer slow: a: seal   that of a
    plan 2                 the planner takes 2 s
    ----
        0.000  a starts
        ...

`run(text)` returns the text with a new record, so that a test can compare the two. A violation of an invariant ends
the record.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any

from msgspec.structs import fields, replace

from rendezvous.records import StoreOwner
from rendezvous.settings import Settings
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.config import PREFIX, RUN_ID, Shape
from tests.simulation.invariants.checker import Checker
from tests.simulation.invariants.history import Violation
from tests.simulation.network import ANYBODY, STORE, NetworkModel
from tests.simulation.node import SimulatedNode
from tests.simulation.processes import SimulatedProcesses
from tests.support.reasons import because

SEPARATOR = "----"
VIOLATION = "violation of"
_EXIT_CODES = (1, 2, 75, 137)  # refused, removed, temporary, fenced: a script may cause any of them
_FATES = {
    "answer lost": "unanswered",
    "answer slow": "slow answer",
    "request slow": "slow request",
    "request lost": "lost",
    "request late": "late",
    "request refused": "refused",
}
_FLAGS = {"host": "hosts_store", "wall": "is_walled", "mask": "is_masked"}


def run(text: str) -> str:
    """Play the script above the separator; the script with the record of this run below it."""
    script = text.partition(f"\n{SEPARATOR}\n")[0].rstrip("\n")
    player = _Player()
    for number, line in enumerate(script.splitlines(), start=1):
        words = line.split("#")[0].split()
        if words:
            try:
                player.play(words, line.split("#")[0].strip())
            except Violation as violation:
                player.record.append(f"{VIOLATION} {violation}")
                break
            except (ValueError, KeyError, IndexError) as error:
                raise ValueError(f"line {number}: {line!r}: {error}") from error
    return "\n".join([script, SEPARATOR, *player.record]) + "\n"


class _Player:
    def __init__(self) -> None:
        self.record: list[str] = []
        self._shape = Shape()
        self._settings = Settings(join_grace_s=1.0)
        self._built_cluster: SimulatedCluster | None = None
        self._checker: Checker | None = None
        self._poisoned_rank = -1

    @property
    def _cluster(self) -> SimulatedCluster:
        if self._built_cluster is None:
            self._built_cluster = SimulatedCluster(
                random=Random(1),
                settings=self._settings,
                shape=self._shape,
                network=NetworkModel(delay_s=(0.001, 0.001), late_s=(3.0, 3.0)),
                trace=self.record.append,
            )
            cluster = self._built_cluster
            cluster.config.stop_s = 0.05
            cluster.observers.after_start = self._poison_later
            self._checker = Checker(cluster, exit_codes=_EXIT_CODES)
        return self._built_cluster

    def play(self, words: list[str], line: str) -> None:
        fate, colon, kind = line.partition(": ")
        if colon and fate in _FATES:
            self._cluster.store_network.fates[kind] = _FATES[fate]
            return
        match words:
            case ["world", world]:
                span, _, group = world.partition("/")
                low, _, high = span.partition(":")
                self._shape = Shape(nodes_min=int(low), nodes_max=int(high or low), group=int(group or 1))
            case ["set", *assignments]:
                self._set(assignments)
            case ["command", command]:
                self._cluster.config.command = command
            case ["attempt", number]:
                self._cluster.config.attempt = int(number)
            case ["run", seconds]:
                self._cluster.run(self._cluster.now + float(seconds))
            case ["start", *names]:
                for name in _expand(names):
                    node = self._cluster.nodes.get(name) or self._cluster.add(name)
                    if node.is_up or node.running is not None:
                        raise ValueError(f"something runs on {name}")
                    node.start()
            case ["restart", seconds, name]:
                self._restart(self._cluster.nodes[name], float(seconds))
            case ["poison", rank]:
                self._poisoned_rank = -1 if rank == "none" else int(rank)
                for node in self._cluster.nodes.values():
                    self._poison_later(node.processes)
            case ["cut", *ways, seconds]:
                self._cut(ways, float(seconds))
            case ["outage", seconds, leases, *silent]:
                self._cluster.storage.go_away(float(seconds), leases, silent != ["silent"])
            case ["ask", kind, *target]:
                self._cluster.operator.ask(kind, *target)
            case ["remove" | "expel" as what, target]:
                self._remove(what, target)
            case _:
                self._apply_fault(words)

    def _apply_fault(self, words: list[str]) -> None:
        nodes, cluster = self._cluster.nodes, self._cluster
        match words:
            case ["fail", name, code, "gives", "up", *reason]:
                nodes[name].processes.fail(int(code), is_final=True, final_reason=because(" ".join(reason)))
            case ["fail", name, code, "blames", "node"]:
                nodes[name].processes.fail(int(code), is_node_fault=True)
            case ["fail", name, code, "by", *failure_class]:
                nodes[name].processes.fail(int(code), failure_class=because(" ".join(failure_class)))
            case ["fail", name, code, *how]:
                nodes[name].processes.fail(int(code), how == ["echo"], how == ["port"])
            case ["step", number, *names]:
                for name in _expand(names):
                    nodes[name].processes.step = int(number)
            case ["succeed" | "save" as what, *names]:
                for name in _expand(names):
                    getattr(nodes[name].processes, what)()
            case ["hang", name, seconds]:
                nodes[name].processes.hang(float(seconds))
            case ["pause" | "stall" as what, name, seconds]:
                getattr(nodes[name], what)(float(seconds))
            case ["crash" | "leave" | "deafen" | "poweroff" as what, *names]:
                for name in _expand(names):
                    getattr(nodes[name], {"poweroff": "power_off"}.get(what, what))()
            case ["host" | "wall" | "mask" as what, name]:
                setattr(nodes.get(name) or cluster.add(name), _FLAGS[what], True)
                if what == "host":
                    owner = StoreOwner(prefix=PREFIX, run_id=RUN_ID, node_name=name, presence_address=f"{name}:7001")
                    cluster.config.store_owner = owner
            case ["lag", name, key, lag_s, seconds]:
                watched = next(each for each in nodes[name].watched if each.endswith(f"/{key}"))
                nodes[name].lag(watched, float(lag_s), float(seconds))
            case ["revoke", name]:
                cluster.storage.end_lease_early(nodes[name])
            case ["stale", name, seconds, *served]:
                nodes[name].meet_stale_leader(float(seconds), served == ["served"])
            case ["slow", write_s, seconds]:
                cluster.storage.write_slowly((float(write_s), float(write_s)), float(seconds))
            case ["plan", seconds]:
                cluster.config.plan_s = (float(seconds), float(seconds))
            case ["reset"]:
                cluster.timeline.trace("all connections between agents are reset")
                cluster.presence.reset()
            case ["compact"]:
                cluster.storage.compact()
            case ["snapshot"]:
                cluster.storage.take_snapshot()
            case ["restore", others]:
                cluster.storage.restore(int(others))
            case _:
                raise ValueError("no such command")

    def _cut(self, ways: list[str], seconds: float) -> None:
        cluster = self._cluster
        cluster.timeline.trace(f"cut for {seconds:g} s: {' '.join(ways)}")
        ends = [ANYBODY if way == "peers" else way for way in ways if way != ">"]
        if len(ends) == 1:
            cluster.network.cut(ends[0], STORE, seconds)
            return
        cluster.network.cut(ends[0], ends[1], seconds)
        if ">" not in ways:
            cluster.network.cut(ends[1], ends[0], seconds)

    def _remove(self, what: str, target: str) -> None:
        cluster = self._cluster
        if what == "expel":
            cluster.timeline.trace(f"somebody removes {target}")
            cluster.operator.remove(cluster.nodes[target].member_ids[-1])
        else:
            assert self._checker is not None
            self._checker.is_removed = True
            cluster.operator.remove(target)

    def _restart(self, node: SimulatedNode, seconds: float) -> None:
        if node.ended is None or node.ended.verdict is None:
            node.start_if_down()
            self._cluster.timeline.call_later(seconds, self._restart, node, seconds)

    def _poison_later(self, processes: SimulatedProcesses) -> None:
        running = processes.running
        if running is not None and running.rank == self._poisoned_rank:
            self._cluster.timeline.call_later(0.5, self._poison, processes, running)

    def _poison(self, processes: SimulatedProcesses, running: object) -> None:
        if processes.running is running:
            processes.fail(1)

    def _set(self, assignments: list[str]) -> None:
        if self._built_cluster is not None:
            raise ValueError("settings come before the first start")
        kinds = {item.name: type(getattr(self._settings, item.name)) for item in fields(Settings)}
        for assignment in assignments:
            name, _, text = assignment.partition("=")
            kind = kinds[name]
            value: Any = text if kind is str else text == "yes" if kind is bool else kind(float(text))
            self._settings = replace(self._settings, **{name: value})


def _expand(names: Sequence[str]) -> list[str]:
    """Names, with n1..n3 for n1 n2 n3."""
    found: list[str] = []
    for name in names:
        span = re.fullmatch(r"([a-z]+)(\d+)\.\.\1(\d+)", name)
        if span is None:
            found.append(name)
        else:
            found += [f"{span[1]}{number}" for number in range(int(span[2]), int(span[3]) + 1)]
    return found
