"""meshctl doctor and the store: one that answers, refuses, is not there or too old, and one that agents serve."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.meshctl.doctor import network
from launcher.meshctl.doctor.examine import examine
from rendezvous.stores.server.server import StoreServer
from tests.cli.running import Call
from tests.support.network.namespaces import free_port
from tests.support.stores.certificates import Certificates
from tests.support.stores.etcd import EtcdServer


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """A store with users: "job" may do everything below its prefix, "reader" only read there."""
    with EtcdServer("3.4", tmp_path_factory.mktemp("etcd")) as server:
        server.ctl("role", "add", "reading")
        server.ctl("role", "grant-permission", "reading", "--prefix=true", "read", "/meshrun/")
        server.ctl("user", "add", "reader:right")
        server.ctl("user", "grant-role", "reader", "reading")
        server.set_up_users(root_password="root", users={"job": ("right", "/meshrun/")})
        yield server


def place(endpoint: str, *more: str) -> tuple[str, ...]:
    return ("--rdzv-backend=etcd", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job", "--nproc-per-node=1", *more)


def reached(given: tuple[str, ...], **environ: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """What is said of the store, and the level and words of what was found amiss with it."""
    found = examine(given, {"CUDA_VISIBLE_DEVICES": "", **environ})
    amiss = [(finding["level"], finding["seen"]) for finding in found["findings"] if finding["check"] == "store"]
    return found["store"], amiss


def nobody() -> str:
    return f"127.0.0.1:{free_port('127.0.0.1')}"


def test_doctor_reads_version_and_rights_of_the_store_and_writes_nothing(call: Call, etcd: EtcdServer) -> None:
    def revision() -> int:
        status = json.loads(etcd.ctl("endpoint", "status", "--write-out=json", user="root:root"))
        return int(status[0]["Status"]["header"]["revision"])

    before = revision()
    given = place(etcd.endpoint, "--rdzv-conf=user=job")
    outcome = call("meshctl", "doctor", "--", *given, environ={"LAUNCHER_ETCD_PASSWORD": "right"})
    assert (outcome.code, outcome.err) == (0, "")
    words = " ".join(outcome.out.split())
    assert f"etcd {etcd.endpoint} answers etcd 3.4" in words
    assert "answers, may read and write /meshrun/job/current as user job (" in words
    assert revision() == before
    assert etcd.ctl("get", "--prefix", "/", user="root:root") == ""


@pytest.mark.parametrize("secret", ["", "known to the job"])
def test_an_etcd_without_a_job_secret_is_noted(etcd: EtcdServer, secret: str) -> None:
    environ = {"LAUNCHER_ETCD_PASSWORD": "right", **({"LAUNCHER_JOB_SECRET": secret} if secret else {})}
    found = examine(place(etcd.endpoint, "--rdzv-conf=user=job"), {"CUDA_VISIBLE_DEVICES": "", **environ})
    noted = [(finding["level"], finding["seen"]) for finding in found["findings"] if finding["check"] == "secret"]
    assert noted == ([] if secret else [("note", "no job secret is set")])


def test_a_wrong_password_would_stop_a_job(call: Call, etcd: EtcdServer) -> None:
    environ = {"LAUNCHER_ETCD_PASSWORD": "wrong"}
    outcome = call("meshctl", "doctor", "--", *place(etcd.endpoint, "--rdzv-conf=user=job"), environ=environ)
    assert outcome.code == 1
    words = " ".join(outcome.out.split())
    assert "would stop a job: " in words
    assert f"the store at {etcd.endpoint} does not accept this user and password" in words
    assert outcome.out.startswith("verdict: 1 problem would stop a job here\n")


def test_a_user_who_may_only_read_would_stop_a_job(etcd: EtcdServer) -> None:
    found, amiss = reached(place(etcd.endpoint, "--rdzv-conf=user=reader"), LAUNCHER_ETCD_PASSWORD="right")
    assert found["state"] == "refuses"
    assert [level for level, _ in amiss] == ["stop"]
    assert "denies this user" in amiss[0][1]


def test_half_of_a_user_and_password_would_stop_a_job(etcd: EtcdServer) -> None:
    _, amiss = reached(place(etcd.endpoint, "--rdzv-conf=user=job"))
    assert amiss == [("stop", "etcd user job is set, but no password")]


def test_a_store_that_is_not_there_would_stop_a_job(call: Call) -> None:
    endpoint = nobody()
    outcome = call("meshctl", "doctor", "--json", "--", *place(endpoint))
    found = json.loads(outcome.out)
    assert outcome.code == 1
    assert (found["store"]["state"], found["store"]["endpoints"]) == ("absent", [endpoint])
    assert f"{endpoint} cannot be reached: Connection refused" in [finding["seen"] for finding in found["findings"]]
    assert not found["verdict"]["would_start"]


def test_a_store_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_check_store", lambda *_: threading.Event().wait(60))
    from launcher.agent import command

    config = command.parse([*place("127.0.0.1:1"), "train.py"], {})
    assert config.rendezvous.network is not None
    found = network.check_store(config.rendezvous, config.rendezvous.network, {}, limit_s=0.05)
    assert found.sentence == "127.0.0.1:1 did not answer within 0.05 s"
    assert [finding.level for finding in found.findings] == ["stop"]


def test_tls_is_used_and_a_missing_authority_would_stop_a_job(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    with EtcdServer("3.5", tmp_path / "etcd", tls=certificates) as server:
        found, amiss = reached(place(f"etcds://{server.endpoint}", f"--rdzv-conf=cacert={certificates.authority}"))
        assert (found["state"], found["tls"], amiss) == ("answers", True, [])
        assert found["version"].startswith("3.5")
        _, amiss = reached(place(f"etcds://{server.endpoint}", "--rdzv-conf=cacert=/no/such"))
        assert amiss == [("stop", "cacert=/no/such cannot be read: No such file or directory")]


def served(endpoint: str, *more: str) -> tuple[str, ...]:
    return ("--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--nnodes=2", "--nproc-per-node=1", *more)


def test_this_node_would_serve_the_store_where_it_is_named() -> None:
    found, amiss = reached(served(nobody()))
    assert (found["kind"], found["state"], found["served_by"], amiss) == ("served", "here", "this node", [])
    static = (
        "--nnodes=2",
        "--master-addr=127.0.0.1",
        f"--master-port={int(nobody().split(':')[1]) - 1}",
        "--nproc-per-node=1",
    )
    found, amiss = reached(static)
    assert (found["state"], found["served_by"], amiss) == ("here", "this node", [])


def test_a_store_that_another_node_is_to_serve_may_come_later() -> None:
    endpoint = nobody()
    found, amiss = reached(served(endpoint, "--rdzv-conf=is_host=0"))
    assert (found["state"], found["served_by"]) == ("absent", "the node with is_host=1")
    assert [level for level, _ in amiss] == ["note"]
    static = (
        "--nnodes=2",
        "--master-addr=127.0.0.1",
        f"--master-port={int(endpoint.split(':')[1]) - 1}",
        "--node-rank=1",
    )
    found, amiss = reached((*static, "--nproc-per-node=1"))
    assert found["served_by"] == "the agent of node rank 0"
    assert [level for level, _ in amiss] == ["note"]


def test_a_store_that_an_agent_serves_wants_its_token() -> None:
    server = StoreServer("127.0.0.1", 0, token="right")
    server.start()
    try:
        endpoint = f"127.0.0.1:{server.port}"
        found, amiss = reached(served(endpoint), LAUNCHER_STORE_TOKEN="right")
        assert (found["state"], amiss) == ("answers", [])
        _, amiss = reached(served(endpoint), LAUNCHER_STORE_TOKEN="wrong")
        assert [level for level, _ in amiss] == ["stop"]
    finally:
        server.close()


def test_the_address_that_others_would_be_told_and_why() -> None:
    found = examine(served(nobody(), "--local-addr=127.0.0.5"), {})["network"]
    assert (found["address"], found["reason"][:24]) == ("127.0.0.5", "set by --local-addr; nod")
    found = examine(served("192.0.2.1:1", "--rdzv-conf=is_host=0"), {"LAUNCHER_INTERFACE": "lo"})
    assert found["network"]["address"] == ""
    assert [finding["level"] for finding in found["findings"] if finding["check"] == "address"] == ["stop"]
