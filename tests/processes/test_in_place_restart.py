"""A pod of a JobSet that restarts in place: its agent's part, with an API server and controller on loopback."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.agent.startup import in_place_restart
from launcher.agent.startup.in_place_restart import JobSet, JobSetPod, RestartWatch, pass_barrier, wait_at_barrier
from launcher.cli import parse
from launcher.hardware import api_server
from launcher.hardware.metadata_server import NoAnswer
from launcher.model.errors import UsageError
from tests.support.network.job_sets import JobSets, job_sets
from tests.support.network.metadata_servers import Request, dripping, reply, serving
from tests.support.waiting import wait_until

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place_restart, "PAUSE_S", 0.01)
    monkeypatch.setattr(in_place_restart, "LIMIT_S", 20.0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[JobSets]:
    with job_sets(tmp_path, 2) as found:
        yield found


class PodThread:
    """A pod's agent that waits at the barrier, in a thread."""

    def __init__(self, cluster: JobSets, name: str) -> None:
        self.attempt: int | None = None
        self.error: UsageError | None = None
        pod = JobSetPod({**cluster.environ, "POD_NAME": name}, str(cluster.root))
        self._thread = threading.Thread(target=self._run, args=(pod,), daemon=True)
        self._thread.start()

    def _run(self, pod: JobSetPod) -> None:
        try:
            self.attempt = wait_at_barrier(pod)
        except UsageError as error:
            self.error = error

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def pass_barrier(self) -> int | None:
        self._thread.join(LIMIT_S)
        assert not self.waits
        return self.attempt


def test_pods_begin_together_and_again_with_the_next_attempt(cluster: JobSets) -> None:
    first = PodThread(cluster, "train-0")
    wait_until(lambda: cluster.attempts == {"train-0": 0}, LIMIT_S, "the first pod's attempt")
    assert first.waits
    second = PodThread(cluster, "train-1")
    assert (first.pass_barrier(), second.pass_barrier()) == (0, 0)
    again = PodThread(cluster, "train-1")
    wait_until(lambda: cluster.attempts["train-1"] == 1, LIMIT_S, "the next attempt")
    assert again.waits
    assert cluster.previous == 0
    assert PodThread(cluster, "train-0").pass_barrier() == 1
    assert again.pass_barrier() == 1


def test_a_pod_whose_attempt_is_over_at_the_barrier_takes_the_next(cluster: JobSets) -> None:
    late = PodThread(cluster, "train-0")
    wait_until(lambda: "train-0" in cluster.attempts, LIMIT_S, "its attempt")
    with cluster.changed:  # the others have been at attempt 4 before this pod was created
        cluster.current, cluster.previous = 3, 3
        cluster.version += 1
        cluster.changed.notify_all()
    wait_until(lambda: cluster.attempts["train-0"] == 4, LIMIT_S, "the next attempt")
    cluster.write("train-1", 4)
    assert late.pass_barrier() == 4


@pytest.mark.parametrize(("words", "attempt"), [((), 0), (("--attempt=7",), 7)])
def test_the_attempt_of_the_pod_is_that_of_the_run_unless_one_is_given(
    cluster: JobSets, words: tuple[str, ...], attempt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_server, "ACCOUNT", str(cluster.root) + api_server.ACCOUNT)
    cluster.pod_count = 1
    config, watch = pass_barrier(
        parse([*words, "--in-place-restart=jobset", "train.py"], {}), {**cluster.environ, "POD_NAME": "train-0"}
    )
    assert (config.attempt, watch is None) == (attempt, False)


@pytest.mark.parametrize("strategy", ["Recreate", "InPlaceRestart"])
def test_without_the_strategy_nothing_is_waited_for(cluster: JobSets, strategy: str) -> None:
    cluster.strategy = strategy
    if strategy == "InPlaceRestart":
        cluster.annotations["jobset.sigs.k8s.io/disable-in-place-restart"] = ""
    assert PodThread(cluster, "train-0").pass_barrier() is None
    assert cluster.attempts == {}


def test_a_server_in_trouble_is_asked_again(cluster: JobSets, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.pod_count = 1
    cluster.refusals = {"GET": [500, 500, 503], "PATCH": [409, 429]}
    assert PodThread(cluster, "train-0").pass_barrier() == 0
    said = capfd.readouterr().err
    assert said.count("the API server answers 500 to the request to read its JobSet; asking again") == 1
    assert said.count("asking again") == 4


@pytest.mark.parametrize(
    ("method", "status", "sentence"),
    [
        ("GET", 403, "the API server does not let this pod read its JobSet: a Role with get, list and watch of jobsets "
                     "in jobset.x-k8s.io, and patch of pods, is missing"),
        ("PATCH", 403, "the API server does not let this pod write an annotation of its pod"),
        ("GET", 404, "this pod cannot read its JobSet: the API server answers 404"),
    ],
)  # fmt: skip
def test_what_waiting_cannot_fix_is_the_users(cluster: JobSets, method: str, status: int, sentence: str) -> None:
    cluster.refusals[method] = [status]
    pod = PodThread(cluster, "train-0")
    pod.pass_barrier()
    assert sentence in str(pod.error)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"POD_NAME": ""}, "--in-place-restart jobset: POD_NAME is not set"),
        ({"JOBSET_NAME": "a/../b"}, "--in-place-restart jobset: JOBSET_NAME 'a/../b' is not a valid name"),
        ({"KUBERNETES_SERVICE_HOST": ""}, "no KUBERNETES_SERVICE_HOST, so no API server can be queried"),
    ],
)
def test_a_pod_that_lacks_a_variable_says_so(cluster: JobSets, changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        JobSetPod({**cluster.environ, "POD_NAME": "train-0", **changes}, str(cluster.root))
    assert sentence in str(error.value)


def test_a_watch_that_ends_begins_again_and_its_end_is_noticed(
    cluster: JobSets, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(in_place_restart.os, "kill", lambda *words: ended.append(words))
    cluster.pod_count = 1
    pod = JobSetPod({**cluster.environ, "POD_NAME": "train-0"}, str(cluster.root))
    assert wait_at_barrier(pod) == 0
    count = len(cluster.requests)
    cluster.refusals["GET"] = [500, 410, 403, 404]
    RestartWatch(pod, 0).start()
    wait_until(lambda: len([one for one in cluster.requests[count:] if "watch=true" in one]) >= 1, LIMIT_S, "a watch")
    cluster.pod_count = 2
    cluster.write("train-1", 0)
    assert ended == []
    cluster.write("train-1", 1)
    wait_until(lambda: ended, LIMIT_S, "the end of this pod")
    assert ended == [(os.getpid(), 15)]
    assert api_server.WATCH_S < 600


def test_a_refusal_of_what_was_allowed_before_is_asked_again(
    cluster: JobSets, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api_server, "WATCH_S", 0)
    monkeypatch.setattr(api_server, "WATCH_EXTRA_S", 0.05)
    first = PodThread(cluster, "train-0")
    wait_until(lambda: "train-0" in cluster.attempts, LIMIT_S, "its attempt")
    cluster.refusals["GET"] = [403, 404, 403, 404]
    wait_until(lambda: not cluster.refusals["GET"], LIMIT_S, "all refusals")
    assert PodThread(cluster, "train-1").pass_barrier() == 0
    assert first.pass_barrier() == 0
    assert "the API server answers 40" in capfd.readouterr().err


def test_a_watch_that_drips_is_given_up(cluster: JobSets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "WATCH_S", 0)
    monkeypatch.setattr(api_server, "WATCH_EXTRA_S", 0.2)
    made = cluster.certificates
    head = dripping(b"HTTP/1.1 200 OK\r\nA: b\r\n")
    body = dripping(b" ")

    def answer(request: Request) -> Iterator[bytes]:
        if "watch=true" not in request.path:
            yield from reply(cluster.make_object())
        elif is_head:
            yield from head(request)
        else:
            yield b"HTTP/1.1 200 OK\r\n\r\n"
            yield from body(request)

    with serving(answer, (made.server_certificate, made.server_key)) as server:
        environ = {**cluster.environ, "KUBERNETES_SERVICE_PORT": str(server.address[1]), "POD_NAME": "train-0"}
        pod = JobSetPod(environ, str(cluster.root))
        known = pod.read()
        is_head = False
        assert list(pod.watch(known)) == [], "a server that does not end its watch is asked again"
        is_head = True
        monkeypatch.setattr(in_place_restart, "LIMIT_S", 0.2)
        with pytest.raises(NoAnswer, match="does not answer within"):
            list(pod.watch(known))


def test_events_in_chunks_are_seen_as_they_come(cluster: JobSets) -> None:
    may_end = threading.Event()
    event = json.dumps({"type": "MODIFIED", "object": cluster.make_object()}).encode() + b"\n"

    def answer(request: Request) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        for part in (event, event[:20], event[20:]):
            yield b"%x\r\n%s\r\n" % (len(part), part)
        may_end.wait(LIMIT_S)
        yield b"0\r\n\r\n"

    made = cluster.certificates
    with serving(answer, (made.server_certificate, made.server_key)) as server:
        environ = {**cluster.environ, "KUBERNETES_SERVICE_PORT": str(server.address[1]), "POD_NAME": "train-0"}
        found = JobSetPod(environ, str(cluster.root)).watch(JobSet())
        assert [next(found).restarts_in_place for _ in range(2)] == [True, True]
        may_end.set()
        assert list(found) == []
