"""For all tests: signals do by default what they do in a shell, whatever the test run itself was started under.

A disposition "ignored" is inherited: by nohup, by a shell's background job, by some CI runners. Then a SIGHUP that a
test sends stops nobody, and with SIGCHLD ignored every exit code reads 0.

Compiled modules are kept, also where an image forbids it (PYTHONDONTWRITEBYTECODE): a test run starts thousands of
processes, and an agent that compiles itself needs 0.20 s of CPU for a start instead of 0.09 s.

No example of a property has a time limit: a slow machine is no error. And agents begin their lines without the time,
which no test could expect; a test of that asks for it.

Temporary files of tests, and of the jobs that they kill, go where pytest's own are and go with them.

Some 8,000 collected tests are no garbage: a search that collects at each level needed ten times as long beside them.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress

import pytest

with suppress(ModuleNotFoundError):  # not installed beside the libraries of tests/clients
    from hypothesis import HealthCheck, settings

    settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("unhurried")

os.environ["LAUNCHER_LOG_TIMES"] = "off"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

for _signum in signal.valid_signals():
    # What Python ignores for itself (SIGPIPE, SIGXFSZ) it sets back in the programs that it starts.
    if signal.getsignal(_signum) is signal.SIG_IGN and _signum not in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(_signum, signal.default_int_handler if _signum == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have temporary files made in a directory of this test run, which pytest removes: a killed job leaves its own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("tmp"))
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
