"""The entry point of an agent that a host starts as a child: `main` with the words PID and those of meshrun.

PID is the process that starts it. When that dies, even by SIGKILL, the kernel sends the agent a SIGTERM, and the agent
leaves as usual: its workers get their grace period and end.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command whose words follow the parent's pid; return its exit code."""
    from launcher.cli import main as run
    from launcher.cli import protect_imports

    protect_imports()

    import signal

    from launcher.hardware.linux import kernel
    from rendezvous.errors import EXIT_STOPPED

    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the starting thread may have blocked some
    kernel.signal_on_parent_death(signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        return EXIT_STOPPED  # it died before the line above
    return run(sys.argv[2:])
