"""Improves a patched plan by one more move where that is cheaper.

A node is lost in the middle of a leaf, and the only spare is elsewhere: now two hops of each ring through the lost
place leave the leaf. If instead a node at the edge of the leaf takes the gap, and the spare takes the edge, it is one
hop. That moves one node's ranks more and may be worth it. So for each unit that was placed newly, exchanges with all
other units are compared, and the best is made if it pays for the ranks it moves. One exchange only: a lost node should
not move the ranks of a third.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from launcher.placement.problem.problem import Layout, Problem
from launcher.placement.stability import NO_ITEM

HOLES_MAX = 16  # each is compared with all units; where more is lost, a layout from scratch is compared anyway

Numbers = NDArray[np.int64]


def repair(problem: Problem, layout: Layout, held: Layout, factor: int, price: int) -> Layout:
    """Return `layout` after one exchange per hole, where it pays. `held`: unit -> item that held it, NOBODY for holes.

    An exchange pays if it changes J by `change` with change x factor + price x units moved in addition < 0.
    """
    holes = np.flatnonzero(held == NO_ITEM)
    if len(holes) > HOLES_MAX or problem.rules or int(problem.capacity.max()) > 1:
        return layout
    layout = layout.copy()
    for hole in holes.tolist():
        change = compute_exchange_costs(problem, layout, hole)
        is_still = (held == layout) & (held != NO_ITEM)
        # The best of the units that would move for it and of those that have moved anyway, compared in Python's
        # integers: factor and price may be so large that an array's would overflow.
        best_worth, best = 0, hole
        for extra, may in ((0, ~is_still), (price, is_still)):
            if may.any():
                other = int(np.argmin(np.where(may, change, change.max())))
                worth = int(change[other]) * factor + extra
                if may[other] and worth < best_worth:
                    best_worth, best = worth, other
        layout[[hole, best]] = layout[[best, hole]]
    return layout


def compute_exchange_costs(problem: Problem, layout: Layout, block: int) -> Numbers:
    """For every other unit the change of J if it and `block` exchange their items, of which each holds one unit."""
    change = np.zeros(len(layout), dtype=np.int64)
    for level_cost, labels in zip(problem.traffic.level_costs, problem.labels, strict=True):
        if not level_cost:
            continue
        place = labels[layout].astype(np.int64)
        is_away = place != place[block]
        for weight, coming, partners in _list_changes(problem, place, is_away, block):
            # `block` in the other's place: all partners that are not there, less those that are away now. Its
            # distance to a partner itself does not change, which both sides of the exchange counted as none.
            there = np.bincount(place[partners], minlength=int(place.max()) + 1)
            going = len(partners) - there[place] - np.count_nonzero(is_away[partners])
            np.add.at(going, partners, 2 * is_away[partners])
            change += level_cost * weight * (coming + going)
    change[block] = 0
    return change


def _list_changes(
    problem: Problem, domain_of: Numbers, is_away: NDArray[np.bool_], block: int
) -> Iterator[tuple[int, Numbers, Numbers]]:
    """Per communicator: its weight, for every unit how many more of its partners would be elsewhere in the place of
    `block`, and the partners of `block`."""
    for hops in problem.traffic.hops:
        was = domain_of[hops.low] != domain_of[hops.high]
        coming = np.bincount(hops.low, is_away[hops.high].astype(np.int64) - was, len(domain_of))
        coming += np.bincount(hops.high, is_away[hops.low].astype(np.int64) - was, len(domain_of))
        partners = np.concatenate((hops.high[hops.low == block], hops.low[hops.high == block])).astype(np.int64)
        yield hops.weight, coming.astype(np.int64), partners
    for exchange in problem.traffic.exchanges:
        classes = exchange.class_of.astype(np.int64)
        _, spot, count = np.unique(
            classes * (int(domain_of.max()) + 1) + domain_of, return_inverse=True, return_counts=True
        )
        at_home = np.bincount(classes, ~is_away, int(classes.max()) + 1).astype(np.int64)
        partners = np.flatnonzero(classes == classes[block])
        yield exchange.weight, count[spot] - 1 - at_home[classes] + ~is_away, partners[partners != block]
