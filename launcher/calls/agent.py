"""The entry point of an agent that a program starts, `launch` or an actor on Ray: a child that ends with its caller.

When the caller dies, even by SIGKILL, the kernel sends this process a SIGTERM, and the agent leaves as usual: the
workers get their grace period and end. It then also removes the call's directory, since the caller cannot.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command, which follows the caller's pid and the call's directory; return its exit code."""
    from launcher.cli import main as run
    from launcher.cli import protect_imports

    protect_imports()

    import signal

    from launcher.hardware.linux import kernel
    from rendezvous.errors import EXIT_STOPPED

    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the caller's thread may have blocked some
    kernel.signal_on_parent_death(signal.SIGTERM)
    parent_pid, directory, *words = int(sys.argv[1]), *sys.argv[2:]
    exit_code = EXIT_STOPPED
    if os.getppid() == parent_pid:  # else it died before the line above
        exit_code = run(words)
    if os.getppid() != parent_pid:
        import shutil

        shutil.rmtree(directory, ignore_errors=True)
    return exit_code
