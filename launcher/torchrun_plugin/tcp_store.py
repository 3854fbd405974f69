"""The store of one round: a TCPStore in which torchrun's agents number their workers, and the workers meet.

torchrun serves one for the whole job, so the next round finds a dead round's keys in it. Here every round has its own.
The round names the address and port that its first node has offered, and that node's agent serves the store there.
Workers are clients of the same server (TORCHELASTIC_USE_AGENT_STORE).

Every wait here also checks for the round's end: a node may be lost between the seal and the meeting, and then the round
ends before it has begun.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # not marked

from launcher.model.errors import TemporaryError
from launcher.placement.adapter.description import NodeAssignment
from launcher.torchrun_plugin.port import OfferedPort

# Of torch's own clients of the store; the barrier at the end has its own.
CALL_LIMIT = timedelta(seconds=60)
CONNECT_LIMIT = timedelta(seconds=30)  # to a server that answers already
LIMIT_S = 120.0  # for all agents of a round to meet: a lost one is detected much sooner
FIRST_PAUSE_S, LAST_PAUSE_S = 0.01, 0.2  # between two polls
_HERE, _ALL_HERE = "here", "all here"


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
            "can every node reach that address and port? LAUNCHER_WORKER_PORT_RANGE says which ports are used",
        ) from None


def _try_to_meet(
    round: int, assignment: NodeAssignment, offer: OfferedPort, is_over: Callable[[], bool], deadline: float
) -> Store | None:
    try:
        store = _serve(assignment, offer) if assignment.group_rank == 0 else _connect(assignment, is_over, deadline)
        if store is None:
            return None
        own = _register_agent(store, round, assignment.group_world_size)
        return own if _poll_until(lambda: own.check([_ALL_HERE]), is_over, deadline) else None
    except DistError:
        # The node that serves the store seems to be lost. The others see that too, and end the round.
        _poll_until(lambda: False, is_over, deadline)
        return None


def _register_agent(store: TCPStore, round: int, count: int) -> Store:
    """Return the agents' part of the store; the last of `count` agents announces that all have joined."""
    store.set_timeout(CALL_LIMIT)
    own = PrefixStore(f"meshrun/{round}", store)
    if own.add(_HERE, 1) == count:
        own.set(_ALL_HERE, "1")
    return own


def _serve(assignment: NodeAssignment, offer: OfferedPort) -> TCPStore:
    return TCPStore(
        host_name=assignment.master_addr,
        port=assignment.master_port,
        is_master=True,
        wait_for_workers=False,
        timeout=CONNECT_LIMIT,
        master_listen_fd=offer.hand_over(),
    )


def _connect(assignment: NodeAssignment, is_over: Callable[[], bool], deadline: float) -> TCPStore | None:
    """Create torch's client once a server answers, since it prints pages about a missing one."""

    def is_answering() -> bool:
        try:
            socket.create_connection((assignment.master_addr, assignment.master_port), 1.0).close()
        except OSError:
            return False
        return True

    if not _poll_until(is_answering, is_over, deadline):
        return None
    return TCPStore(
        host_name=assignment.master_addr,
        port=assignment.master_port,
        is_master=False,
        wait_for_workers=False,
        timeout=CONNECT_LIMIT,
    )


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
