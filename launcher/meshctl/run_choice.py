"""Which run a person means by a word: an id, else an agent's pid, a script, or how an id begins.

The same for the agents of this machine and for the runs of a store. Where several fit, the error shows by what they can
be told apart: scripts, times, and pids.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from launcher.meshctl.table import format_clock
from launcher.model.errors import UsageError
from launcher.model.text import format_list
from launcher.views.questions.local_socket import LocalAgent
from rendezvous.records import name_run

SHOWN_MAX = 4


class StoredRun(NamedTuple):
    """A run in a store."""

    run_id: str
    script: str = ""
    started_at: float = 0.0
    """In seconds since 1970; 0 for unknown."""
    has_ended: bool = False
    pid: str = ""
    """Of its agent on this machine, which is not known."""


KnownRun = LocalAgent | StoredRun
Known = TypeVar("Known", LocalAgent, StoredRun)
_WAYS: tuple[Callable[[KnownRun, str], bool], ...] = (
    lambda one, word: word == one.run_id,
    lambda one, word: word == one.pid,
    lambda one, word: word in (one.script, os.path.basename(one.script)),
    lambda one, word: one.run_id.startswith(word),
)


def find_meant(known: Iterable[Known], word: str, *, takes_beginning: bool = True) -> list[Known]:
    """Find what a word means, by the first way that fits any; nothing is meant by an empty one.

    `takes_beginning`: how an id begins is enough. What changes a run does without: whoever stops exp-4 twice does not
    want to stop exp-41.
    """
    runs = list(known) if word else []
    ways = _WAYS if takes_beginning else _WAYS[:-1]
    return next((found for fits in ways if (found := [one for one in runs if fits(one, word)])), [])


def make_choice_error(runs: Sequence[KnownRun], sentence: str, what: str, now: float) -> UsageError:
    """Return the error for several runs. `what`: what the user may add; `now`: in seconds since 1970."""
    shown = format_list(sorted(describe_run(one, now) for one in runs), SHOWN_MAX)
    return UsageError(sentence, f"add {what}: {shown}")


def describe_run(run: KnownRun, now: float) -> str:
    """Describe a run: exp-41 (train.py, started 08:05:00, pid 44)."""
    started = f"started {format_clock(run.started_at, now)}" if run.started_at else ""
    pid = f"pid {run.pid}" if run.pid else ""
    details = ", ".join(filter(None, (os.path.basename(run.script), started, pid)))
    return f"{run.run_id} ({details})" if details else run.run_id


def choose_agent(agents: Sequence[LocalAgent], word: str | None, *, takes_beginning: bool = True) -> LocalAgent | None:
    """Choose whom to ask on this machine; None if there is none. `word` None: the only job.

    For root, this user's own come first: what others call their runs is theirs. Raises UsageError if it may be several.
    """
    named = list(agents) if word is None else find_meant(agents, word, takes_beginning=takes_beginning)
    named = [agent for agent in named if agent.uid == os.geteuid()] or named
    jobs = group_by_job(named)
    if len(jobs) > 1:
        of_run, what = ("", "a run, a script or an agent's pid") if word is None else (" of that name", "a pid")
        sentence = f"{len(jobs)} jobs{of_run} run on this machine"
        raise make_choice_error([job[0] for job in jobs], sentence, what, time.time())
    return jobs[0][0] if jobs else None


def choose_stored(runs: Sequence[StoredRun], word: str, *, takes_beginning: bool = True) -> StoredRun | None:
    """Choose a run of a store, one that goes on before others; None if there is none.

    Raises UsageError if it may be several.
    """
    named = find_meant(runs, word, takes_beginning=takes_beginning)
    named = [run for run in named if not run.has_ended] or named
    if len(named) > 1:
        sentence = f"{len(named)} runs in the store fit {name_run(word)}"
        raise make_choice_error(named, sentence, "the whole id", time.time())
    return named[0] if named else None


def group_by_job(agents: Iterable[LocalAgent]) -> list[list[LocalAgent]]:
    """Group them by job. An agent that has joined none yet belongs to the first job of its run."""
    jobs: dict[tuple[str, str], list[LocalAgent]] = {}
    first: dict[str, list[LocalAgent]] = {}
    for agent in sorted(agents, key=lambda agent: not agent.job):
        key = (agent.run_id, agent.job)
        group = first[agent.run_id] if not agent.job and agent.run_id in first else jobs.setdefault(key, [])
        first.setdefault(agent.run_id, group)
        group.append(agent)
    return list(jobs.values())
