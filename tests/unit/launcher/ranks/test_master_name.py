"""A name for an IPv6 MASTER_ADDR: one that leads back to the address, in time, or none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping

import pytest

from launcher.ranks import master_name
from launcher.ranks.master_name import find_master_name


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    master_name._known.clear()
    yield
    master_name._known.clear()


def know(monkeypatch: pytest.MonkeyPatch, reverse: str, names: Mapping[str, list[str]]) -> None:
    """The resolver: what an address is called, and what names stand for."""

    def get_name(place: tuple[str, int], flags: int) -> tuple[str, str]:
        if not reverse:
            raise socket.gaierror(-2, "Name or service not known")
        return reverse, "0"

    monkeypatch.setattr(socket, "getnameinfo", get_name)
    monkeypatch.setattr(
        master_name, "resolve_host", lambda name, port: [(socket.AF_INET6, (each, 0)) for each in names.get(name, [])]
    )


@pytest.mark.parametrize(
    ("address", "reverse", "names", "expected"),
    [
        ("fd00::5", "pod-0.jobs", {"pod-0.jobs": ["fd00::5"]}, "pod-0.jobs"),
        ("fd00::5", "pod-0.jobs", {"pod-0.jobs": ["10.0.0.5", "FD00:0::5"]}, "pod-0.jobs"),
        ("fd00::5", "old-name", {"old-name": ["fd00::6"]}, "fd00::5"),
        ("fd00::5", "gone", {}, "fd00::5"),
        ("fd00::5", "", {}, "fd00::5"),
        ("::1", "ip6-loopback", {"localhost": ["127.0.0.1", "::1"], "ip6-loopback": ["::1"]}, "localhost"),
        ("::1", "ip6-loopback", {"localhost": ["127.0.0.1"], "ip6-loopback": ["::1"]}, "ip6-loopback"),
    ],
)
def test_a_name_leads_back_to_the_address(
    monkeypatch: pytest.MonkeyPatch, address: str, reverse: str, names: Mapping[str, list[str]], expected: str
) -> None:
    know(monkeypatch, reverse, names)
    assert find_master_name(address) == expected


def test_a_resolver_that_is_silent_is_not_waited_for_and_its_late_answer_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = threading.Event()
    know(monkeypatch, "pod-0", {"pod-0": ["fd00::5"]})
    reply = socket.getnameinfo
    monkeypatch.setattr(socket, "getnameinfo", lambda *where: answers.wait(60) and reply(*where))
    assert master_name.LIMIT_S <= 1
    monkeypatch.setattr(master_name, "LIMIT_S", 0.01)
    assert find_master_name("fd00::5") == "fd00::5"
    (thread,) = [each for each in threading.enumerate() if each.name == "name of the master"]
    assert find_master_name("fd00::5") == "fd00::5"
    assert [each for each in threading.enumerate() if each.name == "name of the master"] == [thread]
    answers.set()
    thread.join()
    assert find_master_name("fd00::5") == "pod-0"


def test_a_name_is_asked_for_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    know(monkeypatch, "", {})
    assert find_master_name("fd00::5") == "fd00::5"
    know(monkeypatch, "pod-0", {"pod-0": ["fd00::5"]})
    assert find_master_name("fd00::5") == "pod-0"
    know(monkeypatch, "", {})
    assert find_master_name("fd00::5") == "pod-0"
