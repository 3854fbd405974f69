"""torch's own torchrun on several loopback addresses, with this project's rendezvous: one agent per address.

Workers write down what they were told, a line of JSON each, into one file that all agents' workers share.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from tests.support.jobs.single_node import Command
from tests.support.stores.etcd import EtcdServer
from tests.support.waiting import wait_until

PRELUDE = """
import json, os, sys, time
NAMES = ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
SEEN = {name: int(os.environ[name]) for name in NAMES}
SEEN |= {"NODE": os.environ["LAUNCHER_NODE_NAME"], "PID": os.getpid(), "ADDR": os.environ["MASTER_ADDR"]}
SEEN |= {"SHARED": os.environ["TORCHELASTIC_USE_AGENT_STORE"]}

def tell(**more):
    with open("../seen", "a") as file:
        file.write(json.dumps(SEEN | more) + "\\n")

def wait_for(name):
    while not os.path.exists("../" + name):
        time.sleep(0.01)

"""
# What the tests end by putting a file there.
UNTIL_FINISH = "tell()\nwait_for('finish')\n"
LIMIT_S = 120.0  # torchrun alone takes seconds to start where others want the same cores
SETTLED = {"LAUNCHER_JOIN_GRACE": "0", "LAUNCHER_GROW": "delay=0"}


class Torchruns:
    """One job: stock torchruns that meet in an etcd. At the end all of their processes are killed by pid."""

    def __init__(
        self,
        directory: Path,
        server: EtcdServer,
        *options: str,
        script: str,
        run_id: str = "",
        environ: dict[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._environ = {**SETTLED, **(environ or {})}
        self._endpoint = server.endpoint
        self._options = options
        self.run_id = run_id or f"job-{secrets.token_hex(4)}"
        self._stack = ExitStack()
        self.agents: dict[str, Command] = {}
        (directory / "train.py").write_text(PRELUDE + script)

    def __enter__(self) -> Torchruns:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stack.close()
        if kind is not None:
            for name, agent in self.agents.items():
                print(f"--- {name} said:\n{agent.stderr}")

    def start(self, number: int, *options: str) -> Command:
        """The agent of node `number`, from 1, at 127.0.0.<20 + number>."""
        name = f"n{number}"
        kept = {key: text for key, text in os.environ.items() if not key.startswith(("LAUNCHER_", "PET_", "TORCHEL"))}
        kept["LAUNCHER_LOG_TIMES"] = "off"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=meshrun"),
            *(f"--rdzv-endpoint={self._endpoint}", f"--rdzv-id={self.run_id}"),
            *(f"--local-addr=127.0.0.{20 + number}", *self._options, *options, "../train.py"),
        ]
        kept["OMP_NUM_THREADS"] = "1"
        directory = self._directory / name
        directory.mkdir(exist_ok=True)
        agent = Command(directory, command, {**kept, **self._environ, "LAUNCHER_NODE_NAME": name})
        self._stack.push(agent)
        self.agents[name] = agent
        return agent

    def finish(self) -> None:
        """Let the workers of UNTIL_FINISH end."""
        (self._directory / "finish").touch()

    def seen(self) -> list[dict[str, Any]]:
        """What workers have told so far, in the order in which they did."""
        with suppress(FileNotFoundError):
            lines = (self._directory / "seen").read_text().splitlines()
            return [json.loads(line) for line in lines]
        return []

    def wait_for(self, count: int, **values: Any) -> list[dict[str, Any]]:
        """Wait until so many workers have told these values; what they told."""

        def found() -> list[dict[str, Any]]:
            return [one for one in self.seen() if values.items() <= one.items()]

        words = f"{count} workers with {values} among {self.seen()}"
        wait_until(lambda: len(found()) >= count or None not in self._exit_codes(), LIMIT_S, words)
        assert len(found()) >= count, f"torchrun ended before there were {words}"
        return found()

    def _exit_codes(self) -> list[int | None]:
        return [agent.exit_code for agent in self.agents.values()]

    def wait(self) -> dict[str, int]:
        """Wait for all agents that have not been killed; their exit codes by name."""
        return {name: agent.wait(LIMIT_S).exit_code for name, agent in self.agents.items()}


def kill(agent: Command) -> None:
    """SIGKILL to the agent and its workers: the node has lost its power."""
    for pid in agent.left():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
