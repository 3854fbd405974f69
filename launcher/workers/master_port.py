"""Where rank 0 listens if it runs on this node: the port that is offered, and whether a stranger has taken it.

If the user has given a port, that is used in every round and nothing is offered. A stranger there is then told of, but
explains nothing away: the next round would meet the same one.
"""

from __future__ import annotations

import os
import time

from launcher.console import log
from launcher.roster.description import NodeAssignment
from launcher.workers.ports import ReservedPort

ATTEMPTS, RETRY_INTERVAL_S = 25, 0.02  # for a process to be gone, ten times as long as one of JAX takes


class MasterPort:
    """`given` is the user's port, `ports` the range to take others from."""

    def __init__(self, user_port: int | None, ports: tuple[int, int] | None) -> None:
        self._reserved = None if user_port is not None else ReservedPort(ports)

    @property
    def number(self) -> int:
        """What this node offers for the next round, 0 if nothing."""
        return self._reserved.number if self._reserved is not None else 0

    def renew(self) -> None:
        """A round is over: offer another port."""
        if self._reserved is not None:
            self._reserved.renew()

    def is_taken(self, share: NodeAssignment) -> bool:
        """Whether rank 0 of this round is here, and somebody else listens on the port offered: its failure is ours."""
        if share.group_rank != 0:
            return False
        from launcher.supervisor import kernel
        from rendezvous.stores.foreign_listener import UNKNOWN, find_foreign_listener

        # A worker that has just failed, too, may be past the point where one sees what it listened on: look again.
        for _ in range(ATTEMPTS):
            stranger = find_foreign_listener(share.master_port, {os.getpid(), *kernel.list_descendants(os.getpid())})
            if stranger != UNKNOWN:
                break
            time.sleep(RETRY_INTERVAL_S)
        if stranger:
            log(f"port {share.master_port} was meant for rank 0, and {stranger} listens there")
        return bool(stranger) and self._reserved is not None
