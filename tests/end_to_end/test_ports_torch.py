"""The held port against torch's own store: it serves on the port while the agent holds it, and again after that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.ranks.ports import MasterPort
from tests.support.jobs.single_node import Job
from tests.support.modules import needs

pytestmark = needs("torch")

# Importing torch takes most of the time: the stores of two rounds, of each kind, are those of one process.
SERVE = """
import datetime, sys
from torch.distributed import TCPStore
port, limit = int(sys.argv[1]), datetime.timedelta(seconds=30)
for uses_libuv in (True, True, False, False):
    server = TCPStore("localhost", port, is_master=True, wait_for_workers=False, timeout=limit, use_libuv=uses_libuv)
    client = TCPStore("localhost", port, is_master=False, timeout=limit, use_libuv=uses_libuv)
    server.set("key", "value")
    print(client.get("key").decode(), server.port)
    del client, server
"""


def test_torch_s_store_serves_on_a_port_that_is_held() -> None:
    held = MasterPort()
    try:
        command = [sys.executable, "-c", SERVE, str(held.number)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.stdout, done.returncode) == (f"value {held.number}\n" * 4, 0), done.stderr
    finally:
        held.close()


MEETS = """
from torch import distributed
host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
url = {"init_method": f"tcp://{host}:{port}", "rank": RANK, "world_size": 2}
distributed.init_process_group("gloo", **(url if sys.argv[1] == "tcp" else {}))
distributed.barrier()
distributed.destroy_process_group()
mark("met", host)
"""
HOSTS = "127.0.0.1 localhost {name}\n::1 {alias}\n"


@pytest.mark.parametrize(("alias", "how"), [("localhost", "tcp"), ("ip6-localhost", "tcp"), ("ip6-localhost", "env")])
def test_an_ipv6_master_serves_scripts_that_write_its_address_into_a_url(tmp_path: Path, alias: str, how: str) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("no mount namespace, in which this host has another /etc/hosts")
    hosts = tmp_path / "hosts"
    hosts.write_text(HOSTS.format(name=os.uname().nodename, alias=alias))
    prefix = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts))
    options = ("--nproc-per-node=2", "--local-addr=::1")
    with Job(tmp_path, *options, script=MEETS, arguments=(how,), prefix=prefix) as job:
        assert job.wait(120).exit_code == 0, job.stderr
        assert job.marks("met", range(2)) == [alias] * 2
