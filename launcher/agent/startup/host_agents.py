"""The agents of one run on this host: what each is called, and which devices it has taken.

A node is called after its host. Where several agents of a run are on one host, as on a laptop where two nodes are
tried, the second is HOST-2, the third HOST-3. Everything goes by that name: ranks that stay, quarantine, `meshctl
drain`, and the node lock by which the next agent ends what its predecessor has left (`stale_agents`). So an agent that
comes again must find its own name, also if others are running, and never one that another has or had. It is recognised
by the devices that its variables make visible, such as CUDA_VISIBLE_DEVICES, and among agents for which these are the
same by its --node-rank; others are interchangeable.

One file for each run of a store, name of a host, boot of it and version of meshrun, beside the locks, lists the agents,
also those that have ended. It is read and written under its own lock. It only remembers: an agent is running if its
process is, what is left of one is known by its node lock, and a file that cannot be read counts as empty.

Two agents with one device would both work, slowly, or run out of its memory, so the second is refused. Agents that were
given names (--node-name) are not in the list: they are nodes of their own and may share devices.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from msgspec import Struct, field
from msgspec.structs import replace

from launcher import extensions
from launcher.agent.startup import stale_agents
from launcher.hardware.accelerators.contract import CpuDetector, find_visible_variable
from launcher.hardware.linux.files import replacing
from launcher.hardware.linux.locked_files import FILE_MODE, find_lock_path, open_locked, read_start_time
from launcher.model.console import log
from launcher.model.errors import TemporaryError, find_shortage_hint
from launcher.model.node import Slot
from launcher.model.text import format_list, hash_words
from rendezvous import __version__, codec
from rendezvous.errors import RecordError
from rendezvous.records import name_own_run

_SHOWN_MAX = 4  # devices in a message


class HostAgent(Struct, frozen=True, kw_only=True):
    """One agent of this host."""

    name: str
    visible: str
    """A hash of what its variables make visible."""
    pid: int
    """0 if it has ended and left nothing, -1 if it has ended and something may be left."""
    started: str
    """When its process started, in the kernel's ticks."""
    node_rank: int | None = None
    """None if it was given none."""
    devices: tuple[str, ...] = ()
    """Ids of the accelerators that it has taken."""
    attempt: int = 0
    """0 if none are counted."""

    @property
    def is_running(self) -> bool:
        return self.pid > 0 and read_start_time(self.pid) == self.started


def _describe_self() -> HostAgent:
    return HostAgent(name="", visible="", pid=os.getpid(), started=read_start_time(os.getpid()))


# docs/internals/decisions/0054-several-agents-of-one-host.md
class HostAgents(Struct, eq=False):
    """The agents of a run on this host, among them this one."""

    run_id: str
    host: str
    path: str
    """Of their list."""
    _own: HostAgent = field(default_factory=_describe_self)

    @property
    def name(self) -> str:
        return self._own.name

    def join(self, environ: Mapping[str, str], *, uses_accelerators: bool = True, node_rank: int | None = None) -> None:
        """Find a name for this agent, and log it if it is not the host's.

        An agent that has the accelerators which this one would take (`uses_accelerators`), or its node rank, may be
        about to end, as in a quick restart: it is waited for, so that this one gets its name.
        """
        deadline, has_logged = time.monotonic() + stale_agents.LIMIT_S, False
        visible = hash_words(*stale_agents.list_visible_devices(environ))
        self._own = replace(self._own, visible=visible, node_rank=node_rank)
        while True:
            with self._change() as agents:
                running = self._list_others(agents)
                rival = _find_rival(self._own, agents, running, uses_accelerators=uses_accelerators)
                if rival is None or time.monotonic() >= deadline:
                    self._enter(agents, replace(self._own, name=_choose_name(self._own, agents, running, self.host)))
                    break
            if not has_logged:
                has_logged = True
                log(f"{self._name_agents([rival])} here: waiting up to {stale_agents.LIMIT_S:g} s for it to exit")
            time.sleep(stale_agents.RETRY_S)
        if self.name != self.host and running:
            log(f"{self._name_agents(running)} here, too: this node is called {self.name}")

    def take_devices(self, slots: Iterable[Slot]) -> None:
        """Take the accelerators of these slots. Raises TemporaryError if another agent that is running has one."""
        devices = [device for slot in slots for device in slot.devices if device.kind != CpuDetector.kind]
        if not devices:
            return
        taken = tuple(dict.fromkeys(device.id for device in devices))
        with self._change() as agents:
            for other in self._list_others(agents):
                if shared := [device for device in taken if device in other.devices]:
                    self._forget(agents)  # the name was never that of a node
                    break
            else:
                self._enter(agents, replace(self._own, devices=taken))
                return
        there = f"{self._name_agents([other])} here with {format_list(shared, _SHOWN_MAX)}"
        variable = devices[0].variable or find_visible_variable(devices[0].kind)
        raise extensions.ask("devices taken", there, variable)

    def leave(self, *, is_clean: bool) -> None:
        """Note that this agent has ended; unless `is_clean`, something is left of it, and its name comes first."""
        with suppress(TemporaryError), self._change() as agents:  # that the process has ended is seen as well
            if self._own in agents:
                self._enter(agents, replace(self._own, pid=0 if is_clean else -1, started="", devices=()))

    def _list_others(self, agents: Iterable[HostAgent]) -> list[HostAgent]:
        """List those that are running; one of an earlier attempt makes way, so its name is free as if it had ended."""
        others = (agent for agent in agents if agent.name != self.name and agent.attempt >= self._own.attempt)
        return [agent for agent in others if agent.is_running]

    def _enter(self, agents: list[HostAgent], own: HostAgent) -> None:
        self._own = own
        self._forget(agents)
        agents.append(own)

    def _forget(self, agents: list[HostAgent]) -> None:
        agents[:] = [agent for agent in agents if agent.name != self.name]

    def _name_agents(self, agents: Sequence[HostAgent]) -> str:
        """Return the beginning of a sentence that says where or what they are."""
        who = format_list([f"{agent.pid} ({agent.name})" for agent in agents], _SHOWN_MAX)
        noun, verb = ("agent", "is") if len(agents) == 1 else ("agents", "are")
        return f"{noun} {who} of {name_own_run(self.run_id)} {verb}"

    # --- the file ---

    @contextmanager
    def _change(self) -> Iterator[list[HostAgent]]:
        """The list, to be changed while no other agent does; written at the end. Raises TemporaryError."""
        file = self._open()
        try:
            agents = _read(file)
            before = list(agents)
            yield agents
            if all(agent.pid == 0 for agent in agents):  # none may return to its name
                with suppress(OSError):  # of an agent that was killed; later it may be that of the next list
                    os.unlink(f"{self.path}.part")
                os.unlink(self.path)
            elif agents != before:
                # An agent that is killed meanwhile, or a full disk, leaves the list as it was.
                with replacing(self.path, FILE_MODE) as written:  # only the holder of the lock writes it
                    written.write(codec.encode(agents))
        except OSError as error:
            raise self._make_error("change", error) from None
        finally:
            os.close(file)

    def _open(self) -> int:
        """Open and lock the list. Raises TemporaryError if it stays locked: a stopped agent may hold it."""
        deadline = time.monotonic() + stale_agents.LIMIT_S
        while True:
            try:
                if (file := open_locked(self.path)) is not None:
                    return file
            except OSError as error:
                raise self._make_error("open", error) from None
            if time.monotonic() >= deadline:
                sentence = f"{self.path}, the list of this run's agents on this host, was locked for"
                hint = "check whether an agent of the run is stopped: ps -o pid,stat,cmd"
                raise TemporaryError(f"{sentence} {stale_agents.LIMIT_S:g} s", hint)
            time.sleep(stale_agents.RETRY_S)

    def _make_error(self, verb: str, error: OSError) -> TemporaryError:
        sentence = f"cannot {verb} {self.path}, the list of this run's agents on this host: {error.strerror}"
        return TemporaryError(sentence, find_shortage_hint(error.errno))


def take_host_place(
    run_id: str,
    host: str,
    boot_id: str,
    environ: Mapping[str, str],
    *,
    scope: str = "",
    uses_accelerators: bool = True,
    node_rank: int | None = None,
    attempt: stale_agents.Attempt = stale_agents.UNCOUNTED,
) -> tuple[HostAgents, stale_agents.NodeLock]:
    """Find a name for this agent of the run, and take the node lock of that name; see `take_node_lock` for the rest."""
    name = hash_words(run_id, scope, host, boot_id, __version__)
    own = replace(_describe_self(), attempt=attempt.number)
    agents = HostAgents(run_id, host, find_lock_path(f"{name}.agents")[0], own)
    agents.join(environ, uses_accelerators=uses_accelerators, node_rank=node_rank)
    try:
        return agents, stale_agents.take_node_lock(run_id, agents.name, environ, scope=scope, attempt=attempt)
    except BaseException:
        agents.leave(is_clean=False)  # the next one has to end the same processes
        raise


def _find_rival(
    own: HostAgent, agents: Sequence[HostAgent], running: Sequence[HostAgent], *, uses_accelerators: bool
) -> HostAgent | None:
    """Return an agent that is running and whose place `own` is most likely to take."""
    alike = [agent for agent in running if agent.visible == own.visible]
    if own.node_rank is not None:
        for agent in alike:
            if agent.node_rank == own.node_rank:
                return agent
    if not uses_accelerators or any(agent.visible == own.visible for agent in agents if agent not in running):
        return None
    return next((agent for agent in alike if agent.devices), None)


def _choose_name(own: HostAgent, agents: Sequence[HostAgent], running: Sequence[HostAgent], host: str) -> str:
    """Return a name for one more agent, `own`.

    First the name of an agent like this one that was killed, because something may be left of it, then of one that has
    ended. The name of an agent unlike this one is kept for that, running or not.
    """
    alike = [agent for agent in agents if agent.visible == own.visible]
    if ended := [agent for agent in alike if agent not in running]:
        # Of two names of one host the one with the lower number comes first by its length.
        rated = [(agent.node_rank != own.node_rank, agent.pid == 0, len(agent.name), agent.name) for agent in ended]
        return min(rated)[-1]
    used = {agent.name for agent in agents}
    names = (host, *(f"{host}-{number}" for number in range(2, len(used) + 2)))
    return next(name for name in names if name not in used)


def _read(file: int) -> list[HostAgent]:
    """Read the list; one that cannot be read counts as none."""
    with open(file, "rb", closefd=False) as reader:
        data = reader.read()
    try:
        return codec.decode(list[HostAgent], data, "the list of agents") if data else []
    except RecordError:
        return []
