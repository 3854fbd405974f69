"""What signals do to a launcher, its workers, and what those have started."""

from __future__ import annotations

import signal

from tests.compat.looks import exit_code, yes
from tests.compat.runs import TOOLS, Case, Running

_TOLD = (
    TOOLS
    + """
def leave(number, frame):
    mark(f"told-{RANK}", signal.Signals(number).name)
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, leave)
mark(f"ready-{RANK}")
while True:
    time.sleep(0.01)
"""
)
_DEAF = (
    TOOLS
    + """
signal.signal(signal.SIGTERM, lambda number, frame: mark(f"told-{RANK}"))
mark(f"ready-{RANK}")
while True:
    time.sleep(0.01)
"""
)


def _send(number: int):  # type: ignore[no-untyped-def]
    def act(running: Running) -> None:
        running.wait_for("ready-*", 2)
        running.signal(0, number)

    return act


def _send_in_vain(running: Running) -> None:
    running.wait_for("ready-*", 2)
    running.signal(0, signal.SIGTERM)
    running.wait_for("told-*", 2)


def _signal(name: str, torchrun: str, **more: str) -> Case:
    return Case(
        name=f"{name} to the launcher",
        options=f"--nproc-per-node 2 {more.get('options', '')}",
        script=_TOLD,
        act=_send(getattr(signal, name)),
        looks={
            f"{name} to the launcher: what workers get": (lambda seen: seen.file("told-1"), name),
            f"{name} to the launcher: exit code": (exit_code(), torchrun),
            f"{name} to the launcher: nobody is left": (yes(lambda seen: not seen.left), "yes"),
        },
    )


CASES: tuple[Case, ...] = (
    _signal("SIGTERM", "1"),
    _signal("SIGINT", "1"),
    _signal("SIGHUP", "1"),
    _signal("SIGQUIT", "1"),
    _signal("SIGUSR2", "1", options="--signals-to-handle SIGTERM,SIGUSR2"),
    Case(
        name="SIGTERM and workers that stay",
        options="--nproc-per-node 2 --shutdown-timeout 1",
        script=_DEAF,
        act=_send_in_vain,
        looks={
            "SIGTERM is ignored: workers are killed after --shutdown-timeout": (
                yes(lambda seen: not seen.left),
                "yes",
            )
        },
    ),
    Case(
        name="a signal that is not handled",
        options="--nproc-per-node 2 --signals-to-handle SIGUSR1",
        script=_TOLD,
        act=_send(signal.SIGTERM),
        looks={
            "SIGTERM that --signals-to-handle leaves out: exit code": (exit_code(), "-15"),
            "SIGTERM that --signals-to-handle leaves out: workers that live on": (
                lambda seen: str(sum(worker["pid"] in seen.left for worker in seen.workers)),
                "2",
            ),
        },
    ),
    Case(
        name="SIGKILL to the launcher",
        options="--nproc-per-node 2",
        script=_DEAF,
        act=_send(signal.SIGKILL),
        looks={
            "SIGKILL to the launcher: workers that live on": (
                lambda seen: str(sum(worker["pid"] in seen.left for worker in seen.workers)),
                "2",
            )
        },
    ),
    Case(
        name="a process of a worker's own",
        script=TOOLS + "import subprocess\nsubprocess.Popen(['sleep', '600'])\n",
        looks={
            "a process that a worker leaves behind after success": (
                lambda seen: "lives on" if seen.left else "is ended",
                "lives on",
            )
        },
    ),
    Case(
        name="a process of a worker's own, and a failure",
        script=TOOLS + "import subprocess\nsubprocess.Popen(['sleep', '600'])\nsys.exit(3)\n",
        looks={
            "a process that a worker leaves behind after a failure": (
                lambda seen: "lives on" if seen.left else "is ended",
                "lives on",
            )
        },
    ),
)
