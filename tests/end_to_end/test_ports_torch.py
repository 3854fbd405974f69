"""The held port against torch's own store: it serves on the port while the agent holds it, and nothing else can."""

from __future__ import annotations

import subprocess
import sys

import pytest

from launcher.ranks.ports import MasterPort

pytest.importorskip("torch")

SERVE = """
import datetime, sys
from torch.distributed import TCPStore
port, uses_libuv = int(sys.argv[1]), sys.argv[2] == "libuv"
limit = datetime.timedelta(seconds=30)
server = TCPStore("localhost", port, is_master=True, wait_for_workers=False, timeout=limit, use_libuv=uses_libuv)
client = TCPStore("localhost", port, is_master=False, timeout=limit, use_libuv=uses_libuv)
server.set("key", "value")
print(client.get("key").decode(), server.port)
"""
PROBE = """
import socket, sys
probe = socket.socket()
if sys.argv[2] == "reuse port":
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
probe.bind(("0.0.0.0", int(sys.argv[1])))
"""


def run(script: str, port: MasterPort, how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, str(port.number), how]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("kind", ["libuv", "own loop"])
def test_torch_s_store_serves_on_a_port_that_is_held(kind: str) -> None:
    held = MasterPort()
    try:
        for _ in range(2):  # a second round could serve there again
            done = run(SERVE, held, kind)
            assert (done.stdout, done.returncode) == (f"value {held.number}\n", 0), done.stderr
    finally:
        held.close()


@pytest.mark.parametrize("how", ["plain", "reuse port"])
def test_no_other_process_finds_the_port_free(how: str) -> None:
    held = MasterPort()
    try:
        assert "Address already in use" in run(PROBE, held, how).stderr
    finally:
        held.close()
