"""Ends what an earlier agent of this run has left on this node, before a new one joins.

The keeper of an agent that was killed ends all that its workers have started, and holds the lock until that is done. If
agent, keeper and supervisor were all killed at once, processes that workers started are left and still use the device.
Two things identify them. The *node lock* is a locked file, one for each run of a store and node name (and choice of
visible devices) on this host; keeper, supervisor and workers hold the same lock, so it is free only when the last of
them has ended. And workers have a marker in their environment, which their children inherit and by which they are found
in /proc: the same in every life of the node lock, except for its end, which is new each time. Processes that have
neither are found in the control group, if the agent could create one.

A keeper is given time, since the children that it has adopted cannot be found if it is killed. All other processes of a
dead agent are killed, and no foreign process under a reused pid can be hit. An agent that lives is not: two agents
under one name are a mistake that only the user can correct, and the second one reports it and ends, at once if the
first one is of another version of meshrun. Where the user has not named them, they get different names (`host_agents`).
But where attempts are counted, an agent of an earlier one is asked to leave, and waited for while its workers save.
Containers see neither each other's processes nor, as a rule, each other's files.

An agent that ends normally removes the file. Only the holder of its lock may, and a lock counts only if the file is
still found under its name once it is locked.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct

from launcher import extensions
from launcher.hardware.linux import control_group, locked_files
from launcher.hardware.linux.kernel import kill_exactly, list_ancestors, read_text
from launcher.model.console import log
from launcher.model.errors import TemporaryError, UsageError, find_shortage_hint
from launcher.model.text import hash_words
from launcher.supervisor.messages import KEEPER_NAME
from rendezvous import __version__
from rendezvous.records import name_own_run

LIMIT_S = 10.0
"""Killed processes end in milliseconds; one that hangs in a driver for longer needs the user, or another node."""
RETRY_S = 0.05
PATIENCE_S = 0.2
"""An agent that has just locked the file writes its pid there next; until then no agent seems to hold the lock."""
ASK_PAUSE_S = 1.0
"""Between two requests to an agent of an earlier attempt, which it may not be able to hear yet."""
KEEPER_LIMIT_S = 5.0
"""A keeper needs milliseconds, or 3 s where a process hangs in a driver; a signal continues a stopped one."""
LOCK_VARIABLE = "LAUNCHER_PLACE"
_OWNER_SIZE = 64  # of an agent in the file
_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS")


class Attempt(NamedTuple):
    """Which attempt of the run this agent belongs to, 0 if none are counted."""

    number: int = 0
    limit_s: float = LIMIT_S
    """How long an agent of an earlier one may take to leave."""


UNCOUNTED = Attempt()


class NodeLock(Struct, frozen=True):
    """The lock that one agent of a node holds while any process of it is left."""

    path: str
    descriptor: int
    """Kept open by the agent and inherited by keeper, supervisor and workers."""
    environment: Mapping[str, str]
    """For the workers."""
    group: str = ""
    """The control group for the keeper and all below it, "" if there is none."""

    def release(self) -> bool:
        """Release the lock, and remove the file if no process that cannot be ended still holds it: return whether."""
        os.close(self.descriptor)
        control_group.remove(self.group)
        with suppress(OSError):
            if (lock := locked_files.open_locked(self.path, flags=0)) is not None:
                try:
                    os.unlink(self.path)
                    return True
                finally:
                    os.close(lock)
        return False


def take_node_lock(
    run_id: str, node_name: str, environ: Mapping[str, str], *, scope: str = "", attempt: Attempt = UNCOUNTED
) -> NodeLock:
    """End what an earlier agent of this run has left here, and take its lock; call before the supervisor's fork.

    `scope`: what tells apart runs of one id, their store and the prefix of their keys there. Raises TemporaryError with
    the pids that still exist after `LIMIT_S`, and UsageError when there is no directory to which only this user can
    write.
    """
    name = hash_words(run_id, scope, node_name, *list_visible_devices(environ))
    path, remark = locked_files.find_lock_path(f"{name}.lock")
    directory, file = os.path.split(path)
    if remark:
        log(f"the lock of this node is in {directory}: {remark}")
    path = os.path.join(os.path.realpath(directory), file)  # as the kernel names it in /proc, where /tmp is a link
    spared = {os.getpid(), *list_ancestors(os.getpid())}
    deadline, agentless_since, ask_at, has_logged = time.monotonic() + LIMIT_S, math.inf, -math.inf, False
    refused: dict[int, str] = {}
    lock = None
    try:
        while True:
            lock = _lock(path, attempt.number) if lock is None else lock
            agent, version, its_attempt = _read_agent(path) if lock is None else ("", "", 0)
            if agent and version != __version__:
                raise UsageError(
                    f"an agent of {name_own_run(run_id)} is on this node with meshrun {version}, as {node_name}: "
                    f"pid {agent}; this is meshrun {__version__}",
                    "stop it first, or install one version of meshrun on every node",
                )
            holders = _list_leftovers(name, path if lock is None else "", spared)
            if lock is not None and not holders:
                holders = control_group.clear(read_text(path)[_OWNER_SIZE:], spared)
            if lock is not None and not holders:
                return NodeLock(path, lock, {LOCK_VARIABLE: f"{name}-{os.urandom(8).hex()}"}, _make_group(lock, name))
            now = time.monotonic()
            if now >= deadline:
                attempts = (its_attempt, attempt.number)
                raise extensions.ask("node taken", run_id, node_name, agent, attempts, holders, refused, LIMIT_S)
            agentless_since = math.inf if agent else min(agentless_since, now)
            if lock is not None or now >= agentless_since + PATIENCE_S:
                refused = {}
                for pid in holders:
                    if now < agentless_since + KEEPER_LIMIT_S and _is_keeper(pid):
                        with suppress(OSError):
                            os.kill(pid, signal.SIGCONT)  # harmless, even if the pid was reused
                    else:
                        refused[pid] = _kill(pid, name, "" if lock is not None else path)
            elif agent and not has_logged:
                has_logged = True
                of_attempt = f"attempt {its_attempt} of " if its_attempt < attempt.number else ""
                limit_s = attempt.limit_s if of_attempt else LIMIT_S
                deadline += limit_s - LIMIT_S
                here = f"agent {agent} of {of_attempt}{name_own_run(run_id)} is here as {node_name}"
                log(f"{here}: waiting up to {limit_s:g} s for it to exit")
            if agent and its_attempt < attempt.number and now >= ask_at:
                from launcher.views.questions.local_socket import ask_to_leave

                ask_to_leave(int(agent), run_id, attempt.number)
                ask_at = now + ASK_PAUSE_S
            time.sleep(RETRY_S)
    except BaseException:
        if lock is not None:
            os.close(lock)
        raise


def list_visible_devices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return which devices this agent may use, as far as variables say: agents with others have locks of their own."""
    return tuple(environ.get(variable, "") for variable in _VISIBLE_DEVICES)


def list_running_agents() -> list[int]:
    """Return the pids of this user's agents on this node, of any run, by lock files.

    The locks themselves are not tried: an agent that starts meanwhile would find its own taken.
    """
    found = []
    for directory in locked_files.list_used_dirs():
        with suppress(OSError):
            for name in sorted(os.listdir(directory)):
                path = os.path.join(directory, name)
                if name.endswith(".lock") and (pid := _read_agent(path)[0]):
                    found.append(int(pid))
    return found


def _make_group(lock: int, name: str) -> str:
    """Create a group for what this agent will start, recorded before it is created; "" if none can be."""
    group = control_group.make_path(name)
    os.ftruncate(lock, _OWNER_SIZE)
    os.pwrite(lock, os.fsencode(group), _OWNER_SIZE)
    return group if group and control_group.make(group) else ""


# --- the lock ---


def _lock(path: str, attempt: int) -> int | None:
    """Return the file, locked and with this process's pid in it; None if another process has locked it.

    A waiting agent keeps nothing open: a process that has the file open counts as one of the agent's.
    """
    owner = f"{os.getpid()} {locked_files.read_start_time(os.getpid())} {__version__} {attempt}\n"
    try:
        return locked_files.open_locked(path, owner.encode().ljust(_OWNER_SIZE)[:_OWNER_SIZE])
    except OSError as error:
        sentence = f"cannot lock this node's place in the run with {path}: {error.strerror}"
        raise TemporaryError(sentence, find_shortage_hint(error.errno)) from None


def _read_agent(path: str) -> tuple[str, str, int]:
    """Return the pid, version and attempt of the agent that has locked the file, if it is still the same process."""
    words = read_text(path)[:_OWNER_SIZE].split()
    # Else it is about to write it, or was killed before that: it has started nothing.
    if len(words) == 4 and words[0].isdecimal() and locked_files.read_start_time(int(words[0])) == words[1]:
        return words[0], words[2], int(words[3]) if words[3].isdecimal() else 0
    return "", "", 0


# --- processes that are left ---


def _list_leftovers(name: str, path: str, spared: set[int]) -> list[int]:
    """This user's processes that have this lock's marker, or that have the locked file open (if `path` is set)."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == os.geteuid() and pid not in spared and _is_leftover(pid, name, path):
                found.append(pid)
    return found


def _is_leftover(pid: int, name: str, path: str) -> bool:
    mark = f"{LOCK_VARIABLE}={name}-"
    environment = read_text(f"/proc/{pid}/environ")
    is_marked = mark in environment and any(entry.startswith(mark) for entry in environment.split("\0"))
    return bool(locked_files.read_start_time(pid)) and (is_marked or (bool(path) and _has_open(pid, path)))


def _is_keeper(pid: int) -> bool:
    return read_text(f"/proc/{pid}/comm").strip() == KEEPER_NAME


def _has_open(pid: int, path: str) -> bool:
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{number}") == path:
                return True
    return False


def _kill(pid: int, name: str, path: str) -> str:
    """Kill the process if it is still one of those; return why it could not be killed, "" if it could."""
    try:
        kill_exactly(pid, lambda: _is_leftover(pid, name, path))
    except OSError as error:
        return error.strerror or str(error)
    return ""
