"""What psutil says of real processes: a worker is the tree below its process."""

from __future__ import annotations

import os
import subprocess
import sys

from launcher.views.node.process_use import measure_process, measure_use
from tests.support.waiting import wait_until

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


def test_the_time_of_children_that_have_ended_stays_counted() -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}]); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "1\n"
        assert measure_use([parent.pid])[parent.pid].cpu_s >= 0.2


def test_a_worker_is_all_that_it_has_started() -> None:
    program = "import os, sys, time\npid = os.fork()\nos.write(1, b'%d\\n' % pid)\ninput() if pid else time.sleep(60)\n"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = max(int(parent.stdout.readline()), int(parent.stdout.readline()))
        try:
            own, tree = measure_process(parent.pid), measure_use([parent.pid])[parent.pid]
            assert own is not None
            assert tree.rss_bytes > own.rss_bytes
        finally:
            os.kill(child, 9)


def test_a_process_that_has_ended_is_left_out() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert measure_process(ended.pid) is None
    wait_until(lambda: measure_use([ended.pid, os.getpid()]).keys() == {os.getpid()})
