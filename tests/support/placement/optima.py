"""`make slow WHAT=optima`: the stored optima of small instances, proven again from nothing, and found by the planner's
search, all but one at most; exit 1 on any difference.

A proof has two halves. The stored layout is valid and costs what is said, which is counted; and no layout costs less,
for which `exact` looks everywhere. The solver's effort is limited in its own steps and not in seconds, so that the same
instances are proven on every machine, and an instance is never left out because of what the planner makes of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from launcher.placement.problem.problem import is_valid
from tests.support.placement.instances import Instance, instance

STORED = Path(__file__).parents[2] / "unit" / "optima.jsonl"


def stored() -> list[Instance]:
    """All instances; the first line of the file says how they were made."""
    return [instance(line) for line in STORED.read_text().splitlines()[1:]]


def missed(instances: Sequence[Instance]) -> list[str]:
    """A sentence for every instance that the planner's search does not solve to its optimum."""
    from launcher.placement.search.search import search

    found = []
    for one in instances:
        problem = one.problem()
        layout = search(problem)[0]
        assert is_valid(problem, layout), one.name
        assert one.optimum is not None
        cost = problem.compute_cost(layout)
        assert cost >= one.optimum, f"{one.name}: {cost} is less than the proven optimum {one.optimum}"
        if cost > one.optimum:
            found.append(f"{one.name}: {cost} is {cost / one.optimum - 1:.2%} above {one.optimum}")
    return found


def prove() -> Iterator[str]:
    """A sentence for every stored optimum that is none."""
    from tests.support.placement.exact import cheaper

    for one in stored():
        start = time.process_time()
        problem = one.problem()
        layout = np.array(one.layout, dtype=np.int32)
        assert one.optimum is not None
        is_fine = is_valid(problem, layout)
        if not is_fine or problem.compute_cost(layout) != one.optimum:
            yield (
                f"{one.name}: the stored layout costs {problem.compute_cost(layout)}, not {one.optimum}; "
                f"{'valid' if is_fine else 'not valid'}"
            )
            continue
        is_certain, better = cheaper(problem, one.optimum)
        if better is not None:
            yield f"{one.name}: {problem.compute_cost(better)} is less than {one.optimum}"
        elif not is_certain:
            yield f"{one.name}: nothing cheaper than {one.optimum} was found, but that is no proof"
        print(f"{one.name}: {one.optimum}, {time.process_time() - start:.1f} s", flush=True)


def main() -> int:
    wrong = list(prove())
    found = missed(stored())
    if len(found) > 1:
        wrong += found
    print("\n".join(wrong or [f"all {len(stored())} optima are proven"]), file=sys.stderr if wrong else sys.stdout)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
