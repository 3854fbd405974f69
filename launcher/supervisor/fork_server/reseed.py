"""What every process makes for itself when it starts, and forks would have in common: random numbers and secrets.

Python sees to its own `random`. What a preloaded module has seeded by hand is seeded anew, too: nobody can tell it from
what nobody has seeded. Generators that a module has made for itself are its own; they are alike in all workers.
"""

from __future__ import annotations

import os
import sys


def reseed() -> None:
    """Make anew what must not be alike in two processes."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
        process.current_process()._config.pop("tempdir", None)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        try:  # noqa: SIM105 - of Python's library as little as can be
            numpy_random.seed()
        except TypeError:  # another generator than numpy's own, which somebody has put there by hand
            pass
    torch = sys.modules.get("torch")
    generator = getattr(torch, "default_generator", None)
    if generator is not None:
        generator.seed()  # the CPU's alone, as torch does it when it is loaded; those of devices do not exist yet
    threading = sys.modules.get("threading")
    if threading is not None:
        main = threading.main_thread()
        getattr(main, "_set_native_id", bool)()  # Python, 3.13 too, leaves the number of its parent there
