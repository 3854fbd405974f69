"""Members of a job for tests of presence: in this process with their events in a list, or in processes of their own.

`python -m tests.support.protocol.presence HOST JOB MEMBER_ID SECRET HOLDERS` is such a process: it prints its address,
then one line per event, and reads orders, [verb, ...] a line. HOLDERS children inherit its listener, as supervisor
and workers do.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from typing import Any

from msgspec.structs import astuple

from rendezvous.events import ConnectTo, Event, PeerDown, PeerGone, PeerMessage, PeerUp, SendToPeer, SetIdentity
from rendezvous.peers.connections import PeerConnections, bind
from rendezvous.stores.addresses import join_address
from tests.support.processes.tree import REPOSITORY, TOKEN_VARIABLE, kill_family
from tests.support.waiting import wait_until

JOB = "/meshrun/run/0123456789abcdef/"
LIMIT_S = 20.0


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Member:
    """A presence in this process."""

    def __init__(
        self,
        member_id: str,
        *,
        host: str = "127.0.0.1",
        job: str = JOB,
        secret: bytes = b"",
        silence_s: float = 60.0,
        address: str = "",
    ) -> None:
        self.member_id = member_id
        self.listener = bind(host, (0,))
        self.address = address or join_address(host, self.listener.getsockname()[1])
        self.events: list[Event] = []
        self.presence = PeerConnections(
            listener=self.listener, address=self.address, secret=secret, submit=self.events.append, clock=boottime,
            silence_s=silence_s,
        )  # fmt: skip
        if job:
            self.presence.carry_out(SetIdentity(job, member_id))

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.presence.close()
        self.listener.close()

    def attend(self, other: Member | MemberProcess) -> None:
        self.presence.carry_out(ConnectTo(other.member_id, other.address))

    def wait_for(self, event: Event, count: int = 1, limit_s: float = LIMIT_S) -> None:
        wait_until(lambda: self.events.count(event) >= count, limit_s, f"{event}; heard {self.events}")

    def wait_for_up(self, other: Member | MemberProcess, is_provable: bool = True) -> None:
        self.wait_for(PeerUp(other.member_id, other.address, is_provable))

    def of(self, member_id: str) -> list[Event]:
        """What was told of that member, without its messages."""
        kinds = (PeerUp, PeerDown, PeerGone)
        return [event for event in list(self.events) if isinstance(event, kinds) and event.member_id == member_id]


class MemberProcess:
    """The same in a process of its own; a context manager that leaves no process behind."""

    def __init__(
        self, member_id: str, *prefix: str, host: str = "127.0.0.1", secret: str = "", holders: int = 0
    ) -> None:
        self.member_id = member_id
        self.token = secrets.token_hex(8)
        self._process = subprocess.Popen(
            [
                *prefix,
                sys.executable,
                "-m",
                "tests.support.protocol.presence",
                host,
                JOB,
                member_id,
                secret,
                str(holders),
            ],
            cwd=REPOSITORY,
            env={**os.environ, TOKEN_VARIABLE: self.token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self.address, self.pid, *self.holders = json.loads(self._process.stdout.readline())
        self.events: list[list[Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> MemberProcess:
        return self

    def __exit__(self, *_: object) -> None:
        kill_family(self.token)
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append(json.loads(line))

    def do(self, action: str, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([action, *words]).encode() + b"\n")
        self._process.stdin.flush()

    def attend(self, other: Member | MemberProcess) -> None:
        self.do("ConnectTo", other.member_id, other.address)

    def wait_for(self, *event: object, limit_s: float = LIMIT_S) -> None:
        wait_until(lambda: list(event) in self.events, limit_s, f"{event}; heard {self.events}")


def main(host: str, job: str, member_id: str, secret: str, holders: str) -> None:
    listener = bind(host, (0,))
    children = []
    for _ in range(int(holders)):
        pid = os.fork()
        if pid == 0:
            os.close(1)
            while True:
                time.sleep(1000)
        children.append(pid)
    address = join_address(host, listener.getsockname()[1])
    print(json.dumps([address, os.getpid(), *children]), flush=True)

    def say(event: Event) -> None:
        print(json.dumps([type(event).__name__, *astuple(event)]), flush=True)

    presence = PeerConnections(
        listener=listener, address=address, secret=secret.encode(), submit=say, clock=boottime, silence_s=1.0
    )
    presence.carry_out(SetIdentity(job, member_id))
    for line in sys.stdin:
        kind, *words = json.loads(line)
        presence.carry_out({"ConnectTo": ConnectTo, "SendToPeer": SendToPeer}[kind](*words))


if __name__ == "__main__":
    main(*sys.argv[1:])


__all__ = ["JOB", "LIMIT_S", "Member", "MemberProcess", "PeerDown", "PeerGone", "PeerMessage", "PeerUp", "boottime"]
