"""`meshctl clean`: what is removed, said before or after it is."""

from __future__ import annotations

from launcher.console import show
from launcher.control.cleaning import Leftover, leftovers, remove
from launcher.control.opening import Opened
from launcher.overview.reading import find
from launcher.preview.words import count


def run(opened: Opened, run_id: str | None, *, dry_run: bool, insist: bool) -> int:
    """Remove what can go of a run, or of all. Raises UsageError for a run that is not there."""
    found = leftovers(opened.store, opened.prefix, run_id, insist=insist)
    if run_id is not None and not found:
        find(opened.store, opened.prefix, run_id)
    lines = [_line(opened, leftover, dry_run) for leftover in found]
    show("\n".join(lines) if lines else f"nothing is under /{opened.prefix}/")
    return 0


def _line(opened: Opened, leftover: Leftover, dry_run: bool) -> str:
    what = f"run {leftover.run_id}, job {leftover.job.root.rpartition('/')[2]}"
    if leftover.keeps:
        return f"kept: {what}: {leftover.keeps}"
    if not dry_run and not remove(opened.store, leftover):
        return f"kept: {what}: it has changed meanwhile"
    return f"{'would remove' if dry_run else 'removed'}: {what}, {count(leftover.key_count, 'key')}"
