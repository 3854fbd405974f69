"""Commands and addresses that are told of a run: real ones, slow, broken and gone."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from launcher.model.concurrency import NO_THREAD
from launcher.model.errors import UsageError
from launcher.views.run_events import AgentEnded, HangReported, RemarkMade, RootCause, RoundStopping
from launcher.views.sinks import notifier, teller
from launcher.views.sinks.notifier import Notifier
from tests.support.network.namespaces import free_port
from tests.support.threads import no_threads
from tests.support.waiting import wait_until

END = AgentEnded(at=1.0, run_id="r", node="n0", exit_code=0, verdict="success", reason="done")
STOP = RoundStopping(at=1.0, run_id="r", node="n0", round=2, cause="loss", reason="gone", mode="kill")


HANG = HangReported(
    at=1.0, run_id="r", node="n0", kind="unclear", ranks=(), sentence="at 2 lines",
    details=("rank 0 is in a (t.py:1), asleep",),
)  # fmt: skip


def make(target: str, said: list[str], *, is_leader: bool = True) -> Notifier:
    return Notifier(target, "--notify", lambda: is_leader, said.append)


def test_a_command_gets_each_event_as_a_line(tmp_path: Path) -> None:
    said: list[str] = []
    told = make(f"cat >> {tmp_path}/told", said)
    told.write(RemarkMade(at=1.0, run_id="r", node="n0", sentence="not of interest"))
    told.write(HANG)
    told.write(STOP)
    told.write(END)
    told.close()
    lines = (tmp_path / "told").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["hang_reported", "round_stopping", "agent_ended"]
    assert json.loads(lines[0])["details"] == ["rank 0 is in a (t.py:1), asleep"]
    assert [json.loads(line)["text"] for line in lines] == [
        "run r: no progress: at 2 lines; rank 0 is in a (t.py:1), asleep",
        "run r: round 2 is being ended: gone",
        "run r: the agent ended with exit code 0, the job: success: done",
    ]
    assert said == []


def test_the_text_of_a_failure_has_rank_exception_log_and_last_lines() -> None:
    root = RootCause(
        node="h3", rank=5, exit_code=1, failure_class="user code: KeyError", error="KeyError: 'x'", log_file="/l/5",
        last_lines=("  File \"t.py\", line 3", "KeyError: 'x'"),
    )  # fmt: skip
    event = RoundStopping(
        at=1.0, run_id="r", node="n0", round=2, cause="failure", reason="a worker failed", mode="kill", root_cause=root
    )
    assert json.loads(notifier.add_text(event))["text"].splitlines() == [
        "run r: round 2 is being ended: a worker failed",
        "rank 5 on h3: user code: KeyError, KeyError: 'x'; log h3:/l/5",
        '  File "t.py", line 3',
        "KeyError: 'x'",
    ]
    bare = replace(event, root_cause=RootCause(node="h3", rank=5, exit_code=-9))
    assert json.loads(notifier.add_text(bare))["text"].splitlines()[1:] == ["rank 5 on h3: exit code -9"]


def test_only_the_leader_tells(tmp_path: Path) -> None:
    told = make(f"cat >> {tmp_path}/told", [], is_leader=False)
    told.write(END)
    told.close()
    assert not (tmp_path / "told").exists()


def test_a_command_that_fails_is_reported_once() -> None:
    said: list[str] = []
    told = make("exit 3", said)
    told.write(STOP)
    told.write(END)
    told.close()
    assert said == ["--notify exit 3: exit code 3"]


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "LIMIT_S", 0.2)
    said: list[str] = []
    told = make(f"sleep 1000 & echo $! > {tmp_path}/pid; wait", said)
    told.write(END)
    told.close()
    assert said == [f"--notify sleep 1000 & echo $! > {tmp_path}/pid; wait: it did not end within 0.2 s"]
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}/cwd").exists(), 30, "the end of its child")


def test_a_command_that_ignores_its_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "LIMIT_S", 0.2)
    monkeypatch.setattr(teller, "END_LIMIT_S", 60.0)
    said: list[str] = []
    told = make("trap '' TERM; while :; do sleep 1000; done", said)
    told.write(END)
    told.close()
    assert [sentence.rpartition(": ")[2] for sentence in said] == ["it did not end within 0.2 s"]


def test_ctrl_c_is_not_for_the_command(tmp_path: Path) -> None:
    told = make(f"ps -o sid= -p $$ >> {tmp_path}/told", [])
    told.write(END)
    told.close()
    assert int((tmp_path / "told").read_text()) != os.getsid(0)


def test_a_command_that_reads_nothing_and_quotes_are_no_problem(tmp_path: Path) -> None:
    said: list[str] = []
    told = make(f"""printf '%s' "it's" '"so"' >> '{tmp_path}/to ld'\nexec 0<&-""", said)
    told.write(msgspec.structs.replace(END, reason="$(touch x)`'" + "x" * 1_000_000))
    told.close()
    assert (tmp_path / "to ld").read_text() == """it's"so\""""
    assert said == []


@pytest.fixture
def server() -> Iterator[tuple[str, list[bytes]]]:
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(500 if self.path == "/bad" else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_address_gets_a_post(server: tuple[str, list[bytes]]) -> None:
    address, got = server
    said: list[str] = []
    told = make(f"{address}/good", said)
    told.write(END)
    told.close()
    assert json.loads(got[0])["verdict"] == "success"
    assert said == []


def test_an_address_that_refuses_or_is_gone_costs_a_sentence(server: tuple[str, list[bytes]]) -> None:
    said: list[str] = []
    bad = make(f"{server[0]}/bad", said)
    bad.write(END)
    bad.close()
    gone = make(f"http://127.0.0.1:{free_port('127.0.0.1')}", said)
    gone.write(END)
    gone.close()
    assert "500" in said[0]
    assert "refused" in said[1]
    assert said[0].startswith(f"--notify {server[0]}: "), "the rest of an address may be a secret"


def test_a_slow_reader_bounds_what_is_kept_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "PENDING_MAX", 2)
    monkeypatch.setattr(teller, "END_LIMIT_S", 0.05)
    monkeypatch.setattr(notifier, "LIMIT_S", 1.0)
    said: list[str] = []
    told = make("sleep 1000", said)
    for _ in range(10):
        told.write(STOP)
    told.close()
    assert said == ["--notify sleep 1000: 2 events are waiting already, so the oldest is dropped"]
    assert told.thread.finish(30.0)


def test_what_is_not_told_at_the_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teller, "END_LIMIT_S", 0.05)
    monkeypatch.setattr(notifier, "LIMIT_S", 1.0)
    said: list[str] = []
    told = make("sleep 1000", said)
    told.write(END)
    told.close()
    assert said == ["--notify sleep 1000: the last event was not sent: it still runs after 0.05 s"]
    assert told.thread.finish(30.0)


def test_without_the_program_that_bounds_it_a_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="the program timeout is not on PATH"):
        make("cat", [])


@pytest.mark.parametrize("address", ["http://bob:hunter2@127.0.0.1/hook", "http://127.0.0.1:1/hunter2 path"])
def test_an_address_that_cannot_be_used_is_not_repeated(address: str) -> None:
    said: list[str] = []
    told = make(address, said)
    told.write(END)
    told.close()
    assert len(said) == 1
    assert "hunter2" not in said[0]


def test_events_that_find_no_thread_are_told_once_there_is_one(tmp_path: Path) -> None:
    said: list[str] = []
    told = make(f"cat >> {tmp_path}/told", said)
    with no_threads():
        told.write(STOP)
        told.write(END)
    told.thread.start()
    wait_until(lambda: (tmp_path / "told").exists() and (tmp_path / "told").read_text().count("\n") == 2)
    told.close()
    assert said == []


def test_events_that_find_no_thread_at_all_are_said_to_be_lost() -> None:
    said: list[str] = []
    told = make("cat", said)
    with no_threads():
        told.write(END)
        told.close()
    assert said == [f"--notify cat: the last event was not sent: {NO_THREAD}"]
