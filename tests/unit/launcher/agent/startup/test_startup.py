"""Whose the store is: found out before anything is started, while names may not mean yet what they will mean."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable

import pytest

from launcher.agent.startup import startup
from launcher.agent.startup.probe import ProbeResult
from launcher.config import config
from launcher.config.options import command_line
from launcher.model.errors import TemporaryError, UsageError

Meaning = dict[str, str]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> Callable[..., tuple[str, ...]]:
    """Look for the store with names that mean something else at each look; a clock that moves on when it is read."""

    def look(*words: str, turns: list[Meaning], limit_s: float = 600.0, answers: bool = False) -> tuple[str, ...]:
        clock, left = itertools.count(), iter(turns)
        names: Meaning = dict(next(left))

        def look_up(host: str, port: int | None, **_: object) -> list[tuple[object, ...]]:
            if host not in names:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (names[host], port))]

        def sleep(_: float) -> None:
            names.update(next(left, {}))

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        monkeypatch.setattr(startup.time, "monotonic", lambda: float(next(clock)))
        monkeypatch.setattr(startup.time, "sleep", sleep)
        monkeypatch.setattr(startup, "log", said.append)
        absent = itertools.cycle(ProbeResult("absent", f"head:29501 cannot be reached: {why}") for why in ("a", "b"))
        monkeypatch.setattr(startup, "probe", lambda network: ProbeResult("good") if answers else next(absent))
        made = config.resolve(command_line.parse([*words, "train.py"]), {}, "python")
        assert made.rendezvous.network is not None
        return startup.find_store(made.rendezvous, made.rendezvous.network, limit_s)

    return look


STATIC = ("--nnodes=2", "--master-addr=head")
C10D = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=head")
HERE, ELSEWHERE = "127.0.0.1", "198.51.100.7"


@pytest.mark.parametrize("words", [STATIC, C10D], ids=["static", "c10d"])
def test_a_name_not_known_yet_is_looked_up_again(words: tuple[str, ...], find: Callable[..., tuple[str, ...]]) -> None:
    assert find(*words, turns=[{}, {}, {"head": "10.255.255.254"}, {"head": HERE}])[0] == HERE


def test_a_name_that_resolves_to_another_machine_is_resolved_again(find: Callable[..., tuple[str, ...]]) -> None:
    assert find(*STATIC, turns=[{"head": ELSEWHERE}, {"head": ELSEWHERE}, {"head": HERE}])[0] == HERE
    with pytest.raises(UsageError, match="but the master, head, is not on this node"):
        find(*STATIC, turns=[{"head": ELSEWHERE}])


def test_where_a_store_answers_nothing_is_served_nor_by_whoever_is_not_to(find: Callable[..., tuple[str, ...]]) -> None:
    assert find(*STATIC, "--node-rank=1", turns=[{"head": ELSEWHERE}], answers=True) == ()
    assert find(*C10D, turns=[{"head": HERE}], answers=True) == ()
    with pytest.raises(UsageError, match="but another server already does"):
        find(*C10D, "--rdzv-conf=is_host=1", turns=[{"head": HERE}], answers=True)
    # That of an earlier attempt makes way.
    assert find(*C10D, "--rdzv-conf=is_host=1", "--attempt=2", turns=[{"head": HERE}], answers=True) == ()
    for words in ((*STATIC, "--node-rank=1"), (*C10D, "--rdzv-conf=is_host=0")):
        with pytest.raises(TemporaryError, match="no store could be used within 5 s"):
            find(*words, turns=[{"head": HERE}], limit_s=5.0)


def test_reasons_that_come_by_turns_are_said_once_each(find: Callable[..., tuple[str, ...]], said: list[str]) -> None:
    with pytest.raises(TemporaryError):
        find(*STATIC, "--node-rank=1", turns=[{"head": ELSEWHERE}], limit_s=9.0)
    assert [sentence.count("cannot be reached") for sentence in said] == [1, 1]


def test_whoever_is_to_serve_behind_another_address_says_where(find: Callable[..., tuple[str, ...]]) -> None:
    names = {"head": ELSEWHERE, "127.0.0.1": HERE}
    assert find(*STATIC, "--local-addr=127.0.0.1", turns=[names]) == (HERE,)
    assert find(*C10D, "--rdzv-conf=is_host=1", "--local-addr=127.0.0.1", turns=[names]) == (HERE,)
