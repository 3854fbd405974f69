"""A whole job in a pod of a TrainJob: what its status says, and who says it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.extensions.kubernetes import trainer_status
from launcher.extensions.kubernetes.options import PROGRESS_VARIABLES
from tests.support.jobs.single_node import Job
from tests.support.network.metadata_servers import Request, Serving, reply, serving
from tests.support.stores.certificates import Certificates
from tests.support.waiting import wait_until

TOLD_NOTHING = """
assert not [name for name in os.environ if name.startswith(("KUBEFLOW_TRAINER_SERVER_", "LAUNCHER_PROGRESS"))]
"""
SCRIPT = f"""{TOLD_NOTHING}
from launcher.worker import progress
if RANK == 0:
    progress(499, total_steps=1000, metrics={{"loss": 0.25, "round": ROUND}})
if RANK == 1 and ROUND == 1:
    wait_for("fail")
    raise KeyError("bad")
mark("ready")
wait_for("finish")
"""


def accept(request: Request) -> list[bytes]:
    return reply(json.loads(request.body) if request.headers.get("authorization") == "Bearer token" else {}, 200)


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[tuple[Serving, dict[str, str]]]:
    """The Trainer's server, and the variables with which a pod finds it."""
    certificates = Certificates(tmp_path / "certificates", is_sparse=True)
    (tmp_path / "token").write_text("token")
    with serving(accept, (certificates.server_certificate, certificates.server_key)) as server:
        yield (
            server,
            {
                trainer_status.URL: f"https://127.0.0.1:{server.address[1]}/status",
                trainer_status.CA_FILE: certificates.authority,
                trainer_status.TOKEN_FILE: str(tmp_path / "token"),
            },
        )


def test_a_trainjob_shows_a_restart_the_scripts_metrics_and_the_end(
    trainer: tuple[Serving, dict[str, str]], tmp_path: Path
) -> None:
    server, variables = trainer
    assert {*variables} == {*PROGRESS_VARIABLES}
    options = ("--standalone", "--nproc-per-node=2", "--max-restarts=2", "--preload=json")
    with Job(tmp_path, *options, script=SCRIPT, env={**variables, "LAUNCHER_PROGRESS": "kubeflow"}) as job:
        wait_until(lambda: server.requests, 120, "the first status")
        (tmp_path / "fail").touch()
        job.marks("ready", range(2), 2)
        wait_until(lambda: b'"name":"restarts","value":"1"' in server.requests[-1].body, 120, "a status of round 2")
        (tmp_path / "finish").touch()
        assert job.wait().exit_code == 0
    first, *_, last = (json.loads(request.body)["trainerStatus"] for request in server.requests)
    metrics = {one["name"]: one["value"] for one in first["metrics"]}
    assert (first["progressPercentage"], metrics["loss"], metrics["round"]) == (50, "0.25", "1")
    assert (metrics["world_size"], metrics["restarts"]) == ("2", "0")
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)
    assert "--progress" not in job.stderr


def test_a_job_whose_server_is_gone_ends_as_it_would(tmp_path: Path) -> None:
    variables = {
        trainer_status.URL: "https://127.0.0.1:1/x",
        trainer_status.CA_FILE: "/no",
        trainer_status.TOKEN_FILE: "/no",
    }
    with Job(tmp_path, "--standalone", "--progress=kubeflow", script=TOLD_NOTHING, env=variables) as job:
        assert job.wait().exit_code == 0
    assert job.stderr.count("--progress kubeflow") == 1
    assert "the last state was not accepted: the Trainer's server cannot be asked without a token: /no" in job.stderr
