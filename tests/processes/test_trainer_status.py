"""A TrainJob's progress, sent to a server with TLS: as Kubeflow's is, and as none should be."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.extensions.kubernetes import trainer_status
from launcher.extensions.kubernetes.trainer_status import TrainerReporter
from launcher.hardware.linux import figures, shared_page
from launcher.hardware.linux.shared_page import SharedPage
from launcher.model.concurrency import NO_THREAD
from launcher.views.run_events import AgentEnded, RoundEnded, RoundStarted, RunEvent, WorkerStarted
from tests.support.network.metadata_servers import Answering, Request, Serving, dripping, reply, serving, silence
from tests.support.stores.certificates import Certificates
from tests.support.threads import no_threads
from tests.support.waiting import wait_until

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ns/trainjobs/train/status"
TOKEN = "eyJhbGciOiJSUzI1NiJ9.first"
FAR = 60.0


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds, and all the time that a busy machine needs for an answer."""
    monkeypatch.setattr(trainer_status, "PAUSE_S", 0.05)
    monkeypatch.setattr(trainer_status, "PAUSE_MAX_S", 0.1)
    monkeypatch.setattr(trainer_status, "UNCHANGED_S", 0.1)
    monkeypatch.setattr(trainer_status, "LIMIT_S", 20.0)
    monkeypatch.setattr(trainer_status, "END_LIMIT_S", 20.0)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("trainer"), is_sparse=True)


@pytest.fixture
def page() -> SharedPage:
    made = shared_page.make()
    made.begin(2, None)
    return made


class Pod:
    """The files that a pod has from the Trainer, and a reporter with them."""

    def __init__(self, directory: Path, certificates: Certificates, page: SharedPage | None) -> None:
        self.token = directory / "token"
        self.token.write_text(TOKEN + "\n")
        self.ca = directory / "ca.crt"
        self.ca.write_text(Path(certificates.authority).read_text())
        self.pair = (certificates.server_certificate, certificates.server_key)
        self.page = page
        self.said: list[str] = []

    def serving(self, answer: Answering) -> Any:
        return serving(answer, self.pair)

    @contextmanager
    def reporting(self, answer: Answering, events: list[RunEvent]) -> Iterator[tuple[Serving, TrainerReporter]]:
        """A server, and a reporter that is told these events first and closed at the end."""
        with self.serving(answer) as server:
            reporter = self.make(server.address)
            tell(reporter, events)
            yield server, reporter
            reporter.close()

    def report(self, events: list[RunEvent]) -> Serving:
        """The server to which all of these events were reported."""
        with self.reporting(accept, events) as (server, _):
            return server

    def make(self, address: tuple[str, int], **environ: str) -> TrainerReporter:
        variables = {
            trainer_status.URL: f"https://{address[0]}:{address[1]}{PATH}",
            trainer_status.CA_FILE: str(self.ca),
            trainer_status.TOKEN_FILE: str(self.token),
            **environ,
        }
        return TrainerReporter(variables, self.page, self.said.append)


@pytest.fixture
def pod(tmp_path: Path, certificates: Certificates, page: SharedPage) -> Pod:
    return Pod(tmp_path, certificates, page)


def accept(request: Request) -> list[bytes]:
    """Kubeflow's server, as far as a client sees it: it wants the token, checks limits, and repeats the status."""
    if request.headers.get("authorization") != f"Bearer {TOKEN}":
        return reply({"kind": "Status", "message": "Forbidden"}, 403)
    if request.method != "POST" or request.path != PATH:
        return reply({"kind": "Status", "message": "Not found"}, 404)
    if len(request.body) > 1 << 16:
        return reply({"kind": "Status", "message": "Payload too large"}, 413)
    metrics = json.loads(request.body)["trainerStatus"].get("metrics", [])
    lengths = [len(one[key]) for one in metrics for key in ("name", "value")]
    if len(metrics) > 256 or not all(0 < length <= 64 for length in lengths):
        return reply({"kind": "Status", "message": "trainerStatus.metrics: Too many"}, 422)
    return reply(json.loads(request.body))


def start(number: int = 1, ranks: tuple[int, ...] = (0, 1), restarts: int = 0) -> list[RunEvent]:
    common: dict[str, Any] = {"at": time.time(), "run_id": "r", "node": "n0", "round": number}
    begun = RoundStarted(
        **common, world_size=4, node_count=2, ranks=ranks, mesh="dp=4", restart_count=restarts, max_restarts=9,
        waited_s=0.1,
    )  # fmt: skip
    return [begun, WorkerStarted(**common, rank=ranks[0], local_rank=0, pid=1)]


def finish(cause: Any = "end", verdict: str = "success", number: int = 1) -> list[RunEvent]:
    common: dict[str, Any] = {"at": time.time(), "run_id": "r", "node": "n0", "round": number}
    ended = RoundEnded(**common, cause=cause, reason="", ran_s=1.0)
    return [ended, AgentEnded(**common, exit_code=0, verdict=verdict, reason="")]


def tell(reporter: TrainerReporter, events: list[RunEvent]) -> None:
    for event in events:
        reporter.write(event)


def statuses(server: Serving) -> list[dict[str, Any]]:
    return [json.loads(request.body)["trainerStatus"] for request in list(server.requests)]


def metrics_of(status: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in status["metrics"]}


def set_step(page: SharedPage, line: int, step: int) -> None:
    page._write(line * shared_page.NUMBERS_PER_LINE + shared_page.REACHED_STEP, step + 1)


def write_figures(page: SharedPage, line: int, **words: Any) -> None:
    assert figures.write_figures(page.descriptor, line, json.dumps(words))


def test_the_status_holds_the_scripts_words_and_the_runs_own(pod: Pod, page: SharedPage) -> None:
    set_step(page, 1, 449)
    write_figures(page, 2, round=1, total=1000, metrics={"loss": "0.15", "nan": "nan", "restarts": "mine"})
    with pod.reporting(accept, start(restarts=3)) as (server, reporter):
        wait_until(lambda: len(server.requests) >= 2, FAR, "two statuses")
        set_step(page, 1, 998)
        tell(reporter, finish())
    first, last = statuses(server)[0], statuses(server)[-1]
    assert first["progressPercentage"] == 45
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first["lastUpdatedTime"])
    assert metrics_of(first) == {
        "round": "1", "world_size": "4", "goodput": metrics_of(first)["goodput"], "loss": "0.15", "nan": "nan",
        "restarts": "mine",
    }  # fmt: skip
    assert last["progressPercentage"] == 100
    assert last["estimatedRemainingSeconds"] == 0
    assert server.requests[0].headers["content-type"] == "application/json"
    assert pod.said == []


def test_a_round_that_failed_at_once_has_no_steps_of_the_round_before(
    pod: Pod, page: SharedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_status, "PAUSE_S", FAR)
    with pod.reporting(accept, start()) as (server, reporter):
        set_step(page, 1, 899)
        write_figures(page, 1, round=1, total=1000)
        status = reporter._make_status(0.0)
        assert status is not None
        assert status.percentage == 90
        reporter.write(start(2)[0])
        assert reporter._make_status(0.0) is None, "the page is that of round 1 until the workers of round 2 start"
        page.begin(2, None)
        tell(reporter, finish("failure", "failure", number=2))
    assert ["progressPercentage" in status for status in statuses(server)] == [False]


def test_a_run_that_is_over_at_once_has_its_last_state(pod: Pod) -> None:
    server = pod.report([*start(), *finish()])
    assert [status.get("progressPercentage") for status in statuses(server)] == [100]


@pytest.mark.parametrize(
    ("events", "is_sent"),
    [
        ([*start(), *finish()], True),
        ([*start(), *finish("failure", "failure")], True),
        ([*start(ranks=(2, 3)), *finish()], False),
        ([*start(), *start(2, (2, 3)), *finish(number=2)], False),
        ([*start(), *finish("leaving", "")], False),
        ([*start(), *finish("failure", "success")], False),  # it came back as a spare, and others succeeded
        ([*start(), *finish("growth", "stopped")], False),
    ],
)
def test_only_the_node_that_has_rank_0_at_the_end_has_the_last_word(
    pod: Pod, events: list[RunEvent], is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_status, "PAUSE_S", FAR)
    server = pod.report(events)
    assert bool(server.requests) == is_sent
    assert pod.said == []


def test_a_rotated_token_is_read_and_a_missing_one_is_said_once(pod: Pod) -> None:
    pod.token.unlink()
    with pod.reporting(accept, start()) as (server, _):
        wait_until(lambda: bool(pod.said), FAR, "a word on the token")
        pod.token.write_text("old")
        wait_until(lambda: len(pod.said) == 2, FAR, "a word on the old token")
        pod.token.write_text(TOKEN)
        count = len(server.requests)
        wait_until(lambda: len(server.requests) >= count + 4, FAR, "statuses with the new token")
    assert pod.said == [
        f"--progress kubeflow: the Trainer's server cannot be asked without a token: {pod.token}: "
        "No such file or directory",
        f"--progress kubeflow: the Trainer's server does not accept the token in {pod.token} (403)",
    ]
    assert server.requests[-1].headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("answer", "clause"),
    [
        (lambda _: reply({"message": "no"}, 413), "answers 413: no"),
        (lambda _: reply("", 302, Location="https://127.0.0.1:1/steal"), "answers 302"),
        (lambda _: [b"SSH-2.0-OpenSSH\r\n"], "returned a response that is not HTTP"),
        (lambda _: reply(b"x" * (1 << 20)), "returns more than 512 KiB"),
    ],
)
def test_trouble_of_each_kind_is_said_once_and_asked_again(pod: Pod, answer: Answering, clause: str) -> None:
    with pod.reporting(answer, start()) as (server, _):
        wait_until(lambda: len(server.requests) >= 4, FAR, "four tries")
    sentence = clause.replace("TOKEN", str(pod.token))
    assert pod.said == [f"--progress kubeflow: the Trainer's server {sentence}"]


def test_a_server_that_hangs_or_drips_holds_neither_the_loop_nor_the_end(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_status, "LIMIT_S", 0.2)
    monkeypatch.setattr(trainer_status, "END_LIMIT_S", 0.2)
    with silence() as address:
        reporter = pod.make(address)
        tell(reporter, start())
        wait_until(lambda: bool(pod.said), FAR, "a word on the silence")
        tell(reporter, finish())
        reporter.close()
    with pod.reporting(dripping(b"HTTP/1.1 200 OK\r\nA: b\r\n"), start()) as (server, reporter):
        wait_until(lambda: bool(server.requests), FAR, "a try")
        tell(reporter, finish())
    assert pod.said[0] == "--progress kubeflow: the Trainer's server does not answer within 0.2 s"
    assert {*pod.said} - {pod.said[0]}, "the last state is missing, and nothing says so"


def test_another_authority_is_not_trusted_with_the_token(pod: Pod, tmp_path: Path) -> None:
    other = Certificates(tmp_path / "other")
    pod.ca.write_text(Path(other.authority).read_text())
    with pod.reporting(accept, start()) as (server, _):
        wait_until(lambda: bool(pod.said), FAR, "a word on the certificate")
        pod.ca.write_text("no certificate")
        wait_until(lambda: len(pod.said) == 2, FAR, "a word on the file")
        assert server.requests == []
    assert "cannot be queried: unable to get local issuer certificate" in pod.said[0]
    assert f"{pod.ca} cannot be used" in pod.said[1]


def test_a_server_that_asks_for_a_pause_has_it_until_the_end(pod: Pod) -> None:
    with pod.reporting(lambda _: reply("", 429, Retry_After="3000"), start()) as (server, reporter):
        wait_until(lambda: bool(pod.said), FAR, "a word on the pause")
        tell(reporter, finish())
    assert len(server.requests) == 2, "the last state is sent all the same"
    assert pod.said[1:] == ["--progress kubeflow: the last state was not accepted: the Trainer's server answers 429"]


def test_variables_that_cannot_be_used_are_said_once_and_nothing_is_sent(pod: Pod) -> None:
    reporter = pod.make(("127.0.0.1", 1), **{trainer_status.URL: "http://127.0.0.1:1/x"})
    tell(reporter, [*start(), *start(2), *finish(number=2)])
    reporter.close()
    assert len(pod.said) == 1
    assert "https" in pod.said[0]


def test_hostile_figures_cost_nothing_but_themselves(pod: Pod, page: SharedPage) -> None:
    write_figures(page, 2, round=1, total=-5, metrics={f"m{number}": "x" * 65 for number in range(300)})
    for damage in (b"\xff" * 100, (8).to_bytes(4, "little") + b"\0\0\0\0[[[[[[[["):
        with pod.serving(accept) as server:
            reporter = pod.make(server.address)
            os.pwrite(page.descriptor, damage, figures.find_offset(1))
            tell(reporter, start())
            wait_until(lambda: bool(server.requests), FAR, "a status")
            reporter.close()
        assert len(statuses(server)[0]["metrics"]) == 256
        assert "progressPercentage" not in statuses(server)[0]
    assert {*pod.said} == {
        "--progress kubeflow: the Trainer takes 256 metrics of 1 to 64 characters and 64 KiB: others are left out"
    }


def test_figures_of_a_round_before_are_kept_until_there_are_new_ones(pod: Pod, page: SharedPage) -> None:
    write_figures(page, 1, round=1, total=10, metrics={"loss": "0.9"})
    set_step(page, 1, 4)
    with pod.reporting(accept, start()) as (server, reporter):
        wait_until(lambda: bool(server.requests), FAR, "a status of round 1")
        page.begin(2, None)
        tell(reporter, start(2, restarts=1))
        wait_until(lambda: metrics_of(statuses(server)[-1])["round"] == "2", FAR, "a status of round 2")
    last = statuses(server)[-1]
    assert metrics_of(last)["loss"] == "0.9"
    assert metrics_of(last)["restarts"] == "1"
    assert "progressPercentage" not in last, "how far the checkpoint reaches is not known before the first step"


def test_what_several_workers_of_the_node_say_is_put_together(pod: Pod, page: SharedPage) -> None:
    write_figures(page, 1, round=1, total=10, metrics={"loss": "0.9"})
    write_figures(page, 2, round=1, metrics={"accuracy": "0.5"})
    set_step(page, 2, 0)
    server = pod.report([*start(), *finish("failure", "failure")])
    [only] = statuses(server)
    assert (metrics_of(only)["loss"], metrics_of(only)["accuracy"], only["progressPercentage"]) == ("0.9", "0.5", 10)


def test_without_a_page_the_runs_own_metrics_are_sent(tmp_path: Path, certificates: Certificates) -> None:
    pod = Pod(tmp_path, certificates, None)
    server = pod.report([*start(), *finish("failure", "failure")])
    assert set(metrics_of(statuses(server)[-1])) == {"round", "world_size", "restarts", "goodput"}
    assert "progressPercentage" not in statuses(server)[-1]


def test_a_status_that_finds_no_thread_is_sent_once_there_is_one(pod: Pod, page: SharedPage) -> None:
    with pod.serving(accept) as server:
        reporter = pod.make(server.address)
        with no_threads():
            tell(reporter, start())
        reporter.thread.start()
        wait_until(lambda: server.requests, FAR, "a status")
        reporter.close()
    assert pod.said == []


def test_a_last_status_that_finds_no_thread_is_said_to_be_lost(pod: Pod) -> None:
    reporter = pod.make(("127.0.0.1", 1))
    with no_threads():
        tell(reporter, [*start(), *finish()])
        reporter.close()
    assert pod.said == [f"--progress kubeflow: the last state was not sent: {NO_THREAD}"]
