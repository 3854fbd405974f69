"""Attacks by other users of the machine, and by who may write to the store: the job and its round go on undisturbed.

Each claim of the lists in docs/reference/threat-model.md that says what somebody can do, or cannot, is tried here.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  (for a name of a host: a stranger may not read this Python)
import json
import os
import re
import signal
import socket
import time
from collections import deque
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.config.scrub import PRIVATE
from rendezvous import records
from rendezvous.records import Command, Drain, LeaderRecord, Seal, Stop, Verdict, encode
from rendezvous.stores.addresses import split_address
from rendezvous.stores.contract import Delete, KeyValue, Put
from rendezvous.stores.etcd.store import EtcdStore
from tests.support.jobs.attacks import ATTACK_S, Stranger, again_and_again
from tests.support.jobs.multi_node import Cluster
from tests.support.network.namespaces import loopback_hosts
from tests.support.reasons import because
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root"),
]

N1, N2 = loopback_hosts(2)
ALONE = ("--nproc-per-node=1", "--lease-ttl=15", "--nnodes=1:2", "--join-grace=0")
BOTH = ("--nproc-per-node=1", "--lease-ttl=15", "--nnodes=2", "--grow=never")
SECRET = {"LAUNCHER_JOB_SECRET": "only the job knows this"}
ELSEWHERE = "127.0.0.66"  # where an attacker listens


def client(etcd: EtcdServer) -> EtcdStore:
    """Somebody who may read and write the store."""
    return EtcdStore([etcd.endpoint], call_limit_s=15.0)


def finish(job: Cluster) -> None:
    """Let the workers end: all that were started were of the first round, and every agent ends well."""
    job.finish()
    assert {life.round for life in job.lives()} == {1}


def under(job: Cluster, prefix: str) -> list[dict[str, Any]]:
    """The job's records whose keys begin with this."""
    return [record for key, record in job.stored().items() if key.startswith(prefix)]


# --- what the job starts ---


def test_no_command_no_worker_and_no_log_is_given_a_secret(tmp_path: Path, etcd: EtcdServer) -> None:
    seen = {name: tmp_path / f"{name}.env" for name in ("notify", "check", "worker")}

    def show(name: str) -> str:
        return f"cat <&0 > /dev/null; env >> {seen[name]}"

    commands = (
        f"--notify={show('notify')}",
        f"--health-check={show('check')}",
        "--preload=json",
    )
    token = tmp_path / "token"
    token.write_text("sesame")
    env = {**SECRET, "LAUNCHER_STORE_TOKEN_FILE": str(token)}
    script = f"""
with open("{seen["worker"]}", "w") as file:
    file.write("".join(f"{{name}}={{text}}\\n" for name, text in os.environ.items()))
beat_until("../finish")
"""
    with Cluster(tmp_path, *ALONE, *commands, etcd=etcd, env=env, script=script) as job:
        job.begin(N1, workers=1)
        wait_until(lambda: all(path.exists() for path in seen.values()), 60, "what each was given")
        (ended,) = job.finish()
    assert not any(word in ended.stderr for word in ("sesame", *SECRET.values()))
    for name, path in seen.items():
        assert "PATH=" in path.read_text(), name
        assert not [secret for secret in PRIVATE if f"{secret}=" in path.read_text()], name


# --- another user of the machine ---


def test_unauthenticated_presence_connections_disturb_no_round_and_leave_descriptors_for_the_next(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    few = [host._replace(prefix=(*host.prefix, "prlimit", "--nofile=128:128")) for host in (N1, N2)]
    with Cluster(tmp_path, *BOTH, "--max-restarts=1", "--tee=3", etcd=etcd) as job:
        job.begin(*few, workers=2)
        addresses = [split_address(member["presence_address"]) for member in under(job, "members/")]
        assert len(addresses) == 2
        for kind in SAID.keys() - {"silent"}:
            with Stranger(partial(knock, addresses, kind, ATTACK_S / len(SAID))) as stranger:
                assert stranger.wait() > 0
        assert {life.round for life in job.lives()} == {1}
        before = max(open_files(one.pid) for one in job.jobs.values())
        with Stranger(partial(knock, addresses, "silent", ATTACK_S)) as stranger:
            wait_until(lambda: min(open_files(one.pid) for one in job.jobs.values()) > before + 10)
            os.kill(job[N1].worker_pids()[0], signal.SIGKILL)
            job.wait_for_round(2, 2)
            stranger.wait()
        job.finish()
    assert all("cannot be reached" not in one.stderr for one in job.jobs.values())


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


HELLO = ["hello", "dialler", "stranger", "127.0.0.1:9", "x", "0" * 32, ""]
SAID = {
    "silent": b"",
    "slow": b"[",
    "rubbish": b"GET / HTTP/1.1\r\n\r\n",
    "too long": b"x" * 20_000,
    "half a greeting": json.dumps(HELLO).encode() + b"\n",
}


def knock(addresses: list[tuple[str, int]], kind: str, limit_s: float) -> int:
    """Connections to presence ports, many at a time."""
    held: deque[socket.socket] = deque()

    def once() -> None:
        with suppress(OSError):
            end = socket.create_connection(addresses[len(held) % 2], 1.0)
            held.append(end)
            end.sendall(SAID[kind])
        if len(held) > 500:
            held.popleft().close()
            time.sleep(0 if kind != "silent" else 0.02)  # or else those who are waited for make room

    return again_and_again(once, limit_s)


# --- who may write to the store ---


def current(job: Cluster) -> str:
    """The prefix of all keys of the job, as who may read the store finds it."""
    return (
        f"/meshrun/{job.run_id}/{job.etcd.ctl('get', '--print-value-only', f'/meshrun/{job.run_id}/current').strip()}/"
    )


def tampered(item: KeyValue, **fields: object) -> bytes:
    """The value with other fields, and without a signature."""
    content = {key: value for key, value in json.loads(item.value).items() if key != "hmac"}
    return json.dumps({**content, **fields}).encode()


def listen(listener: socket.socket, limit_s: float) -> list[bytes]:
    """What each who dials says first; all are hung up on."""
    heard, end = [], time.monotonic() + limit_s
    while (left_s := end - time.monotonic()) > 0:
        listener.settimeout(left_s)
        with suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(1.0)
                heard.append(connection.recv(4096))
    return heard


@pytest.mark.parametrize("env", [{}, SECRET], ids=["without a secret", "with a secret"])
def test_a_secret_keeps_writers_of_the_store_from_dials_and_from_the_master_address(
    tmp_path: Path, etcd: EtcdServer, env: dict[str, str]
) -> None:
    with (
        Cluster(tmp_path, *BOTH, "--max-restarts=1", etcd=etcd, env=env) as job,
        closing(client(etcd)) as store,
        socket.create_server((ELSEWHERE, 0)) as listener,
    ):
        job.begin(N1, N2, workers=2)
        root = current(job)
        leader = store.get(root + "ctl/leader").first
        assert leader is not None
        address = f"{ELSEWHERE}:{listener.getsockname()[1]}"
        store.put(leader.key, tampered(leader, member_id="forged", presence_address=address))
        heard = listen(listener, ATTACK_S)
        if env:
            assert "forged" not in str(under(job, "ctl/leader"))  # somebody of the job has taken the key back
        else:
            store.txn((), (Delete(leader.key),))
            job.leader()
        assert {life.round for life in job.lives()} == {1}

        for item in store.get(root + "members/", prefix=True).items:
            description = json.loads(json.loads(item.value)["description"])
            text = json.dumps({**description, "address": ELSEWHERE})
            store.put(item.key, tampered(item, description=text), lease=item.lease)
        os.kill(job[N1].worker_pids()[0], signal.SIGKILL)
        job.wait_for_round(2, 2)
        (mark,) = wait_until(lambda: list(tmp_path.glob("*/began-0-2")))
        is_there = ELSEWHERE in mark.read_text()
        job.finish()
    print(f"{len(heard)} dials of two agents in {ATTACK_S:g} s, the first said {heard[:1]}")
    assert (is_there, bool(heard)) == (not env, not env)
    name = root.strip("/").rpartition("/")[2].encode()
    assert not [said for said in heard if name in said], "no key is shown to a leader that is none"
    assert len(heard) <= 2 * (9 + ATTACK_S / 3)
    said = "".join(one.stderr for one in job.jobs.values())
    count = 2 if env else 0  # each member's record, by who leads
    assert len(re.findall(r"members/\w+ was not written by an agent that knows the job's secret", said)) == count


def test_with_a_secret_no_order_of_anybody_else_is_obeyed(tmp_path: Path, etcd: EtcdServer) -> None:
    with Cluster(tmp_path, *BOTH, etcd=etcd, env=SECRET) as job, closing(client(etcd)) as store:
        job.begin(N1, N2, workers=2)
        names = records.Keys(current(job).rstrip("/"))
        sealed = store.get(names.round).first
        assert sealed is not None
        forged = {
            names.leader: LeaderRecord(member_id="forged", node_name="forged"),
            names.round: Seal(
                round=2, plan_token="forged", world_size=1, coordinator="forged", reason=because("enough")
            ),
            names.stop: Stop(round=1, reason=because("forged"), mode="kill"),
            names.verdict: Verdict(kind="stopped", exit_code=1, round=1, reason=because("forged")),
            names.make_drain_key(N1.name): Drain(node_name=N1.name),
            names.make_command_key("forged"): Command(kind="stop"),
        }
        again_and_again(lambda: [store.put(key, encode(record)) for key, record in forged.items()])
        store.txn((), (Put(sealed.key, sealed.value), *(Delete(key) for key in forged if key != sealed.key)))
        finish(job)
    for one in job.jobs.values():  # each node names what it reads, once
        named = re.findall(r"the value of (\S+) was not written by an agent that knows the job's secret", one.stderr)
        assert len(named) == len(set(named))
        assert {names.leader, names.round, names.stop, names.verdict} <= set(named) <= set(forged)
