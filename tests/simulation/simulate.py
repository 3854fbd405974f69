"""One seed: a cluster, faults for a while, a heal, and a verdict within a time limit.

`run(seed)` draws a world, settings and faults from the seed alone. What must hold meanwhile is in `invariants`, the
faults are in `faults`. A seed has the same result on every machine and with every version of Python.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from rendezvous.settings import OPERATIONS_MIN, Settings
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.config import Shape
from tests.simulation.faults import THEMES, FaultInjector
from tests.simulation.invariants.checker import Checker
from tests.simulation.invariants.history import Violation
from tests.simulation.network import NetworkModel
from tests.simulation.node import describe_status
from tests.simulation.work import SimulatedWork

FAULTS_S = 60.0  # virtual time during which faults happen
HEAL_S = 600.0  # after the last fault the job must end within this time
STEPS_MAX = 400_000
CHILDREN_LATE_S = 0.8  # how long processes of killed workers stay alive after the watchdog, which allows 1 s

__all__ = ["SeedResult", "Violation", "attempt", "make_replay_command", "run"]


class SeedResult(Struct, frozen=True, kw_only=True):
    """The result of one seed, for statistics: the verdict, rounds sealed, and how often each fault and rule was met."""

    seed: int
    members: int
    verdict: str
    rounds: int
    counts: dict[str, int]


def run(
    seed: int,
    trace: Callable[[str], None] = lambda line: None,
    *,
    is_restored: bool = False,
    is_requeued: bool = False,
) -> SeedResult:
    """Play one seed. Raises Violation.

    `is_restored`: the store is restored to a snapshot meanwhile; `is_requeued`: a scheduler begins later attempts.
    """
    random = Random(seed)
    members = min(random.randint(1, 12), random.randint(1, 12))  # small ones show most, and sooner
    shape, settings = _draw_shape(random, members), _draw_settings(random)
    settings = replace(settings, operations_per_txn=100 if seed % 2 else OPERATIONS_MIN)  # the seal holds all or not
    cluster = SimulatedCluster(
        random=random, settings=settings, shape=shape, network=_draw_network(random), trace=trace
    )
    checker = Checker(cluster, seed=seed)
    work_s = random.uniform(1.0, 60.0) if random.random() < 0.3 else random.uniform(30.0, 90.0)
    theme = random.choice(["all", *THEMES])
    failing = 0.5 if theme == "failures" else random.choice([0.0, 0.05, 0.3])
    work = SimulatedWork(cluster.timeline, cluster.nodes, random, until=FAULTS_S, work_s=work_s, failing=failing)
    cluster.observers.after_start = work.begin
    injector = FaultInjector(cluster, work, random, until=FAULTS_S, theme=theme)
    config, call_later = cluster.config, cluster.timeline.call_later
    config.plan_s = random.choice([None, None, (0.0, 4.0)])
    if random.random() < 0.1:  # a store that is slow all the time
        cluster.storage.write_slowly((0.5, random.choice([1.5, 4.0])), math.inf)
    config.children_late_s = random.choice([0.0, CHILDREN_LATE_S])
    config.secret = random.choice([b"", b"", b"", b"secret"])
    cluster.network.is_forging_refusals = not settings.presence_proof and random.random() < 0.3
    for index in range(members):
        node = cluster.add(f"node{index}", float(random.randrange(1 << 16)))
        node.is_walled, node.is_masked = random.random() < 0.03, random.random() < 0.05
        node.hosts_store = index == 0 and random.random() < 0.2
        is_late = random.random() < 0.2
        call_later(random.uniform(0.0, FAULTS_S if is_late else 3.0), node.start_if_down)
    call_later(random.uniform(1.0, 5.0), injector.inject)
    call_later(4.0, injector.revive)
    if random.random() < (0.3 if theme == "outages" else 0.05):
        call_later(random.uniform(5.0, FAULTS_S), cluster.operator.ask, "stop")
    if is_restored:
        kept_at = random.uniform(0.0, FAULTS_S)
        call_later(kept_at, cluster.storage.take_snapshot)
        call_later(random.uniform(kept_at, FAULTS_S), injector.restore)
    last_attempt_at = 0.0
    for _ in range(random.choice([1, 1, 2]) if is_requeued else 0):
        at = random.uniform(0.0, FAULTS_S)
        last_attempt_at = max(last_attempt_at, at)
        call_later(at, injector.requeue)
    _play(cluster, checker, injector, until=last_attempt_at)
    verdict = checker.verdict.kind if checker.verdict else ""
    return SeedResult(
        seed=seed, members=members, verdict=verdict, rounds=len(checker.rounds), counts=dict(cluster.timeline.counts)
    )


def _draw_shape(random: Random, members: int) -> Shape:
    group = random.choice([1, 1, 2, 3]) if members >= 3 else 1
    nodes_min = min(members // group * group, group * random.randint(1, 3))
    return Shape(nodes_min=nodes_min, nodes_max=random.randint(nodes_min, members), group=group)


def _draw_settings(random: Random) -> Settings:
    return Settings(
        max_restarts=random.choice([0, 1, 3, 10]),
        restart_window_s=random.choice([math.inf, math.inf, 5.0, 30.0]),
        target_nodes=random.choice([0, 0, 0, 4]),
        grow=random.choice(["never", "delay", "delay", "checkpoint"]),
        join_grace_s=2.0,
        start_timeout_s=400.0,
        rejoin_timeout_s=400.0,
        grow_delay_s=random.choice([5.0, 300.0]),
        settle_s=random.choice([1.0, 5.0]),
        shutdown_timeout_s=3.0,
        restart_grace_s=1.0,
        stop_limit_s=random.choice([1.0, 5.0]),
        min_round_time_s=2.0,
        backoff_max_s=10.0,
        no_progress_rounds=20,
        quarantine_failures=random.choice([2, 3]),
        flap_limit=random.choice([2, 3]),
        quarantine_window_s=random.choice([60.0, 1800.0]),
        quarantine_first_s=5.0,
        quarantine_max_s=60.0,
        presence_proof=random.random() < 0.85,
        continues_without_store=random.random() < 0.85,
        outage_limit_s=random.choice([10.0, 40.0, 100.0]),
        on_finished="exit",
    )


def _draw_network(random: Random) -> NetworkModel:
    share = 0.0 if random.random() < 0.2 else 0.01
    return NetworkModel(
        delay_s=(0.001, random.choice([0.002, 0.05, 0.4])),
        lose_request=share,
        lose_answer=2 * share,
        slow_answer=2 * share,
        slow_request=2 * share,
        apply_late=share,
        refuse=share,
        expiry_late_s=random.choice([(0.0, 0.0), (0.0, 0.5), (0.0, 3.0)]),
    )


def _play(cluster: SimulatedCluster, checker: Checker, injector: FaultInjector, *, until: float) -> None:
    """`until`: when the last attempt begins."""
    is_healed = False
    for _ in range(STEPS_MAX):
        if not cluster.step():
            break
        if not is_healed and cluster.now >= FAULTS_S:
            is_healed = True
            injector.clear()
        if cluster.now > until and checker.verdict is not None and not checker.is_of_earlier_attempt:
            injector.is_reviving = False
            if not any(node.is_up for node in cluster.nodes.values()):
                break
        if cluster.now > FAULTS_S + HEAL_S:
            status = describe_status(cluster.nodes.values())
            checker.fail("L1", f"no end {HEAL_S:g} s after the heal; verdict {checker.verdict}; {status}")
    else:
        checker.fail("L1", f"{STEPS_MAX} steps without an end")


def attempt(
    seed: int,
    trace: Callable[[str], None] = lambda line: None,
    *,
    is_restored: bool = False,
    is_requeued: bool = False,
) -> tuple[int, SeedResult | str]:
    """The seed with its result, or with a description of what was wrong."""
    try:
        return seed, run(seed, trace, is_restored=is_restored, is_requeued=is_requeued)
    except Violation as violation:
        return seed, str(violation)
    except Exception:  # a bug may show as anything
        return seed, traceback.format_exc()


def make_replay_command(seed: int, *, is_restored: bool = False, is_requeued: bool = False) -> str:
    """The command that replays a seed, for a failure message."""
    mode = "--restore " * is_restored + "--requeue " * is_requeued
    return f"python -m tests.simulation --seeds {seed} {mode}--trace"
