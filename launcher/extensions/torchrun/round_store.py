"""The store of one round: a TCPStore in which torchrun's agents number their workers, and the workers meet.

torchrun serves one for the whole job, so the next round finds a dead round's keys in it. Here every round has its own.
The round names the address and port that its first node has offered, and that node's agent serves the store there.
Workers are clients of the same server (TORCHELASTIC_USE_AGENT_STORE).

Every wait here also checks for the round's end: a node may be lost between the seal and the meeting, and then the round
ends before it has begun.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # not marked

from launcher.extensions.torchrun.member import OfferedPort
from launcher.model.errors import TemporaryError
from launcher.placement.adapter.description import NodeAssignment

# Of torch's own clients of the store; the barrier at the end has its own.
CALL_LIMIT = timedelta(seconds=60)
CONNECT_LIMIT = timedelta(seconds=30)  # to a server that answers already
LIMIT_S = 120.0  # for all agents of a round to meet: a lost one is detected much sooner
FIRST_PAUSE_S, LAST_PAUSE_S = 0.01, 0.2  # between two polls
_HERE, _ALL_HERE = "here", "all here"
_END = "torchelastic/agent/terminal_state"
_ROLE = "torchelastic/role_info/"


class RoundStore(PrefixStore):
    """The store in torchrun's agent: two of its operations are reported to the agreement.

    The agent reports the success of its workers only by the barrier in which it then waits for the other agents:
    `report_succeeded` is called when the workers here have; `wait_for_all` then waits, with a limit in seconds, for
    those of the other nodes. And it writes the number of workers that it starts. `worker_count`: the number that this
    node has declared for the placement, None if unknown.
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
                    f"torchrun starts {count} workers here, but the placement expects {self._worker_count}\n"
                    f"hint: set --rdzv-conf nproc={count}, which overrides PET_ and LAUNCHER_NPROC_PER_NODE"
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


def meet(round: int, assignment: NodeAssignment, offer: OfferedPort, is_over: Callable[[], bool]) -> Store | None:
    """Return the round's store, once every agent of the round has joined it; None if the round ends before.

    `is_over` is called repeatedly. Keys of the agents are separate from those of the workers. Raises TemporaryError
    when the others do not join, though the round continues.
    """
    deadline = time.monotonic() + LIMIT_S
    try:
        return _try_to_meet(round, assignment, offer, is_over, deadline)
    except TimeoutError:
        raise TemporaryError(
            f"the {assignment.group_world_size} nodes of round {round} have not all met at {assignment.master_addr}:"
            f"{assignment.master_port} within {LIMIT_S:g} s",
            "check that every node can reach that address and port; LAUNCHER_WORKER_PORT_RANGE sets the ports",
        ) from None


def _try_to_meet(
    round: int, assignment: NodeAssignment, offer: OfferedPort, is_over: Callable[[], bool], deadline: float
) -> Store | None:
    place = (assignment.master_addr, assignment.master_port)

    def is_answering() -> bool:
        try:
            socket.create_connection(place, 1.0).close()
        except OSError:
            return False
        return True

    try:
        served: dict[str, Any] = {}
        if assignment.group_rank == 0:
            served = {"is_master": True, "master_listen_fd": offer.hand_over()}
        elif not _poll_until(is_answering, is_over, deadline):  # torch's client prints pages about a missing server
            return None
        store = TCPStore(*place, wait_for_workers=False, timeout=CONNECT_LIMIT, **served)
        store.set_timeout(CALL_LIMIT)
        own = PrefixStore(f"meshrun/{round}", store)  # the agents' part
        if own.add(_HERE, 1) == assignment.group_world_size:
            own.set(_ALL_HERE, "1")
        return own if _poll_until(lambda: own.check([_ALL_HERE]), is_over, deadline) else None
    except DistError:
        # The node that serves the store seems to be lost. The others see that too, and end the round.
        _poll_until(lambda: False, is_over, deadline)
        return None


def _poll_until(is_there: Callable[[], bool], is_over: Callable[[], bool], deadline: float) -> bool:
    """Whether `is_there` became true before the round was over. Raises TimeoutError at the deadline."""
    pause_s = FIRST_PAUSE_S
    while not is_over():
        if is_there():
            return True
        if time.monotonic() >= deadline:
            raise TimeoutError
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LAST_PAUSE_S)
    return False
