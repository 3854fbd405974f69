"""For all tests: signals do by default what they do in a shell, whatever the test run itself was started under.

A disposition "ignored" is inherited: by nohup, by a shell's background job, by some CI runners. Then a SIGHUP that a
test sends stops nobody, and with SIGCHLD ignored every exit code reads 0.
"""

from __future__ import annotations

import signal

for _signum in signal.valid_signals():
    # What Python ignores for itself (SIGPIPE, SIGXFSZ) it sets back in the programs that it starts.
    if signal.getsignal(_signum) is signal.SIG_IGN and _signum not in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(_signum, signal.default_int_handler if _signum == signal.SIGINT else signal.SIG_DFL)
