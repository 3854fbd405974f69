"""torch's store of one round, as torchrun's agent holds it: two things that it does with it are told to the agreement.

The agent has no other word for "my workers have succeeded" than the barrier in which it then waits for the other
agents. And it writes down how many workers it starts, which the placement was told beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # not marked

_END = "torchelastic/agent/terminal_state"
_ROLE = "torchelastic/role_info/"


class RoundStore(PrefixStore):
    """`succeeded` is called when the workers here have; `wait_for_all` then waits, at most so many seconds, for those
    of the other nodes. `worker_count`: how many workers this node said to have, None if nobody knew.
    """

    def __init__(
        self,
        store: Store,
        *,
        worker_count: int | None,
        report_succeeded: Callable[[], None],
        wait_for_all: Callable[[float], None],
    ) -> None:
        super().__init__("agents", store)
        self._worker_count = worker_count
        self._report_succeeded = report_succeeded
        self._wait_for_all = wait_for_all

    def set(self, key: str, value: Any) -> None:
        """Raises ValueError when torchrun starts another number of workers than this node has said."""
        if key.startswith(_ROLE) and self._worker_count is not None:
            count = json.loads(value).get("local_world_size")
            if count != self._worker_count:
                raise ValueError(
                    f"torchrun starts {count} workers here, and the placement was told {self._worker_count}\n"
                    f"hint: --rdzv-conf nproc={count}, which wins over PET_NPROC_PER_NODE and LAUNCHER_NPROC_PER_NODE"
                )
        super().set(key, value)

    def add(self, key: str, amount: int) -> int:
        if key.startswith(_END):
            self._report_succeeded()
        return int(super().add(key, amount))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """The barrier at the end is not the store's, which ends with one of the agents, but the agreement's."""
        if any(key.startswith(_END) for key in keys):
            limit: timedelta = timeout or self.timeout  # type: ignore[attr-defined]  # torch's stubs lack it
            self._wait_for_all(limit.total_seconds())
        elif timeout is None:
            super().wait(keys)
        else:
            super().wait(keys, timeout)
