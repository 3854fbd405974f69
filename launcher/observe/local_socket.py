"""How another process of this user asks an agent of this machine: names of the agents' sockets, and the questions.

A stream socket in the kernel's abstract namespace leaves no file behind, and its name shows whose it is:
`meshrun.<user id>.<pid>`. Anybody may use a name there, so each side checks the other's user id. A question is one
line of JSON, its answer another.

| kind | answer |
|---|---|
| run | `LocalAgent`, without the name |
| why | a Conclusion of launcher.agent.diagnosis; "{}" if nobody answers |
| inspect | a RunReport, from all nodes by way of the leader |
| inspect_node | what `request` says of `node` ("" is the agent's own): a NodeReport, an EventPage or a LogPage |

An answer {"error": SENTENCE} says why there is none.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct

from launcher.model.errors import TemporaryError, UsageError
from launcher.model.text import format_list
from launcher.observe.node_report import EventPage, LogPage, NodeReport, NodeRequest, ReadEvents, ReadLogs, RunReport

SOCKET_NAME = "meshrun.{uid}.{pid}"
CONNECT_LIMIT_S = 2.0
INSPECT_LIMIT_S = 5.0
ANSWER_MAX = 64 << 20
"""Bytes of an answer: a report on a thousand nodes with eight ranks each has about 5 MB."""
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Question(Struct, frozen=True, kw_only=True):
    """A question; `node` and `request` with kind "inspect_node" only."""

    kind: str
    node: str = ""
    request: NodeRequest | None = None


class LocalAgent(Struct, frozen=True, kw_only=True):
    """An agent of this machine. `name`: its socket's, in the abstract namespace."""

    name: str
    run_id: str
    node: str

    @property
    def pid(self) -> str:
        return self.name.rpartition(".")[2]


class _Problem(Struct, frozen=True, kw_only=True):
    error: str


Answer = TypeVar("Answer")


def list_local_agents() -> list[LocalAgent]:
    """List the agents of this user (of all users, for root) that answer here."""
    agents = (_identify(name) for name in _list_socket_names())
    return [agent for agent in agents if agent is not None]


def choose_agent(agents: list[LocalAgent], run_id: str | None) -> LocalAgent | None:
    """Choose whom to ask, by a run or an agent's pid; None if there is none. Raises UsageError if it may be several."""
    runs = {agent.run_id: f"{agent.run_id} (pid {agent.pid})" for agent in agents}
    if run_id is None and len(runs) > 1:
        there = format_list(sorted(runs.values()), 4)
        raise UsageError(f"{len(runs)} jobs run on this machine: name a run, or its agent's pid", f"there: {there}")
    return next((agent for agent in agents if run_id in (None, agent.run_id, agent.pid)), None)


def ask_run(agent: LocalAgent, limit_s: float = INSPECT_LIMIT_S) -> RunReport:
    """Ask what all nodes of the run say of themselves. Raises TemporaryError if there is no answer."""
    return ask(agent, Question(kind="inspect"), RunReport, limit_s)


def ask_node(agent: LocalAgent, node: str, request: NodeRequest, limit_s: float = INSPECT_LIMIT_S) -> NodeReport:
    """Ask for the state of one node, "" for the agent's own. Raises TemporaryError."""
    return ask(agent, Question(kind="inspect_node", node=node, request=request), NodeReport, limit_s)


def read_events(agent: LocalAgent, node: str, request: ReadEvents, limit_s: float = INSPECT_LIMIT_S) -> EventPage:
    """Read a page of a node's events. Raises TemporaryError."""
    return ask(agent, Question(kind="inspect_node", node=node, request=request), EventPage, limit_s)


def read_logs(agent: LocalAgent, node: str, request: ReadLogs, limit_s: float = INSPECT_LIMIT_S) -> LogPage:
    """Read a page of the output of a node's workers. Raises TemporaryError."""
    return ask(agent, Question(kind="inspect_node", node=node, request=request), LogPage, limit_s)


def ask(agent: LocalAgent, question: Question, kind: type[Answer], limit_s: float) -> Answer:
    """Ask a question; return the answer. Raises TemporaryError with the agent's own sentence, or what is wrong."""
    try:
        line = exchange(agent.name, question, limit_s)
        if line.startswith(b'{"error":'):
            raise TemporaryError(f"run {agent.run_id}: {msgspec.json.decode(line, type=_Problem).error}")
        return msgspec.json.decode(line, type=kind)
    except OSError as error:
        why = "has not answered in time" if isinstance(error, TimeoutError) else f"cannot be asked: {error.strerror}"
        raise TemporaryError(f"the agent of run {agent.run_id} on this machine {why}") from None
    except msgspec.MsgspecError as error:
        raise TemporaryError(
            f"the agent of run {agent.run_id} on this machine answers in words of another version: {error}",
            "ask it with the version that it was started with",
        ) from None


def exchange(name: str, question: Question, limit_s: float) -> bytes:
    """Send a question to the socket of this name; return the line that it answers. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(limit_s)
        end.connect(f"\0{name}")
        if os.geteuid() not in (0, read_user(end)):
            raise PermissionError(1, "it is another user's")
        end.sendall(msgspec.json.encode(question) + b"\n")
        with end.makefile("rb") as answer:
            return answer.readline(ANSWER_MAX)


def read_user(end: socket.socket) -> int:
    """Return the user id of the process at the other end. Raises OSError."""
    found = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1])


def _identify(name: str) -> LocalAgent | None:
    try:
        fields = msgspec.json.decode(exchange(name, Question(kind="run"), CONNECT_LIMIT_S), type=dict[str, object])
        return msgspec.convert({**fields, "name": name}, LocalAgent)
    except (OSError, msgspec.MsgspecError):  # it has just ended, or something else has this name
        return None


def _list_socket_names() -> Iterator[str]:
    """Yield the names of agents' sockets that this user may ask."""
    own = SOCKET_NAME.format(uid=os.geteuid(), pid="")
    first = SOCKET_NAME.partition("{")[0] if os.geteuid() == 0 else own
    names = set()
    try:
        with open("/proc/net/unix", errors="replace") as file:
            for line in file:
                name = line.split()[-1]
                if name.startswith(f"@{first}"):
                    names.add(name[1:])
    except OSError:
        return
    yield from sorted(names)  # a socket has a line for each of its connections, too
