"""An agent reduced to its supervisor: reads [verb, ...] lines on stdin, writes each report as a JSON line to stdout.

`python -m tests.support.processes.supervisor_agent [SETUP]`; SETUP is run before the fork, and may set four names:
`KEEP`, the descriptors to keep, `TEMPORARY_DIRS`, those of the job, `CLEARS`, whether a lost supervisor is cleared
away at once, as the agent of a job does, and `SETTLES`, whether there will be a supervisor.
"""

from __future__ import annotations

import fcntl
import os
import sys

KEEP: list[int] = []
TEMPORARY_DIRS: list[str] = []
CLEARS = False
SETTLES = True
if sys.argv[1]:
    exec(sys.argv[1])

orders, answers = (fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 10) for stream in (0, 1))
null = os.open(os.devnull, os.O_RDWR)
os.dup2(null, 0)  # a worker that inherits 0 and 1 must not get in the way of the conversation
os.dup2(null, 1)
os.close(null)

from launcher.supervisor.handle import Supervisor  # noqa: E402
from launcher.supervisor.keeper import fork_keeper  # noqa: E402
from launcher.supervisor.messages import SupervisorLost  # noqa: E402

supervisor = Supervisor(*fork_keeper())
supervisor.start(KEEP, "", TEMPORARY_DIRS)

import json  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import time  # noqa: E402

from launcher.supervisor.messages import ForkServerSpec, WorkerSpec  # noqa: E402


def say(*words: object) -> None:
    line = json.dumps(words).encode() + b"\n"
    while line:
        line = line[os.write(answers, line) :]


def spec(local_rank, argv, env=None, unset=(), stdout=None, stderr=None, affinity=None, warm=()):  # type: ignore[no-untyped-def]
    def opened(path: str | None) -> int | None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return None if path is None else os.open(path.format(local_rank=local_rank), flags, 0o600)

    where = None if affinity is None else frozenset(affinity)
    streams = opened(stdout), opened(stderr)
    return WorkerSpec(local_rank, tuple(argv), env or {}, tuple(unset), *streams, where, tuple(warm))


def obey(verb: str, *words):  # type: ignore[no-untyped-def]
    if verb == "spawn":
        return supervisor.spawn(words[0], [spec(**fields) for fields in words[1]])
    if verb == "preload":
        argv, modules, standby, env = words
        return supervisor.preload(ForkServerSpec(tuple(argv), env, (), None, tuple(modules), standby))
    if verb == "exit":
        sys.exit(0)
    if verb == "evaluate":
        return eval(words[0])
    return getattr(supervisor, verb)(*words)


say("Ready", os.getpid(), supervisor.keeper_pid, SETTLES and supervisor.pid)
wakeup, alarm = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # the end of the keeper, as the agent's loop hears of it
signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
signal.signal(signal.SIGCHLD, lambda signum, frame: None)
poll = select.poll()
poll.register(wakeup, select.POLLIN)
poll.register(orders, select.POLLIN)
poll.register(supervisor, select.POLLIN)
buffer = b""
is_listening = True
while True:
    left_s = min(supervisor.wake_at - time.clock_gettime(time.CLOCK_BOOTTIME), 1000.0)
    for descriptor, _ in poll.poll(max(0.0, left_s) * 1000) or [(-1, 0)]:
        if descriptor == wakeup:
            os.read(wakeup, 4096)
        if descriptor == orders:
            data = os.read(orders, 1 << 16)
            if not data:
                os._exit(0)
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                verb, *words = json.loads(line)
                if verb == "close" and is_listening:
                    is_listening = False
                    poll.unregister(supervisor)
                say("Returned", verb, obey(verb, *words))
        for report in supervisor.read_reports():
            if isinstance(report, SupervisorLost) and is_listening:
                is_listening = False
                poll.unregister(supervisor)
                if CLEARS:
                    supervisor.kill_orphans(20)
            say(type(report).__name__, *report.as_tuple())
