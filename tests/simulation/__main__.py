"""`python -m tests.simulation --seeds 0:20000`: run seeds, replay one, count what they have met."""

from __future__ import annotations

import functools
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

import click

from tests.simulation import simulate


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seeds", default="0:1000", show_default=True, help="One seed, or FROM:TO (TO excluded).")
@click.option("--processes", type=int, default=1, show_default=True, help="How many to share the seeds.")
@click.option("--restore", is_flag=True, help="Restore the store to a snapshot during each seed.")
@click.option("--requeue", is_flag=True, help="Begin later attempts during each seed.")
@click.option("--first", is_flag=True, help="Stop at the first seed that breaks an invariant.")
@click.option("--trace", is_flag=True, help="Print what happens.")
def main(seeds: str, processes: int, restore: bool, requeue: bool, first: bool, trace: bool) -> None:
    """Simulate clusters under faults and check the invariants after every step."""
    begin, colon, end = seeds.partition(":")
    chosen = range(int(begin), int(end) if colon else int(begin) + 1)
    started, done, rounds = time.monotonic(), 0, 0
    broken: list[int] = []
    met: Counter[str] = Counter()
    attempt = functools.partial(simulate.attempt, is_restored=restore, is_requeued=requeue)
    for seed, result in _run_seeds(chosen, processes, attempt, trace):
        done += 1
        if isinstance(result, str):
            broken.append(seed)
            replay = simulate.make_replay_command(seed, is_restored=restore, is_requeued=requeue)
            print(f"seed {seed}: {result}\n  replay: {replay}", file=sys.stderr, flush=True)
        else:
            rounds += result.rounds
            met.update(result.counts)
        if first and broken:
            break
    took_s = time.monotonic() - started
    print(f"{done} seeds in {took_s:.1f} s, {rounds} rounds; {len(broken)} seeds broke an invariant")
    print(json.dumps({"seeds": done, "rounds": rounds, "broken": broken, "met": dict(sorted(met.items()))}))
    sys.exit(1 if broken else 0)


def _run_seeds(
    seeds: range, processes: int, attempt: Callable[..., tuple[int, simulate.SeedResult | str]], trace: bool
) -> Iterator[tuple[int, simulate.SeedResult | str]]:
    """Each seed with its result, or with a description of what was wrong."""
    if trace or processes == 1:
        printer = print if trace else lambda line: None
        yield from (attempt(seed, printer) for seed in seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(attempt, seeds, chunksize=10)


if __name__ == "__main__":
    main()
