"""Is this failure a cause, or the echo of another's?

When a worker dies, its peers' collectives break, and they fail too, with words that name the connection and
not the reason. Such a failure is believed only if no better one is found.
"""

from __future__ import annotations

import re

# What gloo, NCCL, MPI-like transports, torch's store and JAX's coordinator say when the other side has gone.
_PEER_LOSS = (  # compiled when a worker has failed: that takes 0.4 ms
    r"Connection closed by peer|Connection reset by peer|Broken pipe|ncclRemoteError|remote process exited"
    r"|Socket (?:closed|Timeout)|recvValue failed|failed to recv, got 0 bytes|Connection was likely closed"
    r"|caused pair closure"
    r"|(?<!connected to )(?<!Notified )coordination service|CoordinationService/"
    r"|JAX distributed service detected fatal errors"
    r"|process group .* (?:aborted|terminated)|Watchdog caught collective operation timeout"
)
_ABORTED = -6  # SIGABRT


def is_abort(exit_code: int, message: str | None, sentence: str | None) -> bool:
    """Whether a worker ended by SIGABRT, and nobody knows why: so JAX ends a process that has lost another one.

    `message`: what the worker left in its error file; `sentence`: what the agent knows.
    """
    return exit_code == _ABORTED and message is None and sentence is None


def is_peer_loss(text: str) -> bool:
    """Whether a traceback, or the last lines of stderr, are about a connection to somebody else."""
    return bool(re.search(_PEER_LOSS, text))
