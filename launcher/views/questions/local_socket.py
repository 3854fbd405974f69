"""How another process of this user asks an agent of this machine: names of the agents' sockets, and the questions.

A stream socket in the kernel's abstract namespace leaves no file behind, and its name shows whose it is:
`meshrun.<user id>.<pid>`, with a random number behind it where somebody else has taken that. Anybody may use a name
there, so each side checks the other's user id: the one who asks, whether it is the one in the name. A question is one
line of JSON (`Question`), its answer another: what the request says, or {"error": SENTENCE}. Root asks agents of other
users, who may answer anything.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from launcher.model.errors import TemporaryError, UsageError, sanitize
from launcher.views.questions.messages import Diagnose, Question, RefusedQuestion
from launcher.views.requests import REPLY_KINDS, Identify, NodeReply, NodeRequest, ReadRun, Replace
from launcher.views.run_events import parse_time
from launcher.views.run_view import RunView
from rendezvous import __version__, codec
from rendezvous.errors import RecordError
from rendezvous.records import name_run
from rendezvous.stores.listeners import limit_connections

_NAME = re.compile(r"meshrun\.(\d+)\.(\d+)(\.\d+)?")
IDENTIFY_LIMIT_S = 2.0
"""For all agents of this machine together."""
_AT_ONCE = 128
_IDENTITY_MAX = 1 << 16
_RETRY_MS = 20
"""Where an agent's queue of connections is full."""
INSPECT_LIMIT_S = 5.0
"""For all that are asked at once; an agent itself waits for its nodes for less."""
WHY_LIMIT_S = 15.0
LIMIT_MAX_S = 1e6
"""The kernel takes at most 2**31 milliseconds, and no limit that is not a number."""
ANSWER_MAX = 64 << 20
"""Bytes of an answer: a report on a thousand nodes with eight ranks each has about 5 MB."""
_RECEIVED_MAX = 1 << 18
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError)
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class LocalAgent(Struct, frozen=True, kw_only=True):
    """An agent of this machine."""

    name: str
    """The name of its socket in the abstract namespace."""
    run_id: str
    node: str
    version: str
    """Of meshrun; one of another is asked nothing further."""
    job: str = ""
    """The same for all agents of a job, different for each job of one run id; "" before the agent has joined one."""
    script: str = ""
    started: str = ""
    """When it started, in RFC 3339."""

    @property
    def started_at(self) -> float:
        """In seconds since 1970; 0 for unknown."""
        return parse_time(self.started)

    @property
    def uid(self) -> int:
        return read_name(self.name)[0]

    @property
    def pid(self) -> str:
        return read_name(self.name)[1]


# docs/internals/decisions/0050-views-ask-an-agent-by-its-socket.md
class RunGoneError(TemporaryError):
    """No agent of the run is on this machine any more."""


class SilentNodeError(TemporaryError):
    """An agent answers that the node which it was to ask has not."""


Answer = TypeVar("Answer")
Exchange = Callable[[Question, float], bytes]
"""Sends a question and returns the line of its answer, or raises OSError, in a limit."""


def list_local_agents() -> list[LocalAgent]:
    """List the agents of this user (of all users, for root) that answer here."""
    return find_local_agents()[0]


def find_local_agents() -> tuple[list[LocalAgent], list[str]]:
    """Find the agents of this user (of all users, for root) here: those that answer, and pids of those that do not."""
    names = list_socket_names()
    answers, _ = _ask_all(names, Question(request=Identify()), IDENTIFY_LIMIT_S, _IDENTITY_MAX)
    left = set(list_socket_names())  # not those that have begun or ended meanwhile
    agents = [agent for name, line in answers.items() if line and (agent := _read_identity(name, line)) is not None]
    known = {agent.name for agent in agents}
    return agents, [read_name(name)[1] for name in answers if name in left and name not in known]


class QuestionSource:
    """Where a view of a run gets what it shows. It answers within a limit, or raises TemporaryError with a sentence.

    This one is for an agent's own threads; those of meshctl are in launcher/meshctl/live.
    """

    is_live = True
    """Whether agents are asked; otherwise it is what they have left."""
    switch_count = 0
    """How often another agent was chosen to be asked: numbers of events are an agent's own."""
    is_through_store = False
    """Whether each question is written to the store, and each answer told to all members."""

    def __init__(self, exchange: Exchange, run_id: str) -> None:
        self._exchange = exchange
        self.run_id = run_id

    def read_run(self) -> RunView:
        """Return what all nodes of the run say of themselves."""
        return self._ask(Question(request=ReadRun()), RunView)

    def read_node(self, node: str, request: NodeRequest) -> NodeReply:
        """Return what one node, by name or member id, answers to a request; "" is the agent's own."""
        return self._ask(Question(node=node, request=request), REPLY_KINDS[type(request)])

    def ask_why(self, limit_s: float = WHY_LIMIT_S) -> bytes:
        """Return the encoded Conclusion of launcher.diagnosis: which rank the run waits for, with all stacks."""
        return msgspec.json.encode(self._ask(Question(request=Diagnose()), dict[str, Any], limit_s))

    def _ask(self, question: Question, kind: type[Answer], limit_s: float = INSPECT_LIMIT_S) -> Answer:
        line = self._ask_line(question, limit_s)
        try:
            return codec.find_decoder(kind).decode(line)
        except _UNREADABLE as error:
            agent = f"the agent of {name_run(self.run_id)}"
            raise TemporaryError(f"{agent} returned an answer that cannot be read: {sanitize(str(error))}") from None

    def _ask_line(self, question: Question, limit_s: float) -> bytes:
        """Return the answer as it came. Raises TemporaryError with the agent's own sentence, or what is wrong."""
        try:
            line = self._exchange(question, limit_s)
        except OSError as error:
            why = (
                "has not answered in time" if isinstance(error, TimeoutError) else f"cannot be asked: {error.strerror}"
            )
            raise TemporaryError(f"the agent of {name_run(self.run_id)} on this machine {why}") from None
        if not line.endswith(b"\n"):
            raise TemporaryError(f"the agent of {name_run(self.run_id)} on this machine has ended while it was asked")
        if line.startswith(b'{"error":'):
            try:
                refusal = codec.find_decoder(RefusedQuestion).decode(line)
            except _UNREADABLE:
                refusal = RefusedQuestion(error="its agent returned an error that cannot be read")
            kind = SilentNodeError if refusal.is_silent else TemporaryError
            raise kind(f"{name_run(self.run_id)}: {sanitize(refusal.error)}")
        return line


def ask_runs(agents: Sequence[LocalAgent], limit_s: float) -> list[QuestionSource]:
    """Ask these agents for their runs, all at once; return for each a source that has its answer, or waited in vain."""
    names = [agent.name for agent in agents if agent.version == __version__]
    answers, late = _ask_all(names, Question(request=ReadRun()), limit_s, ANSWER_MAX // max(1, len(names)))

    def give(agent: LocalAgent, _question: Question, _limit_s: float) -> bytes:
        require_version(agent)
        if agent.name in late:
            raise TimeoutError
        return answers.get(agent.name, b"")

    return [QuestionSource(partial(give, agent), agent.run_id) for agent in agents]


def require_version(agent: LocalAgent) -> None:
    """Raise UsageError for an agent of another version, which is asked nothing further."""
    if agent.version != __version__:
        raise UsageError(
            f"the agent of {name_run(agent.run_id)} has meshrun {agent.version} on node {agent.node}, this is meshrun "
            f"{__version__}",
            f"use meshctl of meshrun {agent.version}",
        )


def exchange(name: str, question: Question, limit_s: float) -> bytes:
    """Send a question to the socket of this name; return the line that it answers within the limit. Raises OSError."""
    answers, late = _ask_all([name], question, min(LIMIT_MAX_S, limit_s), ANSWER_MAX)
    if name not in answers:
        raise PermissionError(1, "the socket is another user's")
    if name in late:  # root asks other users' processes too, and each byte may take its time
        raise TimeoutError
    return answers[name]


def ask_to_leave(pid: int, run_id: str, attempt: int) -> None:
    """Ask an agent of this user to leave, since a later attempt of its run replaces its own; one that is stopped, too.

    One that has no socket runs nothing yet, or was refused one: it gets SIGTERM. Ask again where it stays.
    """
    names = [name for name in list_socket_names() if read_name(name) == (os.geteuid(), str(pid))]
    with suppress(OSError):
        if not names:
            os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
    _ask_all(names, Question(request=Replace(run_id=run_id, attempt=attempt)), IDENTIFY_LIMIT_S, _IDENTITY_MAX)


def read_user(end: socket.socket) -> int:
    """Return the user id of the process at the other end. Raises OSError."""
    found = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(found)[1])


def read_name(name: str) -> tuple[int, str]:
    """Return the user id and the pid in the name of an agent's socket."""
    found = _NAME.fullmatch(name)
    assert found is not None, name
    return int(found[1]), found[2]


def _ask_all(
    names: Sequence[str], question: Question, limit_s: float, bytes_max: int
) -> tuple[dict[str, bytes], set[str]]:
    """Ask all agents with these names, at once; return each one's line, and who has not answered within the limit.

    A name is left out if its socket is of another user than the one in it: no agent has it. A line without an end is
    that of an agent that has ended, or has said more than `bytes_max`.
    """
    deadline, text = time.monotonic() + limit_s, msgspec.json.encode(question) + b"\n"
    answers, most = {name: bytearray() for name in names}, limit_connections(_AT_ONCE)
    waiting, ends, poll = deque(names), dict[int, tuple[str, socket.socket]](), select.poll()
    with ExitStack() as stack:
        while (waiting or ends) and (left_s := deadline - time.monotonic()) > 0:
            for _ in range(min(len(waiting), most - len(ends))):
                name = waiting.popleft()
                end = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                try:
                    end.connect(f"\0{name}")
                    if read_user(end) == read_name(name)[0]:
                        end.sendall(text)
                        ends[end.fileno()] = (name, end)
                        poll.register(end, select.POLLIN)
                        continue
                    del answers[name]
                except BlockingIOError:
                    waiting.append(name)
                except OSError:  # it has just ended
                    pass
                end.close()
            if not (waiting or ends):
                break  # nobody was asked: poll() would wait for nothing
            for descriptor, _ in poll.poll(min(left_s * 1000, _RETRY_MS) if waiting else left_s * 1000):
                name, end = ends[descriptor]
                try:
                    part = end.recv(_RECEIVED_MAX)
                except OSError:
                    part = b""
                answers[name] += part
                if not part or part.endswith(b"\n") or len(answers[name]) > bytes_max:
                    poll.unregister(descriptor)
                    del ends[descriptor]
                    end.close()
        late = {*waiting, *(name for name, _ in ends.values())}
    return {name: bytes(answer) for name, answer in answers.items()}, late


def _read_identity(name: str, line: bytes) -> LocalAgent | None:
    """Read what an agent says of itself; None if that makes no sense."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, str])
        found = {key: sanitize(text) for key, text in {**fields, "name": name}.items()}
        return codec.convert(LocalAgent, found, "an agent's answer")
    except (*_UNREADABLE, RecordError):
        return None


def list_socket_names() -> list[str]:
    """Return the names of agents' sockets that this user may ask, its own first."""
    own = os.geteuid()
    names = set()
    try:
        with open("/proc/net/unix", errors="replace") as file:
            for line in file:  # a socket has a line for each of its connections, too
                name = line.split()[-1]
                if name.startswith("@meshrun.") and (found := _NAME.fullmatch(name, 1)) and own in (0, int(found[1])):
                    names.add(name[1:])
    except OSError:
        return []
    return sorted(names, key=lambda name: (read_name(name)[0] != own, name))
