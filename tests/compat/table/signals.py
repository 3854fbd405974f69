"""What signals do to a launcher, its workers, and what those have started."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.compat.looks import exit_code, holds
from tests.compat.runs import Case, Running, case, tools

_TOLD = tools("""
def leave(number, frame):
    mark(f"told-{RANK}", signal.Signals(number).name)
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, leave)
mark(f"ready-{RANK}")
while True:
    time.sleep(0.01)
""")
_DEAF = tools("""
signal.signal(signal.SIGTERM, lambda number, frame: mark(f"told-{RANK}"))
mark(f"ready-{RANK}")
while True:
    time.sleep(0.01)
""")


_LOADS = tools("""
import subprocess
loader = subprocess.Popen(["sleep", "600"])
def save(number, frame):
    try:
        loader.wait(timeout=2)
        mark("loader", "is terminated")
    except subprocess.TimeoutExpired:
        mark("loader", "keeps running")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
mark("ready-0")
mark("ready-1")
while True:
    time.sleep(0.01)
""")


def _send(number: int) -> Callable[[Running], None]:
    def act(running: Running) -> None:
        running.wait_for("ready-*", 2)
        running.signal(0, number)

    return act


def _send_in_vain(running: Running) -> None:
    running.wait_for("ready-*", 2)
    running.signal(0, signal.SIGTERM)
    running.wait_for("told-*", 2)


def _signal(name: str, torchrun: str, **more: str) -> Case:
    return case(
        f"{name} to the launcher",
        f"--nproc-per-node 2 {more.get('options', '')}",
        (f"{name} to the launcher: what workers get", lambda seen: seen.file("told-1"), name),
        (f"{name} to the launcher: exit code", exit_code(), torchrun),
        holds(f"{name} to the launcher: nobody is left", lambda seen: not seen.left),
        script=_TOLD,
        act=_send(getattr(signal, name)),
    )


CASES: tuple[Case, ...] = (
    _signal("SIGTERM", "1"),
    _signal("SIGINT", "1"),
    _signal("SIGHUP", "1"),
    _signal("SIGQUIT", "1"),
    _signal("SIGUSR2", "1", options="--signals-to-handle SIGTERM,SIGUSR2"),
    case(
        "SIGTERM and workers that stay",
        "--nproc-per-node 2 --shutdown-timeout 1",
        holds("SIGTERM is ignored: workers are killed after --shutdown-timeout", lambda seen: not seen.left),
        script=_DEAF,
        act=_send_in_vain,
    ),
    case(
        "a signal that is not handled",
        "--nproc-per-node 2 --signals-to-handle SIGUSR1",
        ("SIGTERM not listed in --signals-to-handle: exit code", exit_code(), "-15"),
        (
            "SIGTERM not listed in --signals-to-handle: number of workers that survive",
            lambda seen: str(sum(worker["pid"] in seen.left for worker in seen.workers)),
            "2",
        ),
        script=_TOLD,
        act=_send(signal.SIGTERM),
    ),
    case(
        "SIGKILL to the launcher",
        "--nproc-per-node 2",
        (
            "SIGKILL to the launcher: number of workers that survive",
            lambda seen: str(sum(worker["pid"] in seen.left for worker in seen.workers)),
            "2",
        ),
        script=_DEAF,
        act=_send(signal.SIGKILL),
    ),
    case(
        "a process of a worker's own, and SIGTERM",
        "",
        (
            "SIGTERM to a worker that saves in its handler: its child process during the save",
            lambda seen: seen.file("loader"),
            "is terminated",
        ),
        script=_LOADS,
        act=_send(signal.SIGTERM),
    ),
    case(
        "a process of a worker's own",
        "--shutdown-timeout 1",
        (
            "a process that a worker leaves running after success",
            lambda seen: "keeps running" if seen.left else "is stopped",
            "keeps running",
        ),
        script=tools("import subprocess\nsubprocess.Popen(['sleep', '600'])\n"),
    ),
    case(
        "a process of a worker's own, and a failure",
        "",
        (
            "a process that a worker leaves running after a failure",
            lambda seen: "keeps running" if seen.left else "is stopped",
            "keeps running",
        ),
        script=tools("import subprocess\nsubprocess.Popen(['sleep', '600'])\nsys.exit(3)\n"),
    ),
)
