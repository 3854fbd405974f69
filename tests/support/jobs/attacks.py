"""Strangers: processes of another user on this machine that do what they can to a job, for as long as they are let.

`ATTACK_S` in the environment makes each attack last so many seconds: 2 are enough to see that a defence is there, 30
show that it lasts (`ATTACK_S=30 .venv/bin/pytest tests/end_to_end/test_attacks.py`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

ATTACK_S = float(os.environ.get("ATTACK_S", "2"))
NOBODY = 65534


class Stranger:
    """`act` in a process of its own, as another user, nobody or `uid`; a context manager that ends it.

    `act` gives back how often it has done what it does.
    """

    def __init__(self, act: Callable[[], int], uid: int = NOBODY) -> None:
        result, answer = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                os.write(answer, str(act()).encode())
                os._exit(0)
            finally:
                os._exit(1)
        os.close(answer)
        self._result = result
        self.cpu_s = 0.0

    def wait(self) -> int:
        """How often it did it; it must have come to its end by itself."""
        pid, self._pid = self._pid, 0
        _, status, usage = os.wait4(pid, 0)
        assert status == 0, f"the stranger ended with {status}"
        self.cpu_s = usage.ru_utime + usage.ru_stime
        return int(os.read(self._result, 100))

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._result)
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def again_and_again(act: Callable[[], object], limit_s: float = ATTACK_S) -> int:
    """Do it for as long as the attack lasts; how often that was."""
    end, count = time.monotonic() + limit_s, 0
    while time.monotonic() < end:
        act()
        count += 1
    return count


def cpu_s(pid: int) -> float:
    """The processor time that a process has had so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
