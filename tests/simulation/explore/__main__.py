"""`python -m tests.simulation.explore`: explore every scope for ten minutes on two cores."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator

import click

from tests.simulation.explore import search
from tests.simulation.explore.scopes import SCOPES
from tests.simulation.explore.search import ScopeResult


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--scope", "names", multiple=True, type=click.Choice(list(SCOPES)), help="Only this one; repeatable.")
@click.option("--seconds", default=600.0, show_default=True, help="CPU time of each process, for all scopes together.")
@click.option("--depth", default=1 << 30, show_default="none", help="Choices to go down to.")
@click.option("--processes", default=2, show_default=True, help="How many to share the scopes.")
@click.option("--levels", is_flag=True, help="Print each level as it is finished.")
def main(names: tuple[str, ...], seconds: float, depth: int, processes: int, levels: bool) -> None:
    """Visit all states of small clusters and check the invariants in each."""
    chosen = [name for name in SCOPES if name in names or not names]
    found = 0
    print(f"{'scope':32}{'states':>9}{'transitions':>13}{'depth':>7}{'seconds':>9}  what was reached", flush=True)
    for result in _explore_scopes(chosen, seconds * processes, depth, processes, levels):
        found += bool(result.found)
        print(
            f"{result.scope.name:32}{result.states:>9}{result.transitions:>13}{result.depth:>7}{result.took_s:>9.1f}  "
            f"{_describe_depth(result)}",
            flush=True,
        )
        if result.found:
            print(f"\n{result.found}\n\nafter {len(result.schedule)} choices:", *result.record, sep="\n", flush=True)
    sys.exit(1 if found else 0)


def _describe_depth(result: ScopeResult) -> str:
    ends = f"{result.over} ends of the job, {result.cut_by_time} of the time, {result.ended_calmly} in calm"
    return f"{'all there is' if result.is_complete else 'a fault' if result.found else 'all to this depth'}; {ends}"


def _explore_scopes(chosen: list[str], cpu_s: float, depth: int, processes: int, levels: bool) -> Iterator[ScopeResult]:
    """Explore each scope, the longest first."""
    shares = {name: cpu_s * SCOPES[name].share / sum(SCOPES[each].share for each in chosen) for name in chosen}
    tasks = [(SCOPES[name], shares[name], depth, levels) for name in sorted(chosen, key=lambda name: -shares[name])]
    if processes == 1 or len(tasks) == 1:
        yield from map(search.explore_share, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(search.explore_share, tasks, chunksize=1)


if __name__ == "__main__":
    main()
