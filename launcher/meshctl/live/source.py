"""Finds what a command reads a run from: an agent of the run on this machine, by its socket.

All views take a RunSource and none cares where it is from; here is the one place that chooses.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.model.errors import TemporaryError, UsageError, sanitize
from launcher.model.text import format_list
from launcher.views.questions.local_socket import (
    LocalAgent,
    SocketSource,
    choose_agent,
    find_local_agents,
    list_local_agents,
    list_socket_names,
)
from launcher.views.requests import NodeReply, NodeRequest
from launcher.views.run_view import RunView
from rendezvous.records import name_run


# docs/internals/decisions/0050-views-ask-an-agent-by-its-socket.md
class RunGoneError(TemporaryError):
    """No agent of the run is on this machine any more."""


class NoAgentError(UsageError):
    """No agent of the run on this machine answers."""


class LocalSource:
    """A RunSource that asks another agent of the same job, if there is one, when the one it asks does not answer."""

    def __init__(self, agent: LocalAgent) -> None:
        self._asked = (agent, 0)  # in one value: other threads see both change at once

    @property
    def _agent(self) -> LocalAgent:
        return self._asked[0]

    @property
    def switch_count(self) -> int:
        """How often another agent was chosen."""
        return self._asked[1]

    @property
    def run_id(self) -> str:
        return self._agent.run_id

    def read_run(self) -> RunView:
        try:
            return SocketSource(self._agent).read_run()
        except TemporaryError:
            if not self._find_again():
                raise
            return SocketSource(self._agent).read_run()

    def read_node(self, node: str, request: NodeRequest) -> NodeReply:
        asked = self._agent
        try:
            return SocketSource(asked).read_node(node, request)
        except TemporaryError:
            if not self._find_again() or self._agent.name == asked.name:
                raise
            return SocketSource(self._agent).read_node(node, request)

    def ask_why(self) -> bytes:
        return SocketSource(self._agent).ask_why()

    def _find_again(self) -> bool:
        """Whether an agent of the job answers here: the one that is asked, or another, which is asked from now on.

        Raises RunGoneError if all of them have ended.
        """
        known, switch_count = self._asked
        agents = {agent.name: agent for agent in list_local_agents() if agent.run_id == known.run_id}
        if known.name in agents:
            self._asked = (agents[known.name], switch_count)  # it may have joined its job since
            return True
        others = [agent for agent in agents.values() if known.job in ("", agent.job)]
        if others:
            self._asked = (others[0], switch_count + 1)
            return True
        if known.name in list_socket_names():  # it is frozen, or very busy
            return False
        raise RunGoneError(f"the agent of {name_run(known.run_id)} on this machine has ended")


def find_source(run_id: str | None) -> LocalSource:
    """Find an agent of the run on this machine; `run_id` may be its pid, or None if there is one run only.

    Raises NoAgentError, with where to ask instead, if there is none that answers, and UsageError for several runs.
    """
    agents, silent = find_local_agents()
    agent = choose_agent(agents, run_id)
    if agent is not None:
        return LocalSource(agent)
    if run_id in silent:
        hint = f"ask again, or see what it does by py-spy dump --pid {run_id}"
        raise NoAgentError(f"the agent with pid {run_id} does not respond", hint)
    unless = mention_silent(silent)
    if run_id is None:
        raise NoAgentError(f"no run of this user has an agent on this machine{unless}", "run it on a node of the run")
    sentence = f"no agent of {name_run(sanitize(run_id))} is on this machine{unless}"
    raise NoAgentError(sentence, "run it on a node of the run; use meshctl status to list the runs")


def mention_silent(pids: Sequence[str]) -> str:
    """Mention the agents of this machine that do not answer, "" for none."""
    shown = format_list(sorted(pids, key=lambda pid: (len(pid), pid)), 4)
    return f" (agents that do not respond: pid {shown})" if pids else ""
