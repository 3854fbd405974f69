"""What becomes of one worker on its way, in the order of events that real processes show only now and then."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.supervisor import warm
from launcher.supervisor.child import Worker
from launcher.supervisor.fork_server.json_channel import JsonChannel
from launcher.supervisor.warm import WarmFork


@pytest.mark.parametrize(("is_killed", "is_reaped"), [(True, False), (False, True), (False, False)])
def test_who_is_swept_before_its_first_word_is_read_is_begun_again(
    monkeypatch: pytest.MonkeyPatch, is_killed: bool, is_reaped: bool
) -> None:
    """It said that it was born after the sweep had looked who is to be spared, and before it was killed."""
    monkeypatch.setattr(warm, "_is_child", lambda pid: True)
    ours, theirs = socket.socketpair()
    births: list[WarmFork] = []
    again: list[Worker] = []
    pid = os.getpid()
    workers: dict[int, Any] = {}
    loop = SimpleNamespace(watch=lambda *_, **__: None, unwatch=lambda _: None, report=lambda _: None, workers=workers)
    pool = SimpleNamespace(
        host=loop, forks=births, is_killed=lambda killed: is_killed and killed == pid, note_ready=lambda: None,
        retry=again.append,
    )  # fmt: skip
    newborn = WarmFork(cast("Any", pool), ours, cast("Any", job := object()))
    newborn.assign = lambda worker: workers.update({pid: newborn})  # type: ignore[method-assign]
    newborn.was_swept = True
    teller = JsonChannel(theirs)
    teller.send(("born", pid))
    teller.flush()
    newborn.receive(pid if is_reaped else 0)
    is_hit = is_killed or is_reaped
    assert (again, bool(births), bool(workers)) == (([job], False, False) if is_hit else ([], True, True))
    for left in births.copy():
        left.drop()
    theirs.close()
