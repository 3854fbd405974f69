"""The held port against torch's own store: it serves on the port while the agent holds it, and again after that."""

from __future__ import annotations

import subprocess
import sys

from launcher.ranks.ports import MasterPort
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
