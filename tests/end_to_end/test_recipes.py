"""Recipes for Kubernetes, run as they are written: an etcd with TLS and jobs that meet in it, and a JobSet.

What is a cluster's is replaced: names by addresses of this machine, mounted files by files of the test, the port of
the metrics by a free one, eight GPUs by one worker, and of four pods there are two.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.documents.recipe_rules import replica_action
from tests.support.documents.recipes import KUBERNETES, Pod, documents, expand, pods
from tests.support.jobs.single_node import Job
from tests.support.network.namespaces import Host, loopback_hosts
from tests.support.stores.etcd import EtcdServer, Port, binary

TELL = """
mark("env", " ".join(os.environ[name] for name in ("WORLD_SIZE", "MESH_SHAPE", "TORCHELASTIC_RUN_ID")))
mark("secrets", " ".join(name for name in os.environ if name.startswith("LAUNCHER_") and "_FILE" in name) or "none")
"""


class Member(EtcdServer):
    """The first member of etcd.yaml with the recipe's own words, as a cluster of one."""

    certificates: Path

    def command(self) -> list[str]:
        [members] = [each for each in documents(KUBERNETES / "base" / "etcd.yaml") if each["kind"] == "StatefulSet"]
        [container] = members["spec"]["template"]["spec"]["containers"]
        places = {
            "0.0.0.0:2379": f"127.0.0.1:{self.client_port}",
            "etcd-0.etcd:2379": f"127.0.0.1:{self.client_port}",
            "0.0.0.0:2380": f"127.0.0.1:{self.peer_port}",
            "etcd-0.etcd:2380": f"127.0.0.1:{self.peer_port}",
            "0.0.0.0:2381": f"127.0.0.1:{self.health_port}",
            "/etc/etcd/tls/ca.crt": str(self.certificates / "ca.crt"),
            "/etc/etcd/tls/tls": str(self.certificates / "server"),
            "/var/lib/etcd": str(self.directory),
        }
        words = []
        for word in container["args"]:
            word = expand(word.partition(",etcd-1=")[0], {"POD_NAME": "etcd-0"})
            for usual, here in places.items():
                word = word.replace(usual, here)
            words.append(word)
        return [binary("3.5"), *words]


def start(directory: Path, pod: Pod, host: Host, here: dict[str, str], environ: dict[str, str]) -> Job:
    """The agent of a pod; `here`: what is in a pod -> what is on this machine."""
    own = directory / host.name
    own.mkdir(parents=True)
    variables = {**pod.environ, "LAUNCHER_LOCAL_ADDR": host.address, **environ}
    usual_here = {**here, "/checkpoints/logs": str(directory / "logs"), "0.0.0.0:9400": f"{host.address}:0"}
    for usual, place in usual_here.items():
        variables = {name: value.replace(usual, place) for name, value in variables.items()}
    at = pod.words.index("train.py")
    options = [word.replace("dp=*,tp=8", "dp=*") for word in pod.words[1:at]]
    return Job(own, *options, script=TELL, prefix=host.prefix, env=variables)


def run(directory: Path, found: list[Pod], here: dict[str, str], **environ: str) -> list[list[str]]:
    """One agent for each of these pods. What the workers found."""
    with ExitStack() as stack:
        hosts = loopback_hosts(len(found))
        each = zip(found, hosts, strict=True)
        jobs = [stack.enter_context(start(directory, pod, host, here, environ)) for pod, host in each]
        ended = [job.wait(120) for job in jobs]
        assert [one.exit_code for one in ended] == [0] * len(found), "\n".join(one.stderr for one in ended)
        rank_of = {job: next(rank for rank in range(len(found)) if job.has_mark("env", rank, 1)) for job in jobs}
        assert sorted(rank_of.values()) == list(range(len(found)))
        assert all(job.mark("secrets", rank, 1) == "none" for job, rank in rank_of.items())
        logs = (directory / "logs").glob("*_*/*/attempt_0/0/stdout.log")
        assert {path.parts[-4] for path in logs} == {pod.environ["LAUNCHER_NODE_NAME"] for pod in found}
        return [job.mark("env", rank, 1).split() for job, rank in rank_of.items()]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The recipe's etcd with the certificates of its script: what pods know of it -> what it is here."""
    certificates = tmp_path / "certificates"
    script = str(KUBERNETES / "etcd-certificates.sh")
    made = subprocess.run([script, str(certificates)], capture_output=True, timeout=60, check=True, text=True)
    assert "secret generic etcd-client-tls" in made.stdout
    (tmp_path / "secret").write_text("known to these two\n")
    member = Member("3.5", tmp_path / "etcd")
    member.certificates = certificates
    with member:
        yield {
            "etcd-0.etcd:2379,etcd-1.etcd:2379,etcd-2.etcd:2379": member.endpoint,
            "etcd-client:2379": member.endpoint,
            "/etc/meshrun/etcd/ca.crt": str(certificates / "ca.crt"),
            "/etc/meshrun/etcd/tls": str(certificates / "client"),
            "/etc/meshrun/job/secret": str(tmp_path / "secret"),
        }


@pytest.mark.server
@pytest.mark.parametrize("name", ["indexed-job.yaml", "jobset-etcd.yaml"])
def test_the_elastic_job_meets_in_the_recipes_etcd_with_its_certificates(
    name: str, here: dict[str, str], tmp_path: Path
) -> None:
    found = pods(documents(KUBERNETES / name))[:2]
    words = run(tmp_path, found, here, LAUNCHER_NPROC_PER_NODE="1", LAUNCHER_JOIN_GRACE="0")
    assert words == [["2", "2", found[0].config.rendezvous.run_id]] * 2


@pytest.mark.server
def test_a_pod_of_the_elastic_pytorchjob_that_met_nobody_comes_back_in_place_and_the_job_is_done(
    here: dict[str, str], tmp_path: Path
) -> None:
    """As the kubelet does under OnFailure: the same container again, after 75."""
    found = pods(documents(KUBERNETES / "pytorchjob-elastic.yaml"))[:2]
    environ = {"LAUNCHER_NPROC_PER_NODE": "1", "LAUNCHER_JOIN_GRACE": "0"}
    [host] = loopback_hosts(1)
    with start(tmp_path / "alone", found[0], host, here, {**environ, "LAUNCHER_START_TIMEOUT": "1"}) as job:
        assert job.wait().exit_code == 75
    assert replica_action("OnFailure", 75) == "Count"
    words = run(tmp_path, found, here, **environ)
    assert words == [["2", "2", "train-elastic-1"]] * 2


def test_the_job_set_meets_at_its_first_pod_without_a_server(tmp_path: Path) -> None:
    port = Port("127.0.0.2")
    (tmp_path / "token").write_text("of the store\n")
    (tmp_path / "secret").write_text("of the job\n")
    here = {
        "train-node-0-0.train:29400": f"127.0.0.2:{port.number}",
        "/etc/meshrun/store": str(tmp_path),
    }
    port.socket.close()
    found = pods(documents(KUBERNETES / "jobset.yaml"))[:2]
    words = run(tmp_path, found, here, PET_NPROC_PER_NODE="1", LAUNCHER_JOIN_GRACE="0")
    assert words == [["2", "2", "train"]] * 2
