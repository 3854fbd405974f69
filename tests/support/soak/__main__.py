"""`python -m tests.support.soak --seconds 600 --agents 8`: jobs under random faults, and what was seen."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.network.namespaces import loopback_hosts
from tests.support.soak.episode import Ending, Episode, Outcome
from tests.support.stores.etcd import EtcdServer

EPISODE_S = 45.0  # of faults: enough for every kind, and short enough to see many ends
ENDINGS: tuple[Ending, ...] = ("success", "success", "failure", "success", "stop")


def soak(seconds: float, agents: int, seed: int, directory: Path) -> list[Outcome]:
    """Run jobs for about so long; `directory` holds what they leave, and is emptied when all was well."""
    outcomes: list[Outcome] = []
    until = time.monotonic() + seconds
    with EtcdServer("3.4", directory / "etcd") as etcd:
        while not outcomes or time.monotonic() < until:
            number = len(outcomes)
            name = f"soak-{seed}-{number}"
            chance = random.Random(f"{seed}.{number}")
            place = directory / name
            ending = ENDINGS[(seed + number) % len(ENDINGS)]
            episode = Episode(place, etcd, loopback_hosts(agents), chance, name=name, ending=ending)
            outcomes.append(episode.run(min(EPISODE_S, max(5.0, until - time.monotonic()))))
            print(f"{name} ends by {ending}: {told(outcomes[-1:])}", flush=True)
            for sentence in outcomes[-1].broken:
                print(f"  BROKEN {sentence}", flush=True)
            if not outcomes[-1].broken:
                shutil.rmtree(place)
    return outcomes


def told(outcomes: list[Outcome]) -> str:
    """The figures in a sentence."""
    faults: Counter[str] = sum((outcome.faults for outcome in outcomes), Counter())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
    rounds, agents, workers = (sum(counts) for counts in zip(*(o[2:5] for o in outcomes), strict=True))
    healed_s = max(outcome.healed_s for outcome in outcomes)
    return (
        f"{faults.total()} faults ({kinds}); {rounds} rounds, {agents} agents, {workers} workers; "
        f"whole again within {healed_s:.1f} s; at most {max(o.descriptor_count for o in outcomes)} descriptors"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--seed", type=int, default=None)
    words = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if words.seed is None else words.seed
    directory = Path(tempfile.mkdtemp(prefix="meshrun-soak-"))
    print(f"seed {seed}, {words.agents} agents, {words.seconds:g} s; files in {directory}", flush=True)
    began = time.monotonic()
    try:
        outcomes = soak(words.seconds, words.agents, seed, directory)
    except AssertionError as error:
        print(f"BROKEN after {time.monotonic() - began:.0f} s of seed {seed}: {error}", flush=True)
        return 1
    broken = [sentence for outcome in outcomes for sentence in outcome.broken]
    print(f"seed {seed}: {len(outcomes)} jobs in {time.monotonic() - began:.0f} s, {told(outcomes)}; "
          f"{len(broken)} rules broken")  # fmt: skip
    if not broken:
        shutil.rmtree(directory)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
