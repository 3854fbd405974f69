"""What a TrainJob is told, as values: limits, the time that is left, answers of a server, and what variables say."""

from __future__ import annotations

import json
from collections import deque
from functools import partial

import pytest

from launcher.extensions.kubernetes import trainer_status
from launcher.hardware.metadata_server import HttpResponse, NoAnswer

GOOD = {trainer_status.URL: "https://t.kubeflow.svc:10443/a/b/status", trainer_status.CA_FILE: "/ca",
        trainer_status.TOKEN_FILE: "/token"}  # fmt: skip
NO_ADDRESS = "KUBEFLOW_TRAINER_SERVER_URL is not an https:// address of a server, so no progress is reported"


def test_a_status_and_its_metrics_are_what_the_trainers_server_reads() -> None:
    status = trainer_status.TrainerStatus(percentage=45, remaining_s=120, metrics=(("loss", "0.15"),))
    assert json.loads(status.encode(1_795_352_400.9)) == {
        "trainerStatus": {
            "progressPercentage": 45,
            "estimatedRemainingSeconds": 120,
            "metrics": [{"name": "loss", "value": "0.15"}],
            "lastUpdatedTime": "2026-11-22T13:00:00Z",
        }
    }
    nothing = trainer_status.TrainerStatus(percentage=None, remaining_s=None, metrics=())
    assert set(json.loads(nothing.encode(0.0))["trainerStatus"]) == {"lastUpdatedTime"}
    assert trainer_status.limit_metrics([("loss", "0.1")]) == ((("loss", "0.1"),), "")
    kept, remark = trainer_status.limit_metrics((f"m{number}", "1") for number in range(300))
    assert len(kept) == 256
    assert remark == "the Trainer takes 256 metrics of 1 to 64 characters and 64 KiB: others are left out"
    kept, remark = trainer_status.limit_metrics([("n" * 65, "v" * 65), ("", "1"), ("empty", "")])
    assert kept == (("n" * 64, "v" * 64),)
    assert remark == "the Trainer takes 256 metrics of 1 to 64 characters and 64 KiB: others are left out"
    kept, remark = trainer_status.limit_metrics(
        (f"{number:02}" + "\U0001f600" * 62, "\U0001f600" * 64) for number in range(256)
    )
    body = trainer_status.TrainerStatus(percentage=100, remaining_s=2**31 - 1, metrics=kept).encode(0.0)
    assert 50_000 < len(body) <= 1 << 16
    assert "64 KiB" in remark


def test_the_rest_follows_the_last_steps_and_the_server_the_variables() -> None:
    samples: deque[tuple[float, int]] = deque(maxlen=60)
    estimate = partial(trainer_status.estimate_remaining_s, samples)
    assert estimate(9, 100, 0.0) is None
    assert estimate(9, 100, 5.0) is None, "a job that stands still takes any time"
    assert estimate(19, 100, 10.0) == 80
    assert estimate(99, 100, 20.0) == 0
    assert estimate(120, 100, 25.0) == 0
    samples.clear()
    assert estimate(0, 10**30, 0.0) is None
    assert estimate(1, 10**30, 5.0) == 2**31 - 1
    server = trainer_status.find_server(GOOD)
    assert (server.host, server.port, server.path) == ("t.kubeflow.svc", 10443, "/a/b/status")
    server = trainer_status.find_server({**GOOD, trainer_status.URL: "https://[::1]/x?y=1"})
    assert (server.host, server.port, server.path) == ("::1", 443, "/x?y=1")


def answer(status: int, text: str = "", **headers: str) -> HttpResponse:
    return HttpResponse(status, text, {name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    ("found", "clause"),
    [
        (answer(200, '{"trainerStatus": {}}'), ""),
        (answer(401), "does not accept the token in /token (401)"),
        (answer(403), "does not accept the token in /token (403)"),
        (answer(413, "too large"), "answers 413"),
        (answer(422, '{"message": "progress: 101\\u001b[2J"}'), r"answers 422: 'progress: 101\x1b[2J'"),
        (answer(429), "answers 429"),
        (answer(302, location="http://elsewhere"), "answers 302"),
        (answer(500, '{"message": ' + "[" * 100_000), "answers 500"),
    ],
)  # fmt: skip
def test_each_answer_has_its_sentence(found: HttpResponse, clause: str) -> None:
    assert trainer_status.describe_refusal(found, "/token") == clause


@pytest.mark.parametrize(
    ("found", "count", "pause_s"),
    [
        (None, 1, 10.0), (None, 2, 20.0), (None, 50, 300.0), (answer(500, retry_after="99"), 1, 10.0),
        (answer(429, retry_after="120"), 1, 120.0), (answer(429, retry_after="1"), 1, 10.0),
        (answer(429, retry_after="999999999"), 1, 3600.0), (answer(429, retry_after="9" * 40), 1, 10.0),
        (answer(429, retry_after="Sun, 22 Nov 2026 13:00:00 GMT"), 1, 10.0), (answer(503, retry_after="40"), 1, 40.0),
    ],
)  # fmt: skip
def test_pauses_grow_and_a_server_may_ask_for_others(found: HttpResponse | None, count: int, pause_s: float) -> None:
    assert trainer_status.find_pause_s(found, count) == pause_s


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({}, "KUBEFLOW_TRAINER_SERVER_URL is not set, so no progress is reported; the Trainer sets it where its "
             "feature gate TrainJobStatus is on"),
        ({**GOOD, trainer_status.TOKEN_FILE: ""}, "KUBEFLOW_TRAINER_SERVER_TOKEN is not set, so no progress is "
         "reported; the Trainer sets it where its feature gate TrainJobStatus is on"),
        ({**GOOD, trainer_status.URL: "http://t/x"}, NO_ADDRESS),
        ({**GOOD, trainer_status.URL: "https://t:port/x"}, NO_ADDRESS),
        ({**GOOD, trainer_status.URL: "https:///x"}, NO_ADDRESS),
        ({**GOOD, trainer_status.URL: "https://me:pw@t/x"}, NO_ADDRESS),
        ({**GOOD, trainer_status.URL: "https://t/x\r\nHost: y"}, NO_ADDRESS),
    ],
)  # fmt: skip
def test_variables_that_cannot_be_used_cost_a_sentence(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(NoAnswer) as error:
        trainer_status.find_server(environ)
    assert str(error.value) == sentence
