"""Finds what a command asks about a run: an agent on this machine, by its socket, else the leader, through the store.

All views take a RunSource and none cares where it is from; here is the one place that chooses.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

from launcher.meshctl.group import open_jobs
from launcher.meshctl.job_store import JobStore, knows_store, open_job_store
from launcher.meshctl.requests import hand_in, name_user
from launcher.model.errors import TemporaryError, UsageError, describe, sanitize
from launcher.model.text import format_list
from launcher.views.questions.local_socket import (
    LocalAgent,
    QuestionSource,
    choose_agent,
    exchange,
    find_local_agents,
    list_local_agents,
    list_socket_names,
    require_version,
)
from launcher.views.questions.messages import Question
from rendezvous import codec
from rendezvous.errors import StoreError
from rendezvous.records import Command, make_current_key, name_run

STORE_LIMIT_S = 5.0
"""For the way of a question and its answer through the store, on top of what an agent takes."""
LEASE_S = 60.0
"""So much longer may the lease of questions live: each of the next minute has the same."""


# docs/internals/decisions/0050-views-ask-an-agent-by-its-socket.md
class RunGoneError(TemporaryError):
    """No agent of the run is on this machine any more."""


class RunOverError(RunGoneError):
    """The run has ended, as the store says: to ask again is of no use."""

    exit_code = UsageError.exit_code


class NoAgentError(UsageError):
    """No agent of the run on this machine answers."""


class LocalSource(QuestionSource):
    """A RunSource that asks another agent of the same job, if there is one, when the one it asks does not answer."""

    def __init__(self, agent: LocalAgent) -> None:
        super().__init__(self._put, agent.run_id)
        self._asked = (agent, 0)  # in one value: other threads see both change at once

    @property
    def switch_count(self) -> int:
        """How often another agent was chosen."""
        return self._asked[1]

    def _put(self, question: Question, limit_s: float) -> bytes:
        agent = self._asked[0]
        require_version(agent)
        try:
            line, problem = exchange(agent.name, question, limit_s), None
        except OSError as error:
            line, problem = b"", error
        if line.endswith(b"\n"):
            return line
        if self._find_again() and self._asked[0].name != agent.name:
            return exchange(self._asked[0].name, question, limit_s)
        if problem is not None:
            raise problem
        return line

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


class StoreSource(QuestionSource):
    """A RunSource that asks the leader through the store: a question is a request to it, as `meshctl stop` is.

    It has a lease, so that what a killed command has asked, and its answer, do not stay: every member holds a copy.
    """

    def __init__(self, jobs: JobStore, run_id: str) -> None:
        super().__init__(self._put, run_id)
        self._jobs = jobs
        self._lease = (0, -math.inf)  # its id, and until when it lives

    def _put(self, question: Question, limit_s: float) -> bytes:
        """Return the answer as a line. Raises RunOverError for a run that is over, TemporaryError without an answer."""
        command = Command(kind="ask", target=codec.encode(question).decode(), by=name_user())
        try:
            lease = self._take_lease(limit_s + STORE_LIMIT_S)
            answered = hand_in(self._jobs, self.run_id, command, limit_s + STORE_LIMIT_S, lease=lease)
        except UsageError as error:
            raise RunOverError(str(error), error.hint) from None
        except StoreError as error:  # it may come back
            raise TemporaryError(str(error), error.hint) from None
        if answered is None:
            raise RunOverError(f"{name_run(self.run_id)} has just ended")
        if answered.refused is not None:
            raise TemporaryError(f"{name_run(self.run_id)}: {describe(answered.refused)}")
        return f"{answered.answer}\n".encode()

    def _take_lease(self, limit_s: float) -> int:
        lease, until = self._lease
        now = time.monotonic()
        if now + limit_s >= until:
            granted = self._jobs.store.lease_grant(limit_s + LEASE_S)
            lease, _ = self._lease = granted.id, now + granted.ttl_s
        return lease


@contextmanager
def open_source(store: Mapping[str, str], run_id: str | None) -> Iterator[QuestionSource]:
    """Find whom to ask: an agent on this machine, unless options name a store, else the leader, through the store.

    `run_id` may be the pid of an agent, or None if there is one run only. Raises NoAgentError, with where to ask
    instead, if no agent here answers and no store is known, and UsageError for several runs.
    """
    missing = UsageError("no agent was asked")
    if not store:
        try:
            source = LocalSource(find_agent(run_id))
        except NoAgentError as error:
            if not knows_store(store, os.environ):
                raise
            missing = error
        else:
            yield source
            return
    with open_jobs(store, run_id) as jobs:
        runs = [run_id] if run_id is not None else jobs.list_runs()
        if len(runs) != 1:
            there = f"the store has {format_list(runs, 4)}" if runs else "the store has no run"
            raise UsageError(f"{missing}, and {there}", "add the id of a run") from None
        jobs.find_run(runs[0])
        yield StoreSource(jobs, runs[0])


def find_agent(run_id: str | None) -> LocalAgent:
    """Find an agent of the run on this machine. Raises NoAgentError if there is none that answers, UsageError.

    A run that the store has by this very name is meant before one here whose script it is, or whose id begins so.
    """
    agents, silent = find_local_agents()
    is_exact = not agents or any(run_id in (None, agent.run_id, agent.pid) for agent in agents)
    if (is_exact or not _is_in_store(run_id)) and (agent := choose_agent(agents, run_id)) is not None:
        return agent
    if run_id in silent:
        hint = f"ask again, or see what it does by py-spy dump --pid {run_id}"
        raise NoAgentError(f"the agent with pid {run_id} does not respond", hint)
    unless = mention_silent(silent)
    hint = "run it on a node of the run, or set --rdzv-endpoint to the store"
    if run_id is None:
        raise NoAgentError(f"no run of this user has an agent on this machine{unless}", hint)
    sentence = f"no agent of {name_run(sanitize(run_id))} is on this machine{unless}"
    raise NoAgentError(sentence, f"{hint}; use meshctl status to list the runs")


def _is_in_store(run_id: str | None) -> bool:
    if run_id is None or not knows_store({}, os.environ):
        return False
    jobs = open_job_store({}, run_id, os.environ)
    with closing(jobs.store):
        return jobs.store.get(make_current_key(jobs.prefix, run_id)).first is not None


def mention_silent(pids: Sequence[str]) -> str:
    """Mention the agents of this machine that do not answer, "" for none."""
    shown = format_list(sorted(pids, key=lambda pid: (len(pid), pid)), 4)
    return f" (agents that do not respond: pid {shown})" if pids else ""
