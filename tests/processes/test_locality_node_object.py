"""Kubernetes' API server, asked for the labels of a pod's node: as documented, and as it should not be."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.hardware import api_server
from launcher.locality import kubernetes
from launcher.locality.contract import Hints
from tests.support.network.metadata_servers import Answering, Request, Serving, reply, serving, silence
from tests.support.stores.certificates import Certificates

LIMIT_S = 20.0  # for servers that answer
SHORT_S = 0.15  # for those that do not


@pytest.fixture(autouse=True)
def on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers has all the time it needs."""
    monkeypatch.setattr(kubernetes, "LIMIT_S", LIMIT_S)


def levels(hints: Hints) -> dict[str, str]:
    return {level.name: level.domain for level in hints.levels}


TOKEN = "AQAEAHx0aGUgdG9rZW4tZm9yLXRlc3Rz=="
ACCOUNT = "system:serviceaccount:training:default"
LABELS = {"topology.kubernetes.io/zone": "z1", "fabric.topograph.run/tier-0": "l3", "fabric.topograph.run/tier-1": "s1"}


class Cluster:
    """A pod's files, and an API server that wants its token. `labels`: of the only node, gpu-7."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory / "certificates", is_sparse=True)
        self.root = directory / "pod"
        self.account = self.root / api_server.ACCOUNT.lstrip("/")
        self.account.mkdir(parents=True)
        self.reset()

    def reset(self) -> None:
        (self.account / "token").write_text(TOKEN + "\n")
        (self.account / "ca.crt").write_text(Path(self.certificates.authority).read_text())

    def answer(self, request: Request) -> list[bytes]:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return reply({"kind": "Status", "reason": "Unauthorized"}, 401)
        if request.path != "/api/v1/nodes/gpu-7":
            return reply({"kind": "Status", "reason": "NotFound"}, 404)
        return reply({"kind": "PartialObjectMetadata", "metadata": {"name": "gpu-7", "labels": {**LABELS, "odd": 5}}})

    def serving(self, answer: Answering | None = None) -> Any:
        return serving(answer or self.answer, (self.certificates.server_certificate, self.certificates.server_key))

    def look(self, server: Serving, limit_s: float = LIMIT_S, **environ: str) -> Hints:
        host, port = server.address
        said = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port), "NODE_NAME": "gpu-7", **environ}
        return kubernetes.Source(root=str(self.root)).look(said, limit_s)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("cluster"))


@pytest.fixture
def cluster(made: Cluster) -> Iterator[Cluster]:
    yield made
    made.reset()


def test_the_labels_of_the_node_are_asked_for_with_the_pod_s_account(cluster: Cluster) -> None:
    with cluster.serving() as server:
        hints = cluster.look(server)
    assert levels(hints) == {"zone": "z1", "spine": "s1", "leaf": "l3"}
    assert hints.levels[-1].origin == "node label fabric.topograph.run/tier-0"
    assert hints.reason == "node labels"
    [request] = server.requests
    assert request.headers["accept"].startswith("application/json;as=PartialObjectMetadata")


def test_the_token_is_read_anew_each_time(cluster: Cluster) -> None:
    (cluster.account / "token").write_text("an-old-one")
    with cluster.serving() as server:
        hints = cluster.look(server)
        assert hints == Hints((), "the API server does not accept the token of the pod's service account")
        cluster.reset()
        assert cluster.look(server).levels


def test_an_account_that_may_not_is_told_which_rule_is_missing(cluster: Cluster) -> None:
    message = f'nodes "gpu-7" is forbidden: User "{ACCOUNT}" cannot get resource "nodes" in API group ""'
    with cluster.serving(lambda _: reply({"kind": "Status", "message": message}, 403)) as server:
        hints = cluster.look(server)
    assert hints == Hints(
        (),
        f"the API server does not let {ACCOUNT} read its node: a ClusterRole with "
        'apiGroups [""], resources [nodes], verbs [get] is missing',
    )


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"NODE_NAME": "gpu-8"}, "the API server knows no node gpu-8: NODE_NAME must be spec.nodeName"),
        ({"NODE_NAME": ""}, "NODE_NAME is not set from spec.nodeName"),
        ({"NODE_NAME": "../../secrets"}, "'../../secrets' is not the name of a Kubernetes node"),
        ({"NODE_NAME": "a\r\nb"}, "is not the name of a Kubernetes node"),
        ({"KUBERNETES_SERVICE_HOST": ""}, "no API server can be queried"),
        (
            {"KUBERNETES_SERVICE_PORT": "tcp://10.0.0.1:443"},
            "'tcp://10.0.0.1:443' is not a valid port of an API server",
        ),
    ],
)
def test_what_a_pod_is_told_wrongly_is_named(cluster: Cluster, environ: dict[str, str], reason: str) -> None:
    with cluster.serving() as server:
        hints = cluster.look(server, LIMIT_S, **environ)
    assert not hints.levels
    assert reason in hints.reason
    assert TOKEN not in hints.reason


def test_the_node_s_name_may_stand_where_meshrun_has_it(cluster: Cluster) -> None:
    with cluster.serving() as server:
        assert cluster.look(server, NODE_NAME="", LAUNCHER_NODE_NAME="gpu-7").levels


def test_an_authority_that_python_3_13_finds_too_sparse_is_good_enough(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ssl.create_default_context

    def as_of_3_13(*words: Any, **more: Any) -> ssl.SSLContext:
        context = usual(*words, **more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", as_of_3_13)
    with cluster.serving() as server:
        assert cluster.look(server).levels


def test_a_server_that_the_cluster_does_not_vouch_for_gets_no_token(cluster: Cluster, tmp_path: Path) -> None:
    (cluster.account / "ca.crt").write_text(Path(Certificates(tmp_path).authority).read_text())
    with cluster.serving() as server:
        hints = cluster.look(server)
    assert not server.requests
    assert "the API server cannot be queried" in hints.reason
    assert "certificate" in hints.reason


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("token", None, "no token of a service account (automountServiceAccountToken)"),
        ("token", "", "does not contain a token"),
        ("token", "two words", "does not contain a token"),
        ("token", "nämlich", "does not contain a token"),
        ("ca.crt", None, "ca.crt cannot be used: No such file or directory"),
        ("ca.crt", "no certificate", "ca.crt cannot be used: "),
    ],
)
def test_files_of_the_account_that_cannot_be_used_are_named(
    cluster: Cluster, file: str, content: str | None, reason: str
) -> None:
    (cluster.account / file).unlink()
    if content is not None:
        (cluster.account / file).write_text(content)
    with cluster.serving() as server:
        hints = cluster.look(server)
    assert not server.requests
    assert reason in hints.reason


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: reply("<html>"), lambda _: reply("[]"), lambda _: reply({"metadata": 5}),
        lambda _: reply({"metadata": {"labels": ["fabric.topograph.run/tier-0"]}}), lambda _: reply({}, 500),
        lambda _: reply({"metadata": {"labels": {"fabric.topograph.run/tier-0": "\n"}}}),
        lambda _: reply("", 302, Location="https://127.0.0.1:1/"), lambda _: [b"nonsense"],
    ],
)  # fmt: skip
def test_nonsense_of_an_api_server_gives_a_reason(cluster: Cluster, answer: Answering) -> None:
    with cluster.serving(answer) as server:
        hints = cluster.look(server)
    assert not hints.levels
    assert hints.reason
    assert hints.reason.isprintable()


def test_an_api_server_that_is_silent_is_left_at_the_limit(cluster: Cluster) -> None:
    with silence() as address:
        hints = cluster.look(Serving(address, []), limit_s=SHORT_S)
    assert hints == Hints((), "the API server does not answer within 0.15 s")


def test_nobody_is_asked_where_labels_that_were_handed_in_name_switches(cluster: Cluster) -> None:
    with cluster.serving() as server:
        hints = cluster.look(server, LAUNCHER_NODE_LABELS="fabric.topograph.run/tier-0=l9")
        assert levels(hints) == {"leaf": "l9"}
        assert not server.requests
        hints = cluster.look(server, LAUNCHER_NODE_LABELS="topology.kubernetes.io/zone=z9")
        assert levels(hints) == {"zone": "z9", "spine": "s1", "leaf": "l3"}
        assert hints.reason == "LAUNCHER_NODE_LABELS; node labels"
