"""Renews what every process makes for itself when it starts, and forks would share: random numbers and secrets.

Python reseeds its own `random`. What a preloaded module has seeded explicitly is reseeded, too: it cannot be told from
what was not seeded. Generators that a module has created for itself are not touched; they are equal in all workers.
"""

from __future__ import annotations

import os
import sys


def reseed() -> None:
    """Renew the random state and secrets that must differ between processes."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
        process.current_process()._config.pop("tempdir", None)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        try:  # noqa: SIM105 - as little of Python's library as possible
            numpy_random.seed()
        except TypeError:  # another generator than numpy's own, set explicitly
            pass
    torch = sys.modules.get("torch")
    generator = getattr(torch, "default_generator", None)
    if generator is not None:
        generator.seed()  # the CPU's only, as torch does when it is loaded; those of devices do not exist yet
    threading = sys.modules.get("threading")
    if threading is not None:
        main = threading.main_thread()
        getattr(main, "_set_native_id", bool)()  # Python, 3.13 included, leaves the number of its parent there
