"""A job that runs while its etcd fails it: servers lost, rights and certificates taken away, no space, strange records.

Workers go on wherever nobody has to be restarted, and what is amiss stands on the agents' stderr in a sentence.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from rendezvous import __version__
from tests.support.jobs.multi_node import Cluster, NodeJob
from tests.support.network.namespaces import loopback_hosts
from tests.support.stores.etcd import EtcdCluster, EtcdServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.server

HOSTS = loopback_hosts(3)
N1, N2, N3 = HOSTS
LEASE_TTL_S = 3.0
OPTIONS = ("--nproc-per-node=1", f"--lease-ttl={LEASE_TTL_S:g}", "--nnodes=3")
CHEAP_PASSWORDS = ("--bcrypt-cost", "4")


def admit_trainer(server: EtcdServer, tmp_path: Path) -> str:
    """Have the server know users, one of whom the job is; the option that says so."""
    server.set_up_users(root_password="top", users={"trainer": ("right", "/meshrun/")})
    (tmp_path / "password").write_text("right\n")
    return f"--rdzv-conf=user=trainer,password_file={tmp_path / 'password'}"


def begin(job: Cluster) -> None:
    job.begin(*HOSTS, workers=3)


def require_one_round(job: Cluster) -> None:
    finish(job)
    assert {life.round for life in job.lives()} == {1}
    assert len(job.lives()) == 3


def finish(job: Cluster) -> None:
    """Let the workers end well."""
    job.finish()
    for node in job.jobs.values():
        node.wait_until_nobody_is_left()


def crash(node: NodeJob) -> None:
    """SIGKILL to its workers."""
    for pid in node.worker_pids():
        os.kill(pid, signal.SIGKILL)


def root_of(job: Cluster) -> str:
    """What the job's keys begin with."""
    run = f"/meshrun/{job.run_id}"
    return f"{run}/{job.etcd.ctl('get', '--print-value-only', f'{run}/current').strip()}"


def test_workers_continue_when_etcd_loses_a_server_its_leader_and_most(tmp_path: Path) -> None:
    with EtcdCluster("3.5", tmp_path / "etcd") as etcd, Cluster(tmp_path, *OPTIONS, etcd=etcd) as job:
        begin(job)
        leader = etcd.leader()
        follower, other = (server for server in etcd.members if server is not leader)
        follower.kill()
        job.live_on(0.5)
        follower.start()
        leader.kill()
        job.live_on(0.5 * LEASE_TTL_S)
        other.kill()
        job.live_on(1.7 * LEASE_TTL_S)
        job[N1].says("cannot be reached: connection refused; ")
        other.start(wait=False)
        leader.start()
        job.live_on(0.5 * LEASE_TTL_S)
        require_one_round(job)


def test_with_store_outage_stop_a_store_that_stays_away_ends_all_agents(tmp_path: Path, own_etcd: EtcdServer) -> None:
    with Cluster(tmp_path, *OPTIONS, "--store-outage=stop", "--rejoin-timeout=2", etcd=own_etcd) as job:
        begin(job)
        own_etcd.kill()
        for ended in job.wait(exit_code=75):
            assert ended.stdout == ""
            why = f"the store at {own_etcd.endpoint} cannot be reached: connection refused"
            assert f"meshrun: {why}\n" in ended.stderr
            assert ended.stderr.endswith(f"meshrun: could not join run {job.run_id} within 2 s: {why}\n")
        for node in job.jobs.values():
            node.wait_until_nobody_is_left()
        assert len(job.lives()) == 3


def test_a_job_reports_lost_rights_and_continues_once_they_are_back(tmp_path: Path) -> None:
    with EtcdServer("3.5", tmp_path / "etcd", flags=CHEAP_PASSWORDS) as server:
        conf = admit_trainer(server, tmp_path)
        with Cluster(tmp_path, *OPTIONS, "--lease-ttl=15", "--max-restarts=1", conf, etcd=server) as job:
            begin(job)
            server.ctl("role", "revoke-permission", "trainer", "--prefix", "/meshrun/")
            crash(job[N1])
            job[N1].says(f"the store at {server.endpoint} denies this user ")
            server.ctl("role", "grant-permission", "trainer", "--prefix=true", "readwrite", "/meshrun/")
            job.wait_for_round(2, 3)
            job[N1].says("the store answers again")
            finish(job)


def test_a_job_reports_a_full_server_and_continues_once_it_has_space(tmp_path: Path) -> None:
    with (
        EtcdServer("3.5", tmp_path / "etcd", quota_bytes=4 << 20) as server,
        Cluster(tmp_path, *OPTIONS, "--max-restarts=1", etcd=server) as job,
    ):
        begin(job)
        wait_until(lambda: is_full(server), 60, "a full server")
        job.live_on(1.2 * LEASE_TTL_S)
        assert len(job.lives()) == 3, "leases are kept without space"
        crash(job[N1])
        job[N1].says(
            f"the store at {server.endpoint} has no space left in its database (delete unused keys; for etcd also "
            "compact, defragment, then `etcdctl alarm disarm`)"
        )
        revision = json.loads(server.ctl("get", "/ballast", "--write-out=json"))["header"]["revision"]
        server.ctl("del", "/ballast")
        server.compact(revision)
        server.ctl("defrag")
        server.ctl("alarm", "disarm")
        job.wait_for_round(2, 3)
        job[N1].says("the store answers again")
        finish(job)


def is_full(server: EtcdServer) -> bool:
    """Whether it takes no further megabyte."""
    try:
        server.ctl("put", "/ballast", input=b"x" * (1 << 20))
    except subprocess.CalledProcessError as error:
        return b"space exceeded" in error.stderr
    return False


def test_a_job_whose_keys_are_deleted_ends_everywhere_with_a_sentence(tmp_path: Path, own_etcd: EtcdServer) -> None:
    with Cluster(tmp_path, *OPTIONS, "--lease-ttl=15", etcd=own_etcd) as job:
        begin(job)
        own_etcd.ctl("del", "--prefix", f"/meshrun/{job.run_id}/")
        sentence = f"run {job.run_id} was removed from the store, or another job was started under its name"
        for ended in job.wait(exit_code=75):
            assert (ended.stdout, ended.stderr.splitlines()[-1]) == ("", f"meshrun: {sentence}")
        for node in job.jobs.values():
            node.wait_until_nobody_is_left()


HOSTILE = (
    "not JSON",
    "[" * 5000,
    f'{{"version":"{__version__}"}}',
    '{"version":"99.1"}',
    f'{{"version":"{__version__}","member_id":7}}',
    "\udcff",
    json.dumps({"version": __version__, "round": 10**30, "reason": "\u001b[2J" * 100, "mode": "kill"}),
)


def test_strange_records_are_named_and_ignored(tmp_path: Path, own_etcd: EtcdServer) -> None:
    with Cluster(tmp_path, *OPTIONS, "--lease-ttl=15", etcd=own_etcd) as job:
        begin(job)
        root = root_of(job)
        member = next(key for key in job.stored() if key.startswith("members/"))
        leader = job[job.leader()]
        for number, value in enumerate(HOSTILE):
            for folder in ("members", "status", "ctl", "ctl/drained", "ctl/command", "history", "assign/1"):
                own_etcd.ctl("put", f"{root}/{folder}/stranger{number}", input=os.fsencode(value))
        own_etcd.ctl("put", f"{root}/status/{member.removeprefix('members/')}", "junk")
        for key in ("spares", "stop", "verdict"):
            own_etcd.ctl("put", f"{root}/ctl/{key}", "junk")
        leader.says("the last decision cannot be read: no decisions are made until its key is removed")
        for folder in ("members", "status", "ctl/drained", "ctl/command"):
            for number in range(len(HOSTILE)):
                leader.says(f"{root}/{folder}/stranger{number}")
        for node in job.jobs.values():
            node.says(f"the value of {root}/ctl/stop is not JSON, so it was not written by meshrun; it is ignored")
            assert "\x1b" not in node.stderr
        job.live_on(1.0)
        for key in ("stop", "verdict"):
            own_etcd.ctl("del", f"{root}/ctl/{key}")
        require_one_round(job)


SETTINGS_OF_HTTP2 = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


def test_a_store_that_goes_away_while_an_agent_starts_is_waited_for(tmp_path: Path) -> None:
    server = EtcdServer("3.5", tmp_path / "etcd")
    # Whoever looks finds a server, which has gone when it is asked something.
    with socket.create_server(("127.0.0.1", server.client_port)) as listener:
        job = Cluster(tmp_path, "--nproc-per-node=1", "--nnodes=1", etcd=server, script="")
        job.start(N1)
        connection, _ = listener.accept()
        with connection:
            listener.close()
            connection.sendall(SETTINGS_OF_HTTP2)
            connection.recv(1000)
    with job:
        job[N1].says(f"the store at {server.endpoint} cannot be reached: connection refused")
        with server:
            assert job[N1].wait().exit_code == 0
