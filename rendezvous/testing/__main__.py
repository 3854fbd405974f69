"""`python -m rendezvous.testing --seeds 0:20000`: run the simulation, replay a seed, count what it met."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter

import click

from rendezvous.testing import simulate


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seeds", default="0:1000", show_default=True, help="One seed, or FROM:TO (TO excluded).")
@click.option("--seconds", type=float, help="Stop after this time, once --at-least seeds were done.")
@click.option("--at-least", type=int, default=0, help="Seeds to do however long they take.")
@click.option("--trace", is_flag=True, help="Print what happens.")
def main(seeds: str, seconds: float | None, at_least: int, trace: bool) -> None:
    """Simulate clusters under faults and check the invariants after every step."""
    first, colon, last = seeds.partition(":")
    chosen = range(int(first), int(last) if colon else int(first) + 1)
    started, verdicts, rounds, faults, broken = time.monotonic(), Counter[str](), 0, Counter[str](), []
    done = 0
    for seed in chosen:
        if seconds is not None and done >= at_least and time.monotonic() - started > seconds:
            break
        try:
            result = simulate.run(seed, trace=print if trace else lambda line: None)
        except Exception as error:
            broken.append(seed)
            if not isinstance(error, simulate.Violation):
                traceback.print_exc()
            print(f"seed {seed}: {error}\n  replay: {simulate.replay_command(seed)}", file=sys.stderr)
            continue
        finally:
            done += 1
        verdicts[result.verdict] += 1
        rounds += result.rounds
        faults.update(result.faults)
    took_s = time.monotonic() - started
    print(f"{done} seeds in {took_s:.1f} s, {rounds} rounds, verdicts {dict(verdicts)}, faults {dict(faults)}")
    print(f"{len(broken)} seeds broke an invariant" + (f": {broken[:20]}" if broken else ""))
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
