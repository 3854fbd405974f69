"""What a worker that is about to fail knows better than its agent: that a restart is useless, or its node at fault.

An agent sees an exit code. Whether the data set is damaged, the loss not a number for good, or this one GPU wrong, only
the script can know. Each function tells the agent, prints the reason to stderr, and raises SystemExit: `finally` blocks
and exit handlers run as at any end. The agent acts when this worker or another of its round has ended with a failure;
SystemExit ends a thread only, so call them from the main thread.

In a process without the shared page (see client) the agent hears nothing but the exit code, and the job restarts as
after any failure.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from launcher.hardware.linux import shared_page
from launcher.worker.client import write_claim

EXIT_TEMPORARY, EXIT_USELESS = 75, 76  # as in rendezvous.errors: the script may have a module named rendezvous


def give_up(reason: str) -> NoReturn:
    """End this worker with exit code 76, and the whole job with it, because no restart would help.

    All agents exit with code 76, even if `--max-restarts` allows more restarts, and the report shows `reason`.
    """
    _claim(shared_page.CLAIM_GIVES_UP, "gives up", reason, EXIT_USELESS)


def blame_node(reason: str) -> NoReturn:
    """End this worker with exit code 75, and report that its node is at fault, for example a GPU or a disk.

    The restart counts against `--max-restarts`, like any other. The node is quarantined at once: for a minute the first
    time, and twice as long each further time. The next round runs without this node if the other nodes suffice.
    """
    _claim(shared_page.CLAIM_BLAMES_NODE, "blames its node", reason, EXIT_TEMPORARY)


def _claim(kind: int, what: str, reason: str, exit_code: int) -> NoReturn:
    write_claim(kind, reason)
    if sys.stderr is not None:
        print(f"this worker {what}: {reason}", file=sys.stderr, flush=True)
    raise SystemExit(exit_code)
