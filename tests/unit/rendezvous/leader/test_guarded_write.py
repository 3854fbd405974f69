"""How much one transaction of the leader holds."""

from __future__ import annotations

import pytest

from rendezvous.leader.guarded_write import BYTES_PER_TXN, count_fitting
from rendezvous.stores.contract import Delete, Operation, Put

THIRD = Put("k", bytes(BYTES_PER_TXN // 3))


@pytest.mark.parametrize(
    ("operations", "count"),
    [
        ([THIRD] * 3, 3),
        ([THIRD] * 4, 3),
        ([THIRD, Delete("d"), THIRD, THIRD, Delete("d"), THIRD], 5),  # what is deleted has no value
        ([Put("k", bytes(BYTES_PER_TXN + 1)), THIRD], 1),  # it fits nowhere better
        ([THIRD, Put("k", bytes(BYTES_PER_TXN))], 1),
        ([Delete("d")] * 9, 8),
    ],
)
def test_a_transaction_ends_with_what_still_fits(operations: list[Operation], count: int) -> None:
    assert count_fitting(operations, 8) == count
