"""Removes the keys that jobs have left in the store, and nothing that an agent may still need.

A job's keys stay when it is over: only its verdict, and `current` with it, expire by themselves. What can go follows
from three facts about each job key under a run id: whether `current` names it, whether a verdict says that it has
ended, and whether a member lives. A job without a verdict and without members may have ended long ago, or be cut off
from the store as a whole and about to come back; that cannot be told from here, so it goes only when a person insists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rendezvous import records
from rendezvous.records import Keys
from rendezvous.stores.contract import Compare, Delete, KeyValue, Operation, Store


class Leftover(NamedTuple):
    """One job under a run id. `keeps`: why it is not removed; empty if it is. `guards`: what must still hold then."""

    run_id: str
    job: Keys
    key_count: int
    keep_reason: str
    guards: tuple[Compare, ...]
    deletes: tuple[Operation, ...]


def find_leftovers(store: Store, prefix: str, run_id: str | None, *, insist: bool = False) -> list[Leftover]:
    """Return every job of a run, or of all runs, and whether it is removed. `insist`: see above."""
    start = f"/{prefix}/" if run_id is None else f"/{prefix}/{run_id}/"
    items = store.get(start, prefix=True).items
    runs: dict[str, list[KeyValue]] = {}
    for item in items:
        name, slash, _ = item.key.removeprefix(f"/{prefix}/").partition("/")
        if slash:
            runs.setdefault(name, []).append(item)
    return [leftover for name in sorted(runs) for leftover in _find_in_run(prefix, name, runs[name], insist)]


def remove(store: Store, leftover: Leftover) -> bool:
    """Delete it in one transaction; False if it has changed since it was read, and is left alone."""
    return store.txn(leftover.guards, leftover.deletes).succeeded


def _find_in_run(prefix: str, run_id: str, items: list[KeyValue], insist: bool) -> Iterator[Leftover]:
    key = records.make_current_key(prefix, run_id)
    current = next((item for item in items if item.key == key), None)
    by_job: dict[str, list[KeyValue]] = {}
    for item in items:
        job_key, slash, _ = item.key.removeprefix(f"/{prefix}/{run_id}/").partition("/")
        if slash:
            by_job.setdefault(job_key, []).append(item)
    now = current.value.decode(errors="replace") if current else ""
    if now:
        by_job.setdefault(now, [])
    for job_key in sorted(by_job, key=lambda job_key: (job_key == now, job_key)):
        job = records.make_job_keys(prefix, run_id, job_key)
        guards: list[Compare] = []
        removes: list[Operation] = [Delete(f"{job.root}/", prefix=True)]
        if current is not None and job_key == now:
            # A member registers only if `current` is unchanged and there is no verdict: these guard all.
            verdict = next((item for item in by_job[job_key] if item.key == job.verdict), None)
            guards = [
                Compare(key, "mod", "=", current.mod_revision),
                Compare(job.verdict, "mod", "=", verdict.mod_revision if verdict else 0),
                Compare(job.leader, "create", "=", 0),
            ]
            removes.append(Delete(key))
        keeps = _find_keep_reason(job, by_job[job_key], job_key == now, insist)
        yield Leftover(run_id, job, len(by_job[job_key]), keeps, tuple(guards), tuple(removes))


def _find_keep_reason(job: Keys, items: list[KeyValue], is_current: bool, insist: bool) -> str:
    """Return why this job stays; empty if it can go."""
    members = sum(1 for item in items if item.key.startswith(job.members))
    if members:
        return f"{members} of its members live" if members > 1 else "a member of it lives"
    if is_current and not insist and not any(item.key == job.verdict for item in items):
        return "it has no verdict and no members: it may have ended long ago, or be cut off from the store"
    return ""
