"""The part that serves an address: by leadership, for several options, at a port that is taken, without threads."""

from __future__ import annotations

import math
import select
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher import extensions
from launcher.config.options import command_line
from launcher.model.errors import TemporaryError
from launcher.parts.host import PartHost
from launcher.parts.part import RETRY_S, Fact, LeadershipChanged
from launcher.views.http import http_part
from launcher.views.http.http_part import HttpPart
from launcher.views.http.http_server import Response
from launcher.views.http.path_group import PathGroup
from tests.support.network.namespaces import free_port
from tests.support.threads import no_threads
from tests.support.waiting import wait_until


def make_group(path: str, *, is_open: bool = True, is_leaders: bool = False, announcement: str = "") -> PathGroup:
    answers = {path: lambda request: Response(body=path.encode())}
    return PathGroup(lambda: answers, is_open=is_open, is_leaders=is_leaders, announcement=announcement)


def lead(part: HttpPart, is_leader: bool) -> None:
    part.take(Fact(LeadershipChanged(is_leader), 1, 10.0, 0.0))
    part.advance(10.0)


def get(port: int, path: str) -> int:
    """The status of an answer; 0 where nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code
    except OSError:
        return 0


@pytest.fixture
def new_part() -> Iterator[Callable[..., HttpPart]]:
    parts = []

    def make(said: list[str], *groups: PathGroup, port: int = 0) -> HttpPart:
        part = HttpPart(("127.0.0.1", port), "--serve", [*groups], said.append)
        parts.append(part)
        return part

    yield make
    for part in parts:
        part.close()


def test_what_the_leader_serves_comes_and_goes_with_the_leadership(new_part: Callable[..., HttpPart]) -> None:
    said: list[str] = []
    port = free_port("127.0.0.1")
    page = new_part(said, make_group("/", is_leaders=True, announcement="live page: {url}"), port=port)
    with no_threads():
        lead(page, True)
    assert page.wake_at == 10.0 + RETRY_S
    for _ in range(2):
        lead(page, True)
        wait_until(lambda: get(port, "/") == 200, what="the page")
        lead(page, False)
        wait_until(lambda: get(port, "/") == 0, what="the end of the page")
        with socket.create_server(("127.0.0.1", port)):
            lead(page, False)
            assert get(port, "/") == 0, "another agent of this machine may have the port"
    assert said == [f"live page: http://127.0.0.1:{port}/"]


def test_two_options_with_one_address_share_a_listener_and_the_page_is_the_leaders(
    new_part: Callable[..., HttpPart],
) -> None:
    said: list[str] = []
    metrics = make_group("/metrics", announcement="metrics at {address}metrics")
    part = new_part(said, metrics, make_group("/", is_open=False, is_leaders=True, announcement="live page: {url}"))
    port = part.listen(0.0)
    wait_until(lambda: get(port, "/metrics") == 200)
    assert get(port, "/") == 404
    lead(part, True)
    assert [get(port, path) for path in ("/metrics", "/", "/other")] == [200, 200, 404]
    lead(part, False)
    assert [get(port, path) for path in ("/metrics", "/")] == [200, 404]
    assert said == [f"metrics at http://127.0.0.1:{port}/metrics", f"live page: http://127.0.0.1:{port}/"]


def test_the_address_of_two_options_is_one_part() -> None:
    parts = PartHost(select.poll(), lambda: 0.0, print)
    values = command_line.resolve_values({"serve": "9400", "metrics-port": "127.0.0.1:9400"}, {})
    other = command_line.resolve_values({"serve": "0.0.0.0:9400"}, {})
    entry = "nothing.is:imported", lambda question, limit_s: b"", "exp"
    metrics = http_part.make_part(parts, values["metrics-port"], *entry)
    assert metrics is not None
    parts.add(metrics)
    assert http_part.make_part(parts, values["serve"], *entry, is_leaders=True) is None
    assert [group.is_leaders for group in metrics.groups] == [False, True]
    assert metrics.wake_at == -math.inf, "it has more to serve"
    assert http_part.make_part(parts, other["serve"], *entry) is not None


def test_a_port_that_is_taken_costs_the_page_alone_but_is_an_error_where_it_must_be_free(
    new_part: Callable[..., HttpPart], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_part, "REOPEN_S", 0.01)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        page = new_part(said, make_group("/", is_leaders=True), port=port)
        lead(page, True)
        wait_until(lambda: said, what="the problem")
        with pytest.raises(TemporaryError, match=f"--serve cannot listen on 127.0.0.1:{port}: the port is taken"):
            new_part([], make_group("/"), port=port).listen(0.0)
    wait_until(lambda: get(port, "/") == 200, what="the page, once the port is free")
    assert len(said) == 1
    assert said[0].endswith("; the job continues; retrying every 0.01 s")


def test_a_part_that_ends_frees_its_port(new_part: Callable[..., HttpPart]) -> None:
    begun, new = new_part([], make_group("/")), new_part([], make_group("/"))
    ports = begun.listen(0.0), new.listen()
    wait_until(lambda: get(ports[0], "/") == 200)
    for part in (begun, new):
        part.close()
    wait_until(lambda: not any(get(port, "/") for port in ports))


def test_the_first_readers_share_what_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    begun, go = threading.Event(), threading.Event()

    def make(source: object) -> dict[str, object]:
        made.append(source)
        begun.set()
        assert go.wait(20)
        return {"/": source}

    option = command_line.resolve_values({"serve": "9400"}, {})["serve"]
    option.read()
    monkeypatch.setattr(extensions, "load_entry", lambda entry: make)
    parts = PartHost(select.poll(), lambda: 0.0, print)
    part = http_part.make_part(parts, option, "an:entry", lambda question, limit_s: b"", "exp")
    assert part is not None
    (group,) = part.groups
    assert not made, "nothing is imported before the first request"
    with ThreadPoolExecutor(20) as readers:
        answers = [readers.submit(group.read) for _ in range(20)]
        assert begun.wait(20)
        go.set()
        assert len({id(answer.result()) for answer in answers}) == len(made) == 1
