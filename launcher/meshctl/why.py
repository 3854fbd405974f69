"""`meshctl why` and `meshctl stacks`: ask a running job which rank it waits for. Nothing of the job is stopped.

An agent of this user on this machine answers by its socket, which needs no options; otherwise the request goes to the
leader through the store, like any other. Either way the leader has all agents of the round look at their workers.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from launcher.agent.diagnosis.messages import Conclusion
from launcher.agent.diagnosis.question_socket import NAME, Question, read_user
from launcher.diagnose.answer import render_answer
from launcher.meshctl.job_store import JobStore
from launcher.meshctl.requests import POLL_INTERVAL_S, write_request
from launcher.model.errors import TemporaryError, UsageError
from launcher.model.text import format_list
from rendezvous.errors import RecordError
from rendezvous.records import Command, decode
from rendezvous.stores.contract import Compare, Delete

CONNECT_LIMIT_S = 2.0
_LINE_MAX = 1 << 20


class LocalAgent(Struct, frozen=True, kw_only=True):
    """An agent of this machine that runs workers. `name`: its socket's, in the abstract namespace."""

    name: str
    run_id: str
    node: str

    @property
    def pid(self) -> str:
        return self.name.rpartition(".")[2]


def list_local_agents() -> list[LocalAgent]:
    """List the agents of this user (of all users, for root) that answer here."""
    agents = (_identify(name) for name in _list_socket_names())
    return [agent for agent in agents if agent is not None]


def _identify(name: str) -> LocalAgent | None:
    try:
        return msgspec.convert({"name": name, **_ask(name, "run", CONNECT_LIMIT_S)}, LocalAgent)
    except (OSError, msgspec.MsgspecError, TypeError):  # it has just ended, or something else has this name
        return None


def choose_agent(agents: list[LocalAgent], run_id: str | None) -> LocalAgent | None:
    """Choose whom to ask, by a run or an agent's pid; None if there is none. Raises UsageError if it may be several."""
    runs = {agent.run_id: f"{agent.run_id} (pid {agent.pid})" for agent in agents}
    if run_id is None and len(runs) > 1:
        there = format_list(sorted(runs.values()), 4)
        raise UsageError(f"{len(runs)} jobs run on this machine: name a run, or its agent's pid", f"there: {there}")
    return next((agent for agent in agents if run_id in (None, agent.run_id, agent.pid)), None)


def ask_agent(agent: LocalAgent, limit_s: float) -> Conclusion:
    """Ask an agent of this machine. Raises TemporaryError if there is no answer."""
    try:
        return _read_answer(msgspec.json.encode(_ask(agent.name, "why", limit_s)), agent.run_id)
    except OSError as error:
        why = "has not answered in time" if isinstance(error, TimeoutError) else f"cannot be asked: {error.strerror}"
        raise TemporaryError(f"the agent of run {agent.run_id} on this machine {why}") from None


def ask_leader(jobs: JobStore, run_id: str, by: str, limit_s: float) -> Conclusion:
    """Ask the leader, through the store. Raises UsageError for a run that is over, TemporaryError without an answer."""
    command = Command(kind="why", by=by)
    current = jobs.find_run(run_id)
    keys = jobs.make_keys(run_id, current)
    key = keys.make_command_key(secrets.token_hex(8))
    write_request(jobs, run_id, command, current, keys, key)
    deadline = time.monotonic() + limit_s
    while (item := jobs.store.get(key).first) is not None:
        try:
            text = decode(Command, item.value, item.key, jobs.secret).answer
        except RecordError as error:
            raise UsageError(f"run {run_id}: {error}") from None
        if text:
            jobs.store.txn((Compare(key, "mod", "=", item.mod_revision),), (Delete(key),))
            return _read_answer(text.encode(), run_id)
        if time.monotonic() >= deadline:
            jobs.store.txn((Compare(key, "mod", "=", item.mod_revision),), (Delete(key),))
            raise TemporaryError(
                f"run {run_id} has not answered for {limit_s:g} s", "see meshctl status: does one lead?"
            )
        time.sleep(POLL_INTERVAL_S)
    raise TemporaryError(f"run {run_id} has just ended", "its verdict: meshctl status")


def render(conclusion: Conclusion, *, stacks: bool) -> str:
    """Render an answer for a terminal."""
    return conclusion.stacks if stacks and conclusion.stacks else render_answer(conclusion.answer)


def _read_answer(text: bytes, run_id: str) -> Conclusion:
    if text == b"{}":
        raise TemporaryError(f"the leader of run {run_id} has not answered in time", "ask again")
    try:
        return msgspec.json.decode(text, type=Conclusion)
    except msgspec.MsgspecError:  # a sentence: an agent of an earlier version, or no leader that knows the request
        raise UsageError(f"run {run_id}: {text.decode(errors='replace')[:200]}") from None


def _list_socket_names() -> Iterator[str]:
    """Yield the names of agents' sockets that this user may ask."""
    own = NAME.format(uid=os.geteuid(), pid="")
    first = NAME.partition("{")[0] if os.geteuid() == 0 else own
    try:
        with open("/proc/net/unix") as file:
            for line in file:
                name = line.split()[-1]
                if name.startswith(f"@{first}"):
                    yield name[1:]
    except OSError:
        return


def _ask(name: str, kind: str, limit_s: float) -> dict[str, object]:
    """Ask one question; return the answer. Raises OSError and msgspec's errors."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.settimeout(limit_s)
        end.connect(f"\0{name}")
        if os.geteuid() not in (0, read_user(end)):
            raise PermissionError
        end.sendall(msgspec.json.encode(Question(kind=kind)) + b"\n")
        with end.makefile("rb") as answer:
            return dict(msgspec.json.decode(answer.readline(_LINE_MAX)))
