"""Sockets under the names of agents: many at once, silent ones, and those of another user."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import msgspec
import pytest
from msgspec.structs import replace

from launcher.meshctl.live import listing
from launcher.meshctl.live.listing import list_runs
from launcher.views.questions import local_socket
from launcher.views.questions.local_listener import SOCKET_NAME
from launcher.views.questions.local_socket import (
    LocalAgent,
    QuestionSource,
    ask_to_leave,
    exchange,
    find_local_agents,
    list_socket_names,
)
from launcher.views.questions.messages import Question
from launcher.views.requests import Identify, Replace
from rendezvous import __version__
from tests.support.jobs.attacks import NOBODY, Stranger
from tests.support.processes.questions import open_question_socket
from tests.support.run_reports import REPORT

IDENTITY = f'{{"run_id": "exp-41", "node": "h0", "version": "{__version__}"}}\n'.encode()
BASE = 10_000_000 + 1000 * os.getpid()
"""Of pids that no process has, other ones in each process that runs this."""


def listen(pid: int, uid: int | None = None) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.bind("\0" + SOCKET_NAME.format(uid=os.geteuid() if uid is None else uid, pid=pid))
    end.listen(64)
    return end


def find_own() -> tuple[list[LocalAgent], list[str]]:
    """Find what this module has begun: others may run agents here."""
    agents, silent = find_local_agents()
    own = range(BASE, BASE + 1000)
    return [agent for agent in agents if int(agent.pid) in own], [pid for pid in silent if int(pid) in own]


def reply(connection: socket.socket, line: bytes) -> None:
    """Hear the question, then answer: whoever closes before it has come is taken for an agent that has ended."""
    if connection.recv(1 << 16):
        connection.sendall(line)


@contextmanager
def stranger_that(act: Callable[[], object]) -> Iterator[None]:
    """Another user, who does this, then waits until the end of the block."""
    ready, done = os.pipe()

    def run() -> int:
        kept = act()
        os.close(ready)
        os.write(done, b"1")
        threading.Event().wait()
        return bool(kept)

    with Stranger(run):
        os.close(done)
        assert os.read(ready, 1) == b"1"
        yield
    os.close(ready)


def test_all_agents_are_asked_before_any_has_answered() -> None:
    """Each of these answers once all have been asked."""
    with ExitStack() as stack:
        ends = [stack.enter_context(listen(BASE + number)) for number in range(200)]

        def answer() -> None:
            with ExitStack() as accepted:
                for part in (ends[:100], ends[100:]):
                    connections = [accepted.enter_context(end.accept()[0]) for end in part]
                    for connection in connections:
                        reply(connection, IDENTITY)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        agents, silent = find_own()
        thread.join(60)
        assert (len(agents), silent) == (200, [])


def test_who_is_silent_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_socket, "IDENTIFY_LIMIT_S", 0.5)
    with ExitStack() as stack:
        silent = [stack.enter_context(listen(BASE + number)) for number in range(20)]
        (answering,) = [stack.enter_context(listen(BASE + 900))]

        def answer() -> None:
            with answering.accept()[0] as end:
                reply(end, IDENTITY)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        agents, pids = find_own()
        thread.join(60)
        assert [agent.pid for agent in agents] == [str(BASE + 900)]
        assert sorted(pids) == [str(BASE + number) for number in range(len(silent))]


REPORT_LINE = msgspec.json.encode(REPORT) + b"\n"
AGENTS = [
    LocalAgent(name=SOCKET_NAME.format(uid=os.geteuid(), pid=BASE + n), run_id=f"r{n}", node="h", version=__version__)
    for n in range(5)
]


@contextmanager
def agents_that(answer: Callable[[list[socket.socket]], object]) -> Iterator[None]:
    """Sockets of AGENTS, with a thread that gets all of them."""
    with ExitStack() as stack:
        ends = [stack.enter_context(listen(int(agent.pid))) for agent in AGENTS]
        thread = threading.Thread(target=answer, args=(ends,), daemon=True)
        thread.start()
        yield
        thread.join(60)


def test_all_runs_are_asked_before_any_has_answered() -> None:
    def answer(ends: list[socket.socket]) -> None:
        connections = [end.accept()[0] for end in ends]  # comes to its end only once all have been asked
        for connection in connections:
            with connection:
                reply(connection, REPORT_LINE)

    with agents_that(answer):
        runs = list_runs(AGENTS, None)
    assert [(one.run_id, one.run and one.run.phase) for one in runs] == [(agent.run_id, "running") for agent in AGENTS]


def test_runs_that_do_not_answer_take_one_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    real = local_socket.ask_runs

    def ask(agents: list[LocalAgent], limit_s: float) -> list[QuestionSource]:
        limits.append(limit_s)
        return real(agents, limit_s)

    monkeypatch.setattr(listing, "ask_runs", ask)
    monkeypatch.setattr(listing, "INSPECT_LIMIT_S", 0.5)

    def answer(ends: list[socket.socket]) -> None:
        with ends[-1].accept()[0] as connection:
            reply(connection, REPORT_LINE)

    with agents_that(answer):
        known, *silent = list_runs(AGENTS, None)
    assert (known.run_id, known.run is not None) == (AGENTS[-1].run_id, True)
    assert [one.run for one in silent] == [None] * 4
    assert all(run.now.endswith(" on this machine has not answered in time") for run in silent)
    assert len(limits) == 1


def test_another_agent_of_a_job_is_asked_when_the_first_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "INSPECT_LIMIT_S", 60.0)  # for both together

    def answer(ends: list[socket.socket]) -> None:
        ends[0].accept()[0].close()
        with ends[1].accept()[0] as connection:
            reply(connection, REPORT_LINE)

    with agents_that(answer):
        (run,) = list_runs([replace(agent, run_id="r", job="j") for agent in AGENTS[:2]], None)
    assert run.run is not None, run.now


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
@pytest.mark.parametrize("is_stopped", [False, True])
def test_an_agent_without_a_socket_is_told_to_leave_by_a_signal(*, is_stopped: bool) -> None:
    with subprocess.Popen(["sleep", "1000"]) as agent:
        if is_stopped:
            agent.send_signal(signal.SIGSTOP)
        ask_to_leave(agent.pid, "night", 2)
        assert agent.wait(20) == -signal.SIGTERM


def test_an_agent_with_a_socket_is_asked_to_leave_and_gets_no_signal() -> None:
    with subprocess.Popen(["sleep", "1000"]) as agent, listen(agent.pid) as end, ThreadPoolExecutor() as pool:
        asking = pool.submit(ask_to_leave, agent.pid, "night", 2)
        connection = end.accept()[0]
        with connection:
            question = msgspec.json.decode(connection.recv(1 << 16), type=Question)
            connection.sendall(b"{}\n")
        asking.result(20)
        exit_code = agent.poll()
        agent.kill()
    assert question == Question(request=Replace(run_id="night", attempt=2))
    assert exit_code is None


def test_a_name_of_this_user_that_another_has_taken_is_no_agent() -> None:
    def forge() -> list[socket.socket]:
        ends = [listen(BASE + number, uid=0) for number in range(40)]

        def answer() -> None:
            while True:
                for end in select.select(ends, (), ())[0]:
                    reply(end.accept()[0], IDENTITY)

        threading.Thread(target=answer, daemon=True).start()
        return ends

    with stranger_that(forge):
        assert find_own() == ([], [])
        name = SOCKET_NAME.format(uid=0, pid=BASE)
        with ThreadPoolExecutor(1) as pool, pytest.raises(PermissionError):
            pool.submit(exchange, name, Question(request=Identify()), 60.0).result(30.0)  # it does not wait for nobody


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_root_finds_the_agents_of_another_user() -> None:
    def serve() -> socket.socket:
        end = listen(BASE, uid=NOBODY)

        def answer() -> None:
            while True:
                reply(end.accept()[0], IDENTITY)

        threading.Thread(target=answer, daemon=True).start()
        return end

    with stranger_that(serve):
        (agent,), _ = find_own()
        assert agent.name == f"meshrun.{NOBODY}.{BASE}"


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_an_agent_whose_name_is_taken_says_so_and_takes_another(capfd: pytest.CaptureFixture[str]) -> None:
    own = os.getpid()
    with stranger_that(lambda: listen(own, uid=0)):
        server = open_question_socket(select.poll())
        names = [name for name in list_socket_names() if name.startswith(f"meshrun.0.{own}.")]
        assert len(names) == 1
        assert capfd.readouterr().err == (
            f"meshrun: another process has taken the socket name meshrun.0.{own}: "
            f"this agent answers meshctl at {names[0]}\n"
        )
        server.close()
