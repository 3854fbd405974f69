"""Reads a job from outside: the job of a run id, and all of its keys, at one revision.

Only reads, and no watch except that of `watcher`: the status of a job costs its agents nothing and the store little.
"""

from __future__ import annotations

from difflib import get_close_matches

from launcher.meshctl.status.state import JobSnapshot
from launcher.model.errors import UsageError
from launcher.model.text import format_list
from rendezvous import records
from rendezvous.errors import LeaseNotFound, RecordError, StoreError
from rendezvous.records import Keys, Seal, decode
from rendezvous.stores.contract import Get, KeyValue, Store

_ATTEMPTS = 5  # rounds that may be sealed one after the other while we read
_SUGGESTED_MAX = 4


def find_run(store: Store, prefix: str, run_id: str) -> KeyValue:
    """Return the key that names the run's job. Raises UsageError, with the existing runs, for an unknown name."""
    item = store.get(records.make_current_key(prefix, run_id)).first
    if item is not None:
        return item
    there = list_run_ids(store, prefix)
    close = get_close_matches(run_id, there, n=_SUGGESTED_MAX, cutoff=0.5)
    if not there:
        raise UsageError(f"run {run_id} is not there; no run is under /{prefix}/", "--rdzv-prefix names another place")
    word = "there is" if len(close or there) == 1 else "there are"
    raise UsageError(f"run {run_id} is not there; {word} {format_list(close or there, _SUGGESTED_MAX)}")


def list_run_ids(store: Store, prefix: str) -> list[str]:
    """Return the names of all runs under the prefix."""
    found = store.get(f"/{prefix}/", prefix=True)
    ends = [item.key.removeprefix(f"/{prefix}/") for item in found.items if item.key.endswith("/current")]
    return sorted(end.removesuffix("/current") for end in ends if end.count("/") == 1)


def read_job(store: Store, prefix: str, run_id: str, secret: bytes = b"") -> JobSnapshot:
    """Read everything about the run's current job. Raises UsageError if there is none, StoreError."""
    for _ in range(_ATTEMPTS):
        current = find_run(store, prefix, run_id)
        job = records.make_job_keys(prefix, run_id, current.value.decode(errors="replace"))
        seal = _read_seal(store, job, secret)
        prefixes = [job.control, job.members, job.statuses, job.history]
        if seal is not None:
            prefixes.append(job.make_assignments_prefix(seal.round, seal.plan_token))
        reads = (Get(current.key), Get(job.spec), *(Get(prefix, prefix=True) for prefix in prefixes))
        answer = store.txn((), reads)
        now = answer.found[0].first
        items = tuple(item for found in answer.found[1:] for item in found.items)
        if (
            now is None
            or now.value != current.value
            or _find_plan_token(items, job, secret) != (seal.plan_token if seal else None)
        ):
            continue  # another job, or another round, since we began
        return JobSnapshot(run_id, job, items, answer.revision, _read_lease_left_s(store, job, items))
    raise StoreError(f"run {run_id} seals one round after the other: it cannot be read as of one moment")


def _read_seal(store: Store, job: Keys, secret: bytes) -> Seal | None:
    return _decode_seal(store.get(job.round).first, secret)


def _find_plan_token(items: tuple[KeyValue, ...], job: Keys, secret: bytes) -> str | None:
    seal = _decode_seal(next((item for item in items if item.key == job.round), None), secret)
    return seal.plan_token if seal else None


def _decode_seal(item: KeyValue | None, secret: bytes) -> Seal | None:
    try:
        return decode(Seal, item.value, item.key, secret) if item is not None else None
    except RecordError:
        return None


def _read_lease_left_s(store: Store, job: Keys, items: tuple[KeyValue, ...]) -> dict[int, float]:
    """Return for each member's lease the seconds until it would expire."""
    found = {}
    for item in items:
        if item.lease and item.key.startswith(job.members):
            try:
                found[item.lease] = store.lease_remaining(item.lease)
            except LeaseNotFound:  # expired since
                continue
    return found
