"""A fork server that imports nothing and can be held at every step of its talk with the supervisor.

`python -I -S fake_fork_server.py FOLDER`. It waits at a step as long as FOLDER has a file of that name, and makes a
file at-NAME when it comes there: "import", "order" (it has orders), "go-between", "newborn" (not yet adopted), "unborn"
(adopted, and has not said so), "parked", "released" (has its spec). A file "refuse" has it refuse; "fail" has every
fork fail; "stray" has newborns end unborn, "lie" has them name somebody else. A worker runs the words after "exec" in
its `warm`, as a program.
"""

from __future__ import annotations

import array
import ctypes
import errno
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

HEAD = struct.Struct("!IB")
libc = ctypes.CDLL(None)
folder = sys.argv[1]


def has(name: str) -> bool:
    return os.path.exists(os.path.join(folder, name))


def step(name: str) -> None:
    if has(name):
        os.close(os.open(os.path.join(folder, f"at-{name}"), os.O_CREAT))
    while has(name):
        time.sleep(0.002)


def send(end: socket.socket, *message: object) -> None:
    text = json.dumps(message).encode()
    with suppress(BrokenPipeError, ConnectionResetError):
        end.sendall(HEAD.pack(len(text), 0) + text)


def receive(end: socket.socket):  # type: ignore[no-untyped-def]
    """The next message and its descriptors; None at the end."""
    data, given = b"", array.array("i")
    size = HEAD.size
    while len(data) < size:
        more, ancillary, _, _ = end.recvmsg(size - len(data), socket.CMSG_SPACE(8 * 4))
        if not more:
            return None
        for _, _, packed in ancillary:
            given.frombytes(packed)
        data += more
        if len(data) >= HEAD.size:
            size = HEAD.size + HEAD.unpack_from(data)[0]
    return json.loads(data[HEAD.size :]), list(given)


def work(end: socket.socket, own: int, go_between: int, supervisor: int, kept: list[int], others: list[int]) -> None:
    """Live as a worker; whatever happens, do not return."""
    try:
        step("newborn")
        if has("stray"):
            os._exit(0)
        os.setsid()
        for other in others:
            os.close(other)
        while os.getppid() == go_between:
            time.sleep(0.0005)
        if os.getppid() != supervisor:
            os._exit(127)
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:
            os._exit(127)
        step("unborn")
        send(end, "born", 1 if has("lie") else os.getpid())
        step("parked")
        message = receive(end)
        if message is None:
            os._exit(0)
        (_, _, environment, _, _, _, _, warm), (stdout, stderr) = message
        step("released")
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        first = 3
        for descriptor in sorted([own, *kept]):
            os.closerange(first, descriptor)
            first = descriptor + 1
        os.closerange(first, 1024)
        if warm[0] != "exec":
            send(end, "failed", f"cannot run {warm[0]!r}: it is nothing", errno.ENOENT)
        end.close()
        if warm[0] == "exec":
            os.execvpe(warm[1], warm[1:], environment)
    finally:
        os._exit(126)


def serve(control: socket.socket) -> None:
    message = receive(control)
    if message is None:
        return
    (_, modules, supervisor, kept), _ = message
    step("import")
    if has("refuse"):
        send(control, "refused", f"cannot import {modules[0]}", "leave it out")
        return
    send(control, "ready", 0.5, ["a remark"])
    while True:
        message = receive(control)
        if message is None:
            return
        step("order")
        ends = message[1]
        while select.select([control], [], [], 0)[0] and (message := receive(control)):
            ends += message[1]
        if has("fail"):
            for end in ends:
                send(socket.socket(fileno=end), "failed", "cannot fork", errno.EAGAIN)
            continue
        child = os.fork()
        if child == 0:
            server = os.getppid()
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != server:
                os._exit(0)
            step("go-between")
            go_between = os.getpid()
            for end in ends:
                if os.fork() == 0:
                    others = [control.fileno(), *(other for other in ends if other != end)]
                    work(socket.socket(fileno=end), end, go_between, supervisor, kept, others)
            os._exit(0)
        for end in ends:
            os.close(end)
        os.waitpid(child, 0)


serve(socket.socket(fileno=int(os.environ.pop("LAUNCHER_FORK_SERVER"))))
os._exit(3)
