"""Whether predicted seconds are true, from the records of truth.py: sizes, ranks, and what the plans are worth.

A measured time is the median of an order's steps, its spread their range. Two orders differ clearly if their medians
differ by more than either spread and by DIFFERENCE at least; the prediction ranks them right if it names the same one
as faster. The size is off by |predicted - measured| / measured. Each case is taken from the newest run that has it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import words
from benchmarks.planner_tables import mean
from benchmarks.runs import History, Run, spread
from benchmarks.tables import Row, date

# Names of orders in a record.
PLAN, JOIN, ADDRESS, PATH, RANDOM = "plan", "join", "address", "path", "random {n}"
TOLD, BLIND, ANNEALED = "plan, rates told", "plan without rates", "annealed"
DIFFERENCE = 0.05
FASTER = 0.10  # by which no order should beat the plan
PAIRS_GOAL, SIZE_GOAL, JOIN_GOAL, ADDRESS_GOAL = 0.99, 0.15, 2.0, 1.9
_RANDOM = RANDOM.partition(" ")[0]


class Order(NamedTuple):
    """One layout of a case, and all orders that lead to it."""

    names: tuple[str, ...]
    predicted_s: float
    measured_s: float
    spread_s: float


class Case(NamedTuple):
    """All orders of a case. `idle`: the least share of CPU time left over; `carried`: bytes over what was counted."""

    name: str
    mesh: str
    orders: tuple[Order, ...]
    idle: float
    carried: float
    run: Run

    def find(self, name: str) -> Order | None:
        return next((order for order in self.orders if name in order.names), None)

    @property
    def random(self) -> list[Order]:
        """The random orders, the fastest first."""
        found = [order for order in self.orders if any(name.startswith(_RANDOM) for name in order.names)]
        return sorted(found, key=lambda order: order.measured_s)

    def speed_up(self, name: str) -> float | None:
        """The time of this order over the plan's."""
        plan, other = self.find(PLAN), self.find(name)
        return other.measured_s / plan.measured_s if plan and other else None

    @property
    def lead_of_fastest(self) -> float:
        """By which share the fastest of all orders is faster than the plan."""
        plan = self.find(PLAN)
        return plan.measured_s / min(order.measured_s for order in self.orders) - 1 if plan else 0.0


class Pairs(NamedTuple):
    """Pairs of orders that differ clearly, and those of them that are predicted to differ in that way."""

    clear: int
    right: int


def find_cases(history: History) -> list[Case]:
    """The cases of the records, in the order in which they were measured first."""
    newest: dict[str, tuple[list[Mapping[str, Any]], Run]] = {}
    for run in history.runs:
        lines = [line for line in run.lines if "order" in line] if run.benchmark == "truth" else []
        for name in dict.fromkeys(line["order"] for line in lines):
            newest[name] = [line for line in lines if line["order"] == name], run
    return [_read(name, lines, run) for name, (lines, run) in newest.items()]


def _read(name: str, lines: Sequence[Mapping[str, Any]], run: Run) -> Case:
    orders = []
    for line in lines:
        found = spread(line["seconds"])
        if found is not None:
            orders.append(Order(tuple(line["names"]), line["predicted_s"], found.median, found.most - found.least))
    idle = min((line["idle"] for line in lines if line["idle"] is not None), default=math.nan)
    carried = [line["carried"] for line in lines if line["carried"] is not None]
    middle = statistics.median(carried) if carried else math.nan
    return Case(name, lines[0]["mesh"], tuple(orders), idle, middle, run)


def correlate(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's rank correlation; equal values share the mean of their ranks. NaN where one side is all equal."""
    firsts, seconds = (_rank(values) for values in zip(*pairs, strict=True)) if pairs else ([], [])
    if len(set(firsts)) < 2 or len(set(seconds)) < 2:
        return math.nan
    return statistics.correlation(firsts, seconds)


def _rank(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]


def count_pairs(orders: Iterable[Order]) -> Pairs:
    """How many pairs differ clearly, and how many of those the prediction ranks as they are."""
    clear = right = 0
    for one, other in itertools.combinations(orders, 2):
        difference = one.measured_s - other.measured_s
        limit = max(one.spread_s, other.spread_s, DIFFERENCE * min(one.measured_s, other.measured_s))
        if abs(difference) > limit:
            clear += 1
            right += (one.predicted_s - other.predicted_s) * difference > 0
    return Pairs(clear, right)


def measure_size_error(orders: Iterable[Order]) -> float:
    """The mean by which predictions are off."""
    return statistics.fmean(abs(order.predicted_s - order.measured_s) / order.measured_s for order in orders)


def aims(history: History) -> str:
    """What predictions and plans should reach, and whether they do."""
    found = [case for case in find_cases(history) if case.find(PLAN)]
    if not found:
        return words.NOT_MEASURED
    held = sum(case.lead_of_fastest <= FASTER for case in found)
    counts = [count_pairs(case.orders) for case in found]
    clear, right = sum(each.clear for each in counts), sum(each.right for each in counts)
    size = measure_size_error([order for case in found for order in case.orders])
    rows = [
        (
            f"cases in which no measured order is more than {FASTER:.0%} faster than the plan",
            f"{held} of {len(found)}",
            "all",
            held == len(found),
        ),
        (
            "pairs of orders that differ clearly, ranked right by the prediction",
            f"{right} of {clear}",
            f"at least {PAIRS_GOAL:.0%}",
            right >= PAIRS_GOAL * clear,
        ),
        ("predicted seconds off by, mean of all orders", f"{size:.1%}", f"at most {SIZE_GOAL:.0%}", size <= SIZE_GOAL),
    ]
    for name, what, goal in ((JOIN, "join order", JOIN_GOAL), (ADDRESS, "addresses as text", ADDRESS_GOAL)):
        ratios = [ratio for case in found if (ratio := case.speed_up(name)) is not None]
        if ratios:
            shown = f"{mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            what = f"times as fast as {what}: geometric mean of cases (range)"
            rows.append((what, shown, f"at least {goal:g}", mean(ratios) >= goal))
    runs = [case.run for case in found]
    shown_rows = [Row(runs, (*row[:3], "yes" if row[3] else "**no**")) for row in rows]
    return f"{date(('what', 'figure', 'aim', 'reached'), shown_rows)}\n\n{_describe_conditions(found)}"


def _describe_conditions(found: Sequence[Case]) -> str:
    """Whether the network was the limit, and whether it carried what was counted."""
    path = [ratio for case in found if (ratio := case.speed_up(PATH)) is not None]
    plans = [(case, plan) for case in found if (plan := case.find(PLAN)) is not None]
    drawn = [order.measured_s / plan.measured_s for case, plan in plans for order in case.random]
    carried = [case.carried for case in found if case.carried == case.carried]
    parts = [f"At least {min(case.idle for case in found):.0%} of the CPU time was left over in every step that counts"]
    if carried:
        parts.append(f"uplinks carried {min(carried):.2f} to {max(carried):.2f} times the payload that was counted")
    if path and drawn:
        parts.append(
            f"the plan was {mean(drawn):.2f} times as fast as random orders, and {mean(path):.2f} times as fast as the "
            "order of paths"
        )
    return "; ".join(parts) + "."


def cases(history: History) -> str:
    """Measured and predicted seconds of every case."""
    rows = []
    for case in find_cases(history):
        pairs = count_pairs(case.orders)
        rows.append(
            Row(
                [case.run],
                (
                    case.name,
                    case.mesh,
                    _show(case.find(PLAN)),
                    _show(case.find(TOLD) or case.find(BLIND)),
                    *(_show(case.find(name)) for name in (JOIN, ADDRESS, PATH)),
                    _show(next(iter(case.random), None)),
                    _plain(correlate([(order.predicted_s, order.measured_s) for order in case.orders]), ".2f"),
                    f"{pairs.right} of {pairs.clear}",
                    f"{measure_size_error(case.orders):.0%}" if case.orders else "",
                    _plain(case.carried, ".2f"),
                    _plain(case.idle, ".0%"),
                ),
            )
        )
    heads = (
        "case", "mesh", "plan", "other knowledge", "join order", "by address", "by path", "fastest random",
        "Spearman", "pairs right", "size off", "bytes", "CPU left",
    )  # fmt: skip
    return date(heads, rows)


def leads(history: History) -> str:
    """Every plan beside the fastest other order."""
    rows = []
    for case in find_cases(history):
        plan = case.find(PLAN)
        others = [order for order in case.orders if PLAN not in order.names]
        if plan and others:
            best = min(others, key=lambda order: order.measured_s)
            ratio = plan.measured_s / best.measured_s
            found = (case.name, f"{plan.measured_s:.3f}", f"{best.measured_s:.3f}", ", ".join(best.names))
            is_held = "yes" if ratio <= 1 + FASTER else "**no**"
            rows.append(
                Row([case.run], (*found, f"{plan.predicted_s / best.predicted_s:.2f}", f"{ratio:.2f}", is_held))
            )
    heads = ("case", "plan s", "best other order s", "which", "ratio by the model", "ratio", f"within {FASTER:.0%}")
    return date(heads, rows)


def _show(order: Order | None) -> str:
    """`0.42 (0.40)`: measured and predicted seconds."""
    return "" if order is None else f"{order.measured_s:.2f} ({order.predicted_s:.2f})"


def _plain(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)
