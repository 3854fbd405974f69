"""What a training script may tell its launcher; nothing here is needed to be launched.

    from launcher.worker import checkpoint_saved

    save(model)
    checkpoint_saved()  # now is a good time for a restart on more nodes (--grow checkpoint)

Imports nothing but the standard library's smallest parts, and does nothing under another launcher.
"""

from __future__ import annotations

import os
import socket

SOCKET_VARIABLE = "LAUNCHER_AGENT_SOCKET"


def checkpoint_saved() -> bool:
    """Say that the workers have saved their state; any one worker may speak for all. Whether somebody listened."""
    name = os.environ.get(SOCKET_VARIABLE)
    if not name:
        return False
    message = f"saved {os.environ.get('LAUNCHER_ROUND', '')}".encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(message, f"\0{name}")
        except OSError:  # the agent has gone, or has more to read than fits
            return False
    return True
