"""torch's store of one round in torchrun's agent: two of its operations are reported to the agreement.

The agent reports the success of its workers only by the barrier in which it then waits for the other agents. And it
writes the number of workers that it starts, which the placement already has.
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
    """`report_succeeded` is called when the workers here have; `wait_for_all` then waits, with a limit in seconds, for
    those of the other nodes. `worker_count`: the number that this node has declared, None if unknown.
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
        """Raises ValueError when torchrun starts another number of workers than this node has declared."""
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
