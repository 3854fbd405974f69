"""Is this failure a cause, or the echo of another's?

When a worker dies, its peers' collectives break, and they fail too, with words that name the connection and
not the reason. Such a failure is believed only if no better one is found.
"""

from __future__ import annotations

import re

# What gloo, NCCL, MPI-like transports and torch's store say when the other side has gone.
_PEER_LOSS = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|ncclRemoteError|remote process exited"
    r"|Socket (?:closed|Timeout)|recvValue failed|failed to recv, got 0 bytes|Connection was likely closed"
    r"|caused pair closure"
    r"|process group .* (?:aborted|terminated)|Watchdog caught collective operation timeout"
)


def is_peer_loss(text: str) -> bool:
    """Whether a traceback, or the last lines of stderr, are about a connection to somebody else."""
    return bool(_PEER_LOSS.search(text))
