"""`meshctl status` without a run: the runs that have an agent on this machine, and those in the store, newest first."""

from __future__ import annotations

import os
import pwd
import textwrap
import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from msgspec import Struct

from launcher.meshctl.job_store import JobStore
from launcher.meshctl.run_choice import group_by_job
from launcher.meshctl.table import GAP, Column, format_clock, format_table
from launcher.model.console import escape
from launcher.model.errors import TemporaryError, UsageError
from launcher.model.text import format_list
from launcher.views.questions.local_socket import INSPECT_LIMIT_S, LocalAgent, ask_runs
from launcher.views.run_json import encode
from launcher.views.run_view import RunView
from launcher.views.sentences import format_headline
from rendezvous.errors import MeshrunError
from rendezvous.records import UNNAMED_RUN

LIST_SCHEMA = 1
_NOW_MIN, _NOW_MAX = 20, 200  # letters of what a run does now


class ListedRun(Struct):
    """A run, of which nothing may be known but its name."""

    run_id: str
    agents: Sequence[LocalAgent] = ()
    """On this machine."""
    run: RunView | None = None
    problem: str = ""
    """Why there is no more, "" if there is."""
    is_in_store: bool = False

    @property
    def now(self) -> str:
        """What it does, in a sentence."""
        return format_headline(self.run) if self.run is not None else self.problem

    @property
    def script(self) -> str:
        return next((agent.script for agent in self.agents), self.run.script if self.run is not None else "")

    @property
    def started_at(self) -> float:
        """When its first round began, as far as its rounds are known, in seconds since 1970; 0 for unknown."""
        return self.run.rounds[0].began_at if self.run is not None and self.run.rounds else 0.0

    @property
    def ended_at(self) -> float:
        return self.run.verdict.ended_at if self.run is not None and self.run.verdict is not None else 0.0

    def encode(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        run = self.run or RunView(run_id=self.run_id)
        found = {name: getattr(self, name) for name in ("script", "now", "is_in_store", "started_at", "ended_at")}
        found |= {name: getattr(run, name) for name in ("run_id", "round", "world_size")}
        found |= {"phase": run.phase if self.run is not None else "", "user": _name_user(self)}
        here = {"nodes": sorted({one.node for one in self.agents}), "pids": sorted(int(one.pid) for one in self.agents)}
        return {name: encode(value, name) for name, value in (found | here).items()}


def list_runs(agents: Iterable[LocalAgent], jobs: JobStore | None) -> list[ListedRun]:
    """List the runs of these agents and in the store, if one is known, the newest first. Raises StoreError."""
    found = [ListedRun(run_id=job[0].run_id, agents=job) for job in group_by_job(agents)]
    _ask(found)
    for run_id in jobs.list_runs() if jobs is not None else ():
        assert jobs is not None
        here = [one for one in found if one.run_id == run_id]
        if not here:
            here = [ListedRun(run_id=run_id)]
            found += here
        for one in here:
            one.is_in_store = True
            if one.run is None:  # a job of one machine may have the name of an old one in the store
                try:
                    one.run = jobs.read_run(run_id)
                except MeshrunError as error:  # removed since, or foreign
                    one.problem = one.problem or str(error)
    return sorted(found, key=lambda one: (-one.started_at, one.run_id, [agent.pid for agent in one.agents]))


def describe_runs(runs: Sequence[ListedRun], *, has_store: bool, width: int = 0) -> str:
    """Describe them as a table, `width` letters wide (0: no limit). `has_store`: whether a store was asked too."""
    if not runs:
        more = ", and none is in the store" if has_store else "\nhint: set --rdzv-endpoint to list the runs in a store"
        return f"no run of this user has an agent on this machine{more}"
    at = time.time()

    def format_time(when: float) -> str:
        return format_clock(when, at) if when else "-"

    columns = [
        # The word by which one asks for it stays.
        Column("run", tuple(f"{run.run_id} (no id)" if run.run_id == UNNAMED_RUN else run.run_id for run in runs)),
        Column("script", tuple(os.path.basename(run.script) or "-" for run in runs), 1, most=24),
        Column("user", tuple(map(_name_user, runs)), 4),
        Column("started", tuple(format_time(run.started_at) for run in runs), 2),
        Column("ended", tuple(format_time(run.ended_at) for run in runs), 3),
        Column("here", tuple(format_list([f"pid {agent.pid}" for agent in run.agents], 2) or "-" for run in runs)),
    ]
    lines = format_table(columns, max(0, width - _NOW_MIN - len(GAP))).splitlines()
    start = max(map(len, lines)) + len(GAP)
    room = width - start if width - start >= _NOW_MIN else _NOW_MAX
    cells = [textwrap.wrap(escape(now)[:_NOW_MAX], room) or [""] for now in ("now", *(run.now for run in runs))]
    rows = [row for line, parts in zip(lines, cells, strict=True) for row in zip_longest([line], parts, fillvalue="")]
    return "\n".join(f"{line:<{start}}{now}" for line, now in rows)


def _name_user(run: ListedRun) -> str:
    """Name the user whose agents are here, "-" for none."""
    try:
        return pwd.getpwuid(run.agents[0].uid).pw_name if run.agents else "-"
    except KeyError:
        return str(run.agents[0].uid)


def _ask(runs: Sequence[ListedRun]) -> None:
    """Ask an agent of each run, all at once, then another one of each run that has not answered; within one limit."""
    deadline = time.monotonic() + INSPECT_LIMIT_S
    left, turn = list(runs), 0
    while left and (left_s := deadline - time.monotonic()) > 0:
        for one, source in zip(left, ask_runs([one.agents[turn] for one in left], left_s), strict=True):
            try:
                one.run = source.read_run()
            except (TemporaryError, UsageError) as problem:  # noqa: PERF203 - or it is of another version
                one.problem = str(problem)
        turn += 1
        left = [one for one in left if one.run is None and len(one.agents) > turn]
