"""The keeper: the process between agent and supervisor, which outlives both and ends only when nothing is left.

    agent -- keeper -- supervisor -- workers -- what workers start

The kernel kills workers when the supervisor ends, but not what they have started: a child of a wrapper script, of
`subprocess`, a daemon. The nearest living subreaper adopts those, and supervisor and agent may be killed or stopped
together. So the agent forks this process first. It forks the supervisor and then only waits: it adopts, and when the
supervisor or the agent has ended, it kills and reaps until it has no child any more. It holds the presence listener
and the lock of the node all that time, so both indicate that nothing is left only when that is true. Last it removes
the sockets and empty directories of workers, which a killed agent leaves behind.

Any two of the three may be killed or stopped, in any order:

- The agent ends: the kernel sends the keeper SIGCONT, which passes it on. The supervisor kills all workers and ends.
- The supervisor ends, also by the kernel's timer while it is stopped: the keeper kills what it adopts.
- The keeper ends: the kernel sends the supervisor SIGCONT, which kills all workers and ends.
- Keeper and supervisor end, or one ends while the other is stopped: the agent kills that, adopts and kills the rest.

So none of the three kills another that may still do its work: two losses must not become three. A supervisor that is
only stopped is no loss yet. Where no watchdog ends it, nobody would see a worker's end or start the next one, so the
keeper says so and continues it. It is told by the kernel, and sees whether the supervisor stands at that moment: a
machine that sleeps or is busy cannot look like that, and Ctrl-Z reaches neither of the two.

It runs no foreign code, imports nothing that the supervisor does not, and blocks every signal.
"""

from __future__ import annotations

import gc
import os
import stat
import time
from _socket import socket, socketpair
from collections.abc import Sequence
from contextlib import suppress

from launcher.hardware.linux import kernel
from launcher.hardware.linux.kernel import signal
from launcher.model.console import log
from launcher.model.errors import TemporaryError, describe_bug, find_shortage_hint
from launcher.supervisor.channel import Channel
from launcher.supervisor.child import ProcessHost, close_all_but
from launcher.supervisor.loop import SupervisorLoop
from launcher.supervisor.messages import KEEPER_NAME, STUCK_LIMIT_S, SUPERVISOR_NAME, SWEEP_INTERVAL_S
from rendezvous.errors import EXIT_BUG, EXIT_TEMPORARY

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    from typing import NoReturn

# Without its agent a supervisor ends within milliseconds, or when processes that hang in a driver no longer count.
SUPERVISOR_LIMIT_S = STUCK_LIMIT_S + 1.0


STOP_LIMIT_S = 5.0
"""For who has stopped the supervisor to continue it; until a debugger does, it stands all the same."""


# docs/internals/decisions/0045-keeper-between-agent-and-supervisor.md
def fork_keeper() -> tuple[int, Channel]:
    """Fork the keeper, which waits for `Supervisor.start`; return its pid and the agent's end. Raises TemporaryError.

    Call it early: what is imported by then is in the memory of keeper and supervisor too, and from the thread that
    lives longest. Descriptors other than 0, 1, 2 and the socket are closed there, so workers never see them.
    """
    open_standard_streams()
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # inherited; the kernel would hide exit codes from us
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ours, theirs = socketpair()
    channel, agent_pid = Channel(ours), os.getpid()
    found = kernel.read_stat(agent_pid)  # here, since a page that one of the two changes exists once more
    arguments = found.arguments if found else (0, 0)
    # No signal may reach the two before they have set up theirs; they keep most of them blocked permanently.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise TemporaryError(
            f"cannot fork the supervisor: {error.strerror}", find_shortage_hint(error.errno)
        ) from error
    if pid == 0:
        _be_keeper(ours, theirs, agent_pid, arguments)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return pid, channel


def open_standard_streams() -> None:
    """Open /dev/null where 0, 1 or 2 was closed, lest a socket of ours get the number and workers write into it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _be_keeper(agents_end: socket, own_end: socket, agent_pid: int, arguments: tuple[int, int]) -> NoReturn:
    """Run as the keeper, or the supervisor; never return into the agent's code, nor run its exit handlers."""
    exit_code = EXIT_BUG
    try:
        agents_end.close()
        exit_code = _run(own_end, agent_pid, arguments)
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(exit_code)


def _run(end: socket, agent_pid: int, arguments: tuple[int, int]) -> int:
    """Wait for the agent's order, fork the supervisor, then kill what it leaves.

    `end`: of a socket through which that order comes: the descriptors to keep, with a socket for the supervisor before
    them, a control group, and directories in which to remove leftovers. Returns how the supervisor ended, as an exit
    code, which is 128 + N for signal N; 0 if the agent has ended or given up before. In the supervisor this returns 0
    at its end.
    """
    os.setsid()
    set_title(KEEPER_NAME, agent_pid, arguments)
    with suppress(OSError):  # where that is refused, it is said below
        kernel.signal_on_parent_death(signal.SIGCONT)  # lest one that is stopped stays for good
    channel = Channel(end, blocks=True)
    try:
        order = next(channel.receive(wait=True), None)
        if order is None:
            return 0
        (keep, group, temporary_dirs), descriptors = order
    except Exception as error:  # no descriptors, no memory, or an order that makes no sense
        why = str(error) if isinstance(error, OSError) else describe_bug(error)
        channel.send(("SupervisorLost", f"the keeper cannot read its order: {why}", EXIT_TEMPORARY))
        return EXIT_TEMPORARY
    channel.close()
    own_pid, attempt = os.getpid(), "the supervisor cannot run here"
    try:
        place_descriptors(descriptors, keep)
        close_all_but((descriptors[0], *keep), max(map(int, os.listdir("/proc/self/fd"))))
        if group:
            _join_control_group(group)  # if that is refused all stay outside
        kernel.become_subreaper()
        kernel.signal_on_parent_death(signal.SIGCONT)
        for descriptor in keep:
            os.set_inheritable(descriptor, True)  # only here: other processes of the agent do not inherit them
        end = socket(fileno=descriptors[0])
        loop = SupervisorLoop(Channel(end), ProcessHost(tuple(keep)), own_pid)
        gc.freeze()  # pages that the supervisor shares stay shared: its garbage collector skips them
        attempt = "cannot fork the supervisor"
        supervisor_pid = os.fork()
    except OSError as error:  # no /proc, no descriptors, no more processes, a sandbox
        hint = find_shortage_hint(error.errno)
        sentence = f"{attempt}: {error.strerror}" + (f"; {hint}" if hint else "")
        Channel(socket(fileno=descriptors[0])).send(("SupervisorLost", sentence, EXIT_TEMPORARY))
        return EXIT_TEMPORARY
    if supervisor_pid == 0:
        set_title(SUPERVISOR_NAME, agent_pid, arguments)
        _supervise(loop, end, own_pid)
        return 0
    end.close()
    exit_code = _wait_for_supervisor(supervisor_pid, agent_pid)
    remove_leftovers(temporary_dirs)
    if group:
        _join_control_group(os.path.dirname(group))
        with suppress(OSError):
            os.rmdir(group)
    return exit_code


def place_descriptors(found: list[int], numbers: Sequence[int]) -> None:
    """Give all of the descriptors but the first these numbers, and the first one that is none of them, if need be.

    Descriptors that come through a socket get the lowest free numbers. Workers find theirs by the agent's.
    """
    for index, number in enumerate(numbers, 1):
        if number in found and found.index(number) != index:
            found[found.index(number)] = os.dup(number)  # another one has that number
        if found[index] != number:
            os.dup2(found[index], number, inheritable=False)
            os.close(found[index])
            found[index] = number


def _supervise(loop: SupervisorLoop, end: socket, keeper_pid: int) -> None:
    """Run as the supervisor until agent or keeper or the agent's end of the socket has ended, and no process is left.

    No descriptor is open but the standard streams, `end`, which is the loop's, and those it keeps.
    """
    os.setsid()
    try:
        kernel.become_subreaper()
        # If the keeper dies while we are stopped, wake up and kill the workers.
        kernel.signal_on_parent_death(signal.SIGCONT)
        loop.begin()
    except OSError as error:  # no descriptors, a sandbox
        Channel(end).send(("SupervisorLost", f"the supervisor cannot run here: {error.strerror}", EXIT_TEMPORARY))
        return
    gc.enable()  # the agent starts with it disabled
    loop.run()
    if os.getppid() == keeper_pid:
        os.kill(keeper_pid, signal.SIGCONT)  # a stopped one has only to find that nothing is left


def _join_control_group(group: str) -> None:
    """Move this process into this control group."""
    with suppress(OSError), open(f"{group}/cgroup.procs", "w") as file:
        file.write("0")


def _wait_for_supervisor(supervisor_pid: int, agent_pid: int) -> int:
    """Run as the keeper, with every signal blocked; return how the supervisor ended."""
    wakes = (signal.SIGCHLD, signal.SIGCONT)
    exit_code: int | None = None
    began_at = stopped_at = 0.0
    while True:
        with suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
                if reaped[0] == supervisor_pid and os.WIFSTOPPED(reaped[1]):
                    stopped_at = time.monotonic()
                elif reaped[0] == supervisor_pid:
                    exit_code = os.waitstatus_to_exitcode(reaped[1])
        if exit_code is None and os.getppid() == agent_pid:
            left_s = stopped_at + STOP_LIMIT_S - time.monotonic()
            if not stopped_at:
                signal.sigwait(wakes)
            elif left_s > 0:
                signal.sigtimedwait(wakes, left_s)
            else:
                stopped_at = 0.0
                _continue(supervisor_pid)
            continue
        began_at = began_at or time.monotonic()
        lasted_s = time.monotonic() - began_at
        if exit_code is None and lasted_s < SUPERVISOR_LIMIT_S:
            os.kill(supervisor_pid, signal.SIGCONT)  # it ends by itself; killed, it would leave only this process
        elif not kernel.kill_children((), lasted_s > STUCK_LIMIT_S):
            code = 0 if exit_code is None else exit_code  # the supervisor itself may hang in the kernel
            return code if code >= 0 else 128 - code
        signal.sigtimedwait(wakes, SWEEP_INTERVAL_S)


def remove_leftovers(directories: Sequence[str]) -> None:
    """Remove the sockets and empty directories in these, and these themselves if they are empty then.

    A killed agent cannot. A file stays, with its directory: it may be a worker's last words.
    """
    for directory in directories:
        for folder, _, names in os.walk(directory, topdown=False):
            for path in (os.path.join(folder, name) for name in names):
                with suppress(OSError):
                    if stat.S_ISSOCK(os.lstat(path).st_mode):
                        os.unlink(path)
            with suppress(OSError):  # it has a file
                os.rmdir(folder)


def _continue(supervisor_pid: int) -> None:
    """Continue a supervisor that a signal has stopped, unless that has been done."""
    if kernel.is_stopped(supervisor_pid):
        log(f"the supervisor (pid {supervisor_pid}) was stopped for {STOP_LIMIT_S:g} s; continuing it (SIGCONT)")
        os.kill(supervisor_pid, signal.SIGCONT)


def set_title(name: str, agent_pid: int, arguments: tuple[int, int]) -> None:
    """Set what ps, top and pgrep show: a name of its own and, in place of the agent's command line, the agent's pid.

    With the agent's, which may contain any word, `pkill -f` would hit all three at once. `arguments`: the memory from
    where to where the command line is; the new one is as long as that. Where /proc cannot be written the old one stays.
    """
    start, end = arguments
    line = f"{name} of pid {agent_pid}".encode()[: max(0, end - start - 1)]
    kernel.set_name(name)
    if 0 < start < end:
        with suppress(OSError):
            kernel.write_file("/proc/self/mem", line.ljust(end - start, b"\0"), start)
