"""Finds what a command asks about a run: an agent on this machine, by its socket, or the leader, through the store; and
what is left of a run that has ended.

All views take a QuestionSource and none cares where it is from; here is the one place that chooses.
"""

from __future__ import annotations

import getpass
import math
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import NamedTuple

from launcher.config.options.table import BY_NAME
from launcher.meshctl.group import open_jobs
from launcher.meshctl.job_store import JobStore, NoRunError, knows_store, open_job_store
from launcher.meshctl.live.ended_run import (
    EndedSource,
    find_run_dir,
    has_events,
    make_stored_source,
    open_run_dir,
    read_folders,
)
from launcher.meshctl.run_choice import choose_agent
from launcher.model.console import write_stderr
from launcher.model.errors import TemporaryError, UsageError, describe, sanitize
from launcher.model.text import format_list
from launcher.views.questions.local_socket import (
    ANSWER_MAX,
    LocalAgent,
    QuestionSource,
    RunGoneError,
    exchange,
    find_local_agents,
    list_local_agents,
    list_socket_names,
    require_version,
)
from launcher.views.questions.messages import Question, Submit, unpack
from launcher.views.questions.stored_request import hand_in
from launcher.views.run_view import RunView
from launcher.views.sentences import describe_gone
from rendezvous import codec
from rendezvous.errors import StoreError
from rendezvous.records import Command, make_current_key, name_run

STORE_LIMIT_S = 5.0
"""For the way of a question and its answer through the store, on top of what an agent takes."""
LEASE_S = 60.0
"""So much longer may the lease of questions live: each of the next minute has the same."""


class RunOverError(RunGoneError):
    """The run has ended, as the store says: to ask again is of no use."""

    exit_code = UsageError.exit_code


class NoAgentError(UsageError):
    """No agent of the run on this machine answers."""


class LocalSource(QuestionSource):
    """A source that asks another agent of the same job, if there is one, when the one it asks does not answer.

    Once all of this machine have ended, it goes on with what they have left in their log directories, and with those of
    other nodes, where they are seen here and the job has ended as a whole.
    """

    def __init__(self, agent: LocalAgent) -> None:
        super().__init__(self._put, agent.run_id)
        self.node = agent.node
        """Of the agent that was asked first."""
        self._agent = agent
        self._ended: EndedSource | None = None
        self._named: set[tuple[str, str]] = set()
        self._reading = threading.Lock()  # each of the poller's threads may be the first to find that all have ended
        self._folders: dict[str, str] = {}  # log directories of all nodes, by member id
        self._here: set[str] = set()  # member ids of the nodes of this machine

    def read_run(self) -> RunView:
        run = super().read_run()
        nodes = {(node.name, str(node.agent_pid)): node for node in run.nodes if node.log_dir}
        if self.is_live and not nodes.keys() <= self._named:  # agents are asked only if there are others than before
            self._named |= nodes.keys()
            here = [(agent.node, agent.pid) for agent in list_local_agents() if agent.run_id == run.run_id]
            self._here |= {nodes[one].member_id for one in here if one in nodes}
            self._folders = self._folders | {node.member_id: node.log_dir for node in nodes.values()}  # others read it
        return run

    def hand_in(self, command: Command, limit_s: float) -> Command | None:
        """Have the agent hand it in; as by `stored_request.hand_in`, one that no leader answers in time stays."""
        question = Question(request=Submit(command=command, limit_s=limit_s))
        answered = self._ask(question, Command, limit_s + STORE_LIMIT_S)
        return answered if answered.is_answered else None

    def _put(self, question: Question, limit_s: float) -> bytes:
        if self._ended is None:
            try:
                return self._ask_agent(question, limit_s)
            except RunGoneError:
                if isinstance(question.request, Submit):
                    raise
                with self._reading:
                    if self._ended is None:
                        self._ended = self._read_folders()
                        if self._ended is None:
                            raise
                        self.is_live = False
                        self.switch_count += 1
        return self._ended.answer(question)

    def _read_folders(self) -> EndedSource | None:
        """Read what is left on this machine; of the other nodes, too, if the job has ended as a whole."""
        folders = self._folders
        here = {one: folder for one, folder in folders.items() if one in self._here and has_events(folder)}
        if not here:
            return None
        ended = read_folders(here)
        if ended.read_run().verdict is None:  # it may go on elsewhere
            return ended
        seen = {one: folder for one, folder in folders.items() if one in here or has_events(folder)}
        return read_folders(seen) if len(seen) > len(here) else ended

    def _ask_agent(self, question: Question, limit_s: float) -> bytes:
        agent = self._agent
        require_version(agent)
        try:
            line, problem = exchange(agent.name, question, limit_s), None
        except OSError as error:
            line, problem = b"", error
        if line.endswith(b"\n"):
            return line
        if self._find_again() and self._agent.name != agent.name:
            if isinstance(question.request, Submit):  # it may have been handed in, and is not to be so twice
                raise RunGoneError(f"the agent of {name_run(agent.run_id)} has not answered", "see meshctl status")
            return exchange(self._agent.name, question, limit_s)
        if problem is not None:
            raise problem
        return line

    def _find_again(self) -> bool:
        """Whether an agent of the job answers here: the one that is asked, or another, which is asked from now on.

        Raises RunGoneError if all of them have ended.
        """
        known = self._agent
        for _ in range(2):
            found, silent = find_local_agents()
            agents = {agent.name: agent for agent in found if agent.run_id == known.run_id}
            if known.name in agents:
                self._agent = agents[known.name]  # it may have joined its job since
                return True
            others = [agent for agent in agents.values() if known.job in ("", agent.job)]
            if others:
                self._agent = others[0]
                self.switch_count += 1  # after it: another thread that sees this asks no earlier agent
                return True
            if not silent:  # one that is busy may be another of the job
                break
        if known.name in list_socket_names():  # it is frozen, or very busy
            return False
        raise RunGoneError(describe_gone(known.run_id))


class StoreSource(QuestionSource):
    """A source that asks the leader through the store: a question is a request to it, as `meshctl stop` is.

    It has a lease, so that what a killed command has asked, and its answer, do not stay: every member holds a copy.
    """

    is_through_store = True

    def __init__(self, jobs: JobStore, run_id: str) -> None:
        super().__init__(self._put, run_id)
        self._jobs = jobs
        self._lease = (0, -math.inf)  # its id, and until when it lives

    def _put(self, question: Question, limit_s: float) -> bytes:
        """Return the answer as a line. Raises RunOverError for a run that is over, TemporaryError without an answer."""
        command = Command(kind="ask", target=codec.encode(question).decode(), by=name_user())
        try:
            lease = self._take_lease(limit_s + STORE_LIMIT_S)
            answered = hand_in(self._jobs.locate(self.run_id), command, limit_s + STORE_LIMIT_S, lease=lease)
        except UsageError as error:
            raise RunOverError(str(error), error.hint) from None
        except StoreError as error:  # it may come back
            raise TemporaryError(str(error), error.hint) from None
        if answered is None:
            raise RunOverError(f"{name_run(self.run_id)} has just ended")
        if answered.refused is not None:
            raise TemporaryError(f"{name_run(self.run_id)}: {describe(answered.refused)}")
        try:
            return unpack(answered.answer, ANSWER_MAX) + b"\n"
        except ValueError as error:
            problem = f"the leader of {name_run(self.run_id)} returned an answer that cannot be read"
            raise TemporaryError(f"{problem}: {sanitize(str(error))}") from None

    def _take_lease(self, limit_s: float) -> int:
        lease, until = self._lease
        now = time.monotonic()
        if now + limit_s >= until:
            granted = self._jobs.store.lease_grant(limit_s + LEASE_S)
            lease, _ = self._lease = granted.id, now + granted.ttl_s
        return lease


class StoreControl(NamedTuple):
    """A run to which a request is handed through the store; one of this machine takes it by `LocalSource`."""

    jobs: JobStore
    run_id: str
    node: str = ""

    def read_run(self) -> RunView:
        return self.jobs.read_run(self.run_id)

    def hand_in(self, command: Command, limit_s: float) -> Command | None:
        return hand_in(self.jobs.locate(self.run_id), command, limit_s, is_left=True)


def name_user() -> str:
    """Return who asks, for people."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"


@contextmanager
def open_control(store: Mapping[str, str], run_id: str) -> Iterator[LocalSource | StoreControl]:
    """Find who takes a request to a run: an agent on this machine, unless options name a store, else the store.

    Raises NoAgentError if there is no agent and no store is known, and UsageError.
    """
    if not store:
        try:
            yield LocalSource(find_agent(run_id, takes_beginning=False))
            return
        except NoAgentError:
            if not knows_store(store, os.environ):
                raise
    with open_jobs(store, run_id) as jobs:
        yield StoreControl(jobs, jobs.choose_run(run_id, takes_beginning=False))


@contextmanager
def open_source(
    store: Mapping[str, str], run_id: str | None, log_dir: str | None = None, *, reads_records: bool = False
) -> Iterator[QuestionSource]:
    """Find what can be asked about a run, or what is left of it.

    An agent on this machine, unless options name a store; the leader, through the store; the files in `log_dir`, or in
    the directory that the variable names; the records in the store, also of a run that goes on with `reads_records`.

    `run_id` may be the pid of an agent, or None if there is one run only. Raises NoAgentError, with where to ask
    instead, if no agent here answers and nothing else is known, and UsageError for several runs.
    """
    with ExitStack() as stack:
        try:
            if run_id is None and log_dir:
                if (ended := _open_files(None, log_dir)) is None:
                    raise NoAgentError("no agent was asked")
                run_id = ended.run_id
            source = _find_source(store, run_id, log_dir, stack, reads_records=reads_records)
        except (NoAgentError, NoRunError, TemporaryError, StoreError) as error:
            left = _open_files(run_id, log_dir)
            if left is None and log_dir and isinstance(error, UsageError):
                what = "a run" if run_id is None else sanitize(name_run(run_id))
                hint = "set it as it was set for meshrun, on a node of the run"
                raise UsageError(f"--log-dir {sanitize(log_dir)} has no events of {what}", hint) from None
            if left is None:
                raise
            source = left
        if isinstance(source, EndedSource) and source.origin:
            write_stderr(f"meshctl: no agent of {name_run(source.run_id)} was asked: this is from {source.origin}")
        yield source


def _find_source(
    store: Mapping[str, str], run_id: str | None, log_dir: str | None, stack: ExitStack, *, reads_records: bool
) -> QuestionSource:
    missing = UsageError("no agent was asked")
    if not store:
        try:
            return LocalSource(find_agent(run_id))
        except NoAgentError as error:
            if not knows_store(store, os.environ):
                raise
            missing = error
    jobs = stack.enter_context(open_jobs(store, run_id))
    runs = [jobs.choose_run(run_id)] if run_id is not None else jobs.list_runs()
    if len(runs) != 1:
        there = f"the store has {format_list(runs, 4)}" if runs else "the store has no run"
        raise UsageError(f"{missing}, and {there}", "add the id of a run") from None
    run = jobs.read_run(runs[0])
    if run.verdict is not None and (left := _open_files(runs[0], log_dir)) is not None:
        return left
    if run.verdict is None and not reads_records:
        return StoreSource(jobs, runs[0])
    return make_stored_source(run, "" if reads_records else "the records in the store")


def _open_files(run_id: str | None, log_dir: str | None) -> EndedSource | None:
    """Read what is left of a run in its log directory; None if there is nothing."""
    option = BY_NAME["log-dir"]
    directory = log_dir or next(filter(None, map(os.environ.get, option.variables)), "")
    if not directory or not (found := find_run_dir(directory, run_id)):
        return None
    return open_run_dir(found)


def find_agent(run_id: str | None, *, takes_beginning: bool = True) -> LocalAgent:
    """Find an agent of the run on this machine. Raises NoAgentError if there is none that answers, UsageError.

    A run that the store has by this very name is meant before one here whose script it is, or whose id begins so.
    `takes_beginning`: as in `run_choice`.
    """
    agents, silent = find_local_agents()
    is_exact = not agents or any(run_id in (None, agent.run_id, agent.pid) for agent in agents)
    if (is_exact or not _is_in_store(run_id)) and (
        agent := choose_agent(agents, run_id, takes_beginning=takes_beginning)
    ) is not None:
        return agent
    if run_id in silent:
        hint = f"ask again, or see what it does by py-spy dump --pid {run_id}"
        raise NoAgentError(f"the agent with pid {run_id} does not respond", hint)
    shown = format_list(sorted(silent, key=lambda pid: (len(pid), pid)), 4)
    unless = f" (agents that do not respond: pid {shown})" if silent else ""
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
