"""What a worker and its agent tell each other: stop, I am alive, I have saved.

The first two are numbers on the board, a page of memory that both have (`launcher.hardware.linux.shared_page`): to look
or to beat is a read or a write of memory, a fraction of a microsecond. The third is seldom and wakes the agent: a
datagram.

Under a launcher that has no board, and in a process that has not inherited it, such as those that the `spawn` method
of multiprocessing makes, nobody asks for a stop and nobody listens for beats: the answers are False.
"""

from __future__ import annotations

import os

from launcher.hardware.linux import shared_page

SOCKET_VARIABLE = "LAUNCHER_AGENT_SOCKET"


class _WorkerPage:
    """The board as this worker sees it: its numbers, and where its own are."""

    __slots__ = ("asked_index", "has_sent_heartbeat", "heartbeat_index", "numbers", "round")

    def __init__(self, numbers: memoryview, line_index: int, round: int) -> None:
        self.numbers = numbers
        self.round = round
        self.heartbeat_index = (
            line_index * shared_page.LINE_SIZE + shared_page.HEARTBEAT_COUNT
        ) // shared_page.NUMBER_SIZE
        self.asked_index = (line_index * shared_page.LINE_SIZE + shared_page.POLLED_ROUND) // shared_page.NUMBER_SIZE
        self.has_sent_heartbeat = False


_page: _WorkerPage | None = None
_is_resolved = False


def stop_requested() -> bool:
    """Whether this round's workers are asked to stop gracefully: save, and end with any exit code.

    True from the moment at which the agent of this node acts on a signal to it, a drain, or a restart on more nodes,
    until the worker ends; it is killed when `--shutdown-timeout` is over. It does not become true when a worker has
    failed: there is nothing left to save then. Other nodes' agents learn of it a moment later or earlier, so ranks
    that talk to each other in every step must agree first, for instance by an all-reduce of the answer.

    Whoever asks needs no handler: from the first call on, the stop signal is sent to this worker only if the process
    has a handler for it, and SIGINT is not sent at all. Costs less than a microsecond. Always False where no board is.
    """
    line = _page if _is_resolved else _resolve_page()
    if line is None:
        return False
    line.numbers[line.asked_index] = line.round
    return bool(line.numbers[shared_page.STOPPED_ROUND // shared_page.NUMBER_SIZE] >= line.round)


def heartbeat() -> bool:
    """Say that this worker makes progress; whether somebody listens, that is, `--heartbeat-timeout` was given.

    From the first beat on, a worker that is silent for so long is taken as failed, and everything restarts as after
    any failure. Before the first it has no time-out. So beat once per step, beginning with the second, and also
    within whatever else may take long. Costs less than a microsecond.

    The first beat enables Python's faulthandler, unless it is on: a worker that is found silent gets SIGABRT, so that
    it prints to stderr where each of its threads stands.
    """
    line = _page if _is_resolved else _resolve_page()
    if line is None or not line.numbers[shared_page.TIMEOUT_MS // shared_page.NUMBER_SIZE]:
        return False
    if not line.has_sent_heartbeat:
        line.has_sent_heartbeat = True
        import faulthandler

        if not faulthandler.is_enabled():
            faulthandler.enable(file=2)
    line.numbers[line.heartbeat_index] += 1
    return True


def checkpoint_saved() -> bool:
    """Say that the workers have saved their state; any one worker may speak for all. Whether somebody listened.

    Somebody does under `--grow checkpoint`: now is a good time for a restart on more nodes.
    """
    name, _, token = os.environ.get(SOCKET_VARIABLE, "").partition(":")
    if not name:
        return False
    import socket

    message = f"{token} saved {os.environ.get('LAUNCHER_ROUND', '')}".encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(message, f"\0{name}")
        except OSError:  # the agent has gone, or has more to read than fits
            return False
    return True


def _resolve_page() -> _WorkerPage | None:
    """This worker's line, mapped once and for all; None where there is none."""
    global _page, _is_resolved
    try:
        _page = _map_page(os.environ.get(shared_page.VARIABLE, ""), os.environ.get("LAUNCHER_ROUND", ""))
    except (OSError, ValueError):  # closed, or another file by now: not ours to touch
        _page = None
    _is_resolved = True
    return _page


def _map_page(name: str, round: str) -> _WorkerPage | None:
    """Raises OSError or ValueError if the variable does not say where the board is, or something else is there."""
    descriptor, device, inode, line = map(int, name.split(":"))
    found = os.fstat(descriptor)
    if (found.st_dev, found.st_ino) != (device, inode) or (line + 1) * shared_page.LINE_SIZE > found.st_size:
        return None
    import mmap

    return _WorkerPage(memoryview(mmap.mmap(descriptor, found.st_size)).cast("Q"), line, int(round))
