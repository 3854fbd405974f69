"""`meshctl status` without a run: the runs that have an agent on this machine, and those in the store."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from msgspec import Struct

from launcher.meshctl.job_store import JobStore
from launcher.meshctl.table import GAP, Column, format_table
from launcher.model.console import escape
from launcher.model.errors import TemporaryError, UsageError
from launcher.model.text import format_list
from launcher.views.questions.local_socket import INSPECT_LIMIT_S, LocalAgent, ask_runs, group_by_job
from launcher.views.questions.run_source import RunSource
from launcher.views.sentences import format_headline
from rendezvous.errors import MeshrunError
from rendezvous.records import UNNAMED_RUN

LIST_SCHEMA = 1
_NOW_MIN, _NOW_MAX = 20, 200  # letters of what a run does now


class ListedRun(Struct, frozen=True, kw_only=True):
    """A run."""

    run_id: str
    phase: str
    """As in `meshctl status`, "" if unknown."""
    now: str
    """What it does, in a sentence."""
    nodes: tuple[str, ...] = ()
    """Of its agents on this machine."""
    pids: tuple[int, ...] = ()
    """Of its agents on this machine."""
    is_in_store: bool = False


def list_runs(agents: Iterable[LocalAgent], jobs: JobStore | None) -> list[ListedRun]:
    """List the runs of these agents and in the store, if one is known, by name. Raises StoreError."""
    jobs_here = group_by_job(agents)
    stored = {run_id: _read_stored(jobs, run_id) for run_id in jobs.list_runs()} if jobs is not None else {}
    only_stored: list[tuple[str, list[LocalAgent]]] = [
        (run_id, []) for run_id in stored.keys() - {job[0].run_id for job in jobs_here}
    ]
    found = []
    listed = [*((job[0].run_id, job) for job in jobs_here), *only_stored]
    listed.sort(key=lambda run: (run[0], [agent.pid for agent in run[1]]))
    for (run_id, here), (phase, now) in zip(listed, _ask([here for _, here in listed]), strict=True):
        if not phase and run_id in stored:  # a job of one machine may have the name of an old one in the store
            phase, now = stored[run_id]
        found.append(
            ListedRun(
                run_id=run_id,
                phase=phase,
                now=now,
                nodes=tuple(sorted({agent.node for agent in here})),
                pids=tuple(sorted(int(agent.pid) for agent in here if agent.pid.isdecimal())),
                is_in_store=run_id in stored,
            )
        )
    return found


def describe_runs(runs: Sequence[ListedRun], *, has_store: bool, width: int = 0) -> str:
    """Describe them as a table, `width` letters wide (0: no limit). `has_store`: whether a store was asked too."""
    if not runs:
        more = ", and none is in the store" if has_store else "\nhint: set --rdzv-endpoint to list the runs in a store"
        return f"no run of this user has an agent on this machine{more}"
    columns = [
        # The word by which one asks for it stays.
        Column("run", tuple(f"{run.run_id} (no id)" if run.run_id == UNNAMED_RUN else run.run_id for run in runs)),
        Column("here", tuple(format_list([f"pid {pid}" for pid in run.pids], 2) or "-" for run in runs)),
    ]
    lines = format_table(columns).splitlines()
    start = max(map(len, lines)) + len(GAP)
    room = width - start if width - start >= _NOW_MIN else _NOW_MAX
    cells = [textwrap.wrap(escape(now)[:_NOW_MAX], room) or [""] for now in ("now", *(run.now for run in runs))]
    rows = [row for line, parts in zip(lines, cells, strict=True) for row in zip_longest([line], parts, fillvalue="")]
    return "\n".join(f"{line:<{start}}{now}" for line, now in rows)


def _read_stored(jobs: JobStore, run_id: str) -> tuple[str, str]:
    try:
        run = jobs.read_run(run_id)
    except MeshrunError as error:  # removed since, or foreign
        return "", str(error)
    return run.phase, format_headline(run)


def _ask(jobs: Sequence[Sequence[LocalAgent]]) -> list[tuple[str, str]]:
    """Ask an agent of each job, all at once, then another one of each job that nothing is known of; within one limit.

    Returns each job's phase, "" if it cannot be told, and a sentence.
    """
    deadline = time.monotonic() + INSPECT_LIMIT_S
    found, left, turn = [("", "")] * len(jobs), [index for index, job in enumerate(jobs) if job], 0
    while left and (left_s := deadline - time.monotonic()) > 0:
        for index, source in zip(left, ask_runs([jobs[index][turn] for index in left], left_s), strict=True):
            found[index] = _read(source)
        turn += 1
        left = [index for index in left if not found[index][0] and len(jobs[index]) > turn]
    return found


def _read(source: RunSource) -> tuple[str, str]:
    try:
        run = source.read_run()
    except (TemporaryError, UsageError) as problem:  # or it is of another version
        return "", str(problem)
    return run.phase, format_headline(run)
