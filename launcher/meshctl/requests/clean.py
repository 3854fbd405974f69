"""`meshctl clean`: removes leftovers, and reports them before or after that."""

from __future__ import annotations

from launcher.meshctl.requests.leftovers import Leftover, find_leftovers, remove
from launcher.meshctl.requests.session import StoreSession
from launcher.meshctl.status.reader import find_run
from launcher.model.console import write_stdout
from launcher.model.text import format_count


def run(session: StoreSession, run_id: str | None, *, dry_run: bool, insist: bool) -> int:
    """Remove the leftovers of a run, or of all. Raises UsageError for an unknown run."""
    found = find_leftovers(session.store, session.prefix, run_id, insist=insist)
    if run_id is not None and not found:
        find_run(session.store, session.prefix, run_id)
    lines = [_remove_leftover(session, leftover, dry_run) for leftover in found]
    write_stdout("\n".join(lines) if lines else f"nothing is under /{session.prefix}/")
    return 0


def _remove_leftover(session: StoreSession, leftover: Leftover, dry_run: bool) -> str:
    what = f"run {leftover.run_id}, job {leftover.job.root.rpartition('/')[2]}"
    if leftover.keep_reason:
        return f"kept: {what}: {leftover.keep_reason}"
    if not dry_run and not remove(session.store, leftover):
        return f"kept: {what}: it has changed meanwhile"
    return f"{'would remove' if dry_run else 'removed'}: {what}, {format_count(leftover.key_count, 'key')}"
