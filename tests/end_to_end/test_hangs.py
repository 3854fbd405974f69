"""Planted hangs, of torch and of JAX: `meshctl why` names the rank at fault, on one node and on two.

The scripts are those of examples/hangs. Nothing is told before every rank has printed "ready"; from then on the first
answer that accuses must accuse the right one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.jobs.single_node import Command
from tests.support.modules import needs
from tests.support.network.namespaces import DROP, Network, free_port, run_tc, why_no_namespaces
from tests.support.processes.tree import REPOSITORY
from tests.support.waiting import wait_until

SCRIPTS = REPOSITORY / "examples" / "hangs"
RUN_ID = f"hang-{os.getpid()}"
START_LIMIT_S, ANSWER_LIMIT_S = 180.0, 60.0


class Hang(NamedTuple):
    """`told`: part of a sentence. What stacks alone tell may be wrong as long as the others have not arrived.

    With a `preload` each agent imports once, in place of each worker; and it opens torch's recorder, without which some
    hangs are found, too.
    """

    kind: str
    culprits: list[int]
    told: str
    world: int = 4
    options: tuple[str, ...] = ()
    agents: int = 1
    preload: str = "torch"


HANGS = {
    "busy": Hang("late", [3], "rank 3 is in search (busy.py:", preload=""),
    "chain": Hang("late", [5], "4 more ranks wait for these", 8, ("--mesh=pp=2,dp=2,tp=2",)),
    "gil": Hang("late", [1], "rank 1 is in call_extension (gil.py:"),
    "jax_sleep": Hang("odd", [1], "rank 1 is in evaluate (jax_sleep.py:", 2, ("--framework=jax",), 2, ""),
    "leaves_early": Hang("odd", [1], "rank 1 has ended with exit code 0"),
    "loader": Hang("late", [3], "rank 3 has not entered all_reduce 4 of default_pg [0-3]; 3 others have waited"),
    "other_operation": Hang("mismatch", [1], "all_reduce by ranks 0, 2, 3, broadcast by rank 1", agents=2),
    "other_size": Hang("mismatch", [1], "all_reduce of Float[4] by ranks 0, 2, 3, all_reduce of Float[0] by rank 1"),
    "stopped": Hang("late", [2], "rank 2 is stopped by a signal or a debugger"),
    "two_groups": Hang("deadlock", [0, 1], "rank 1 waits in all_reduce 2 of statistics [0, 1] for rank 0", 2),
}
CUT = Hang("stuck", [], "all 4 members have entered all_reduce")
FRAMEWORK = {"jax_sleep": "jax"}


class Hanging:
    """The agents of one job. `prefix`: what to put before each, as for a host."""

    def __init__(self, directory: Path, name: str, hang: Hang, prefix: tuple[str, ...] = ()) -> None:
        agents = hang.agents
        self.directory, self._stack, self._jobs = directory, ExitStack(), list[Command]()
        self._environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu"}
        self._environ |= {"TMPDIR": str(directory)}
        self._store = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port('127.0.0.1')}")
        workers = (f"--nproc-per-node={hang.world // agents}", *([f"--preload={hang.preload}"] if hang.preload else []))
        for index in range(agents):
            own = directory / f"n{index}"
            own.mkdir()
            nodes = (f"--nnodes={agents}", f"--node-name=n{index}", f"--local-addr=127.0.0.{index + 2}", *self._store)
            meeting = ("--standalone",) if agents == 1 else (*nodes, f"--rdzv-id={RUN_ID}")
            words = (*meeting, *workers, *hang.options, str(SCRIPTS / f"{name}.py"))
            command = [*prefix, sys.executable, "-m", "launcher", *words]
            self._jobs.append(self._stack.enter_context(Command(own, command, self._environ)))
        # Other jobs of this user are not asked.
        self._where = (str(self._jobs[0].pid),) if agents == 1 else (RUN_ID, *self._store)
        self._prefix = prefix
        self._world = hang.world

    def __enter__(self) -> Hanging:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stack.close()
        if kind is not None:
            print(*(f"{job.stdout}{job.stderr}" for job in self._jobs), sep="\n---\n")

    def wait_until_ready(self) -> None:
        wait_until(
            lambda: sum(job.stdout.count("ready") for job in self._jobs) >= self._world or self._has_ended(),
            START_LIMIT_S,
            "the ranks to be ready",
        )
        assert not self._has_ended()

    def _has_ended(self) -> bool:
        return any(job.exit_code is not None for job in self._jobs)

    def ask(self) -> dict[str, Any]:
        """Return what `meshctl why --json` prints, {} if it answers nothing."""
        command = [
            *self._prefix,
            os.path.join(os.path.dirname(sys.executable), "meshctl"),
            "why",
            *self._where,
            "--json",
        ]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, timeout=ANSWER_LIMIT_S)
        with suppress(ValueError):
            return dict(json.loads(done.stdout))
        return {}

    def expect(self, hang: Hang) -> None:
        answers: list[dict[str, Any]] = []

        def is_conclusive() -> bool:
            assert not self._has_ended()
            answers.append(self.ask())
            found = (answers[-1].get("kind", ""), answers[-1].get("culprits"))
            if found == (hang.kind, hang.culprits):  # what is told of those that wait comes with the time they have
                return any(hang.told in sentence for sentence in answers[-1]["sentences"])
            # Told by stacks alone, one that is on its way to the others is unlike them as well.
            return found[0] not in ("", "healthy", "unclear", "odd")

        wait_until(is_conclusive, ANSWER_LIMIT_S, "an answer that accuses")
        last = answers[-1]
        assert (last["kind"], last["culprits"]) == (hang.kind, hang.culprits), last
        assert any(hang.told in sentence for sentence in last["sentences"]), last["sentences"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(FRAMEWORK.get(name, "torch"))) for name in HANGS])
def test_the_rank_that_hangs_is_named(name: str, tmp_path: Path) -> None:
    with Hanging(tmp_path, name, HANGS[name]) as job:
        job.wait_until_ready()
        job.expect(HANGS[name])


@needs("torch")
@pytest.mark.skipif(bool(why_no_namespaces()), reason=why_no_namespaces())
def test_of_a_link_that_is_cut_no_rank_is_accused(tmp_path: Path) -> None:
    """The job has a network of its own, which falls silent: the agent needs none, the workers do."""
    with Network() as network:
        host = network.host("n1")
        with Hanging(tmp_path, "link_cut", CUT, host.prefix) as job:
            job.wait_until_ready()
            with network.inside("n1"):
                run_tc("qdisc", "add", "dev", "lo", "clsact")
                drop = f"1,6 0 0 {DROP}"
                run_tc("filter", "add", "dev", "lo", "egress", "bpf", "direct-action", "bytecode", drop)
            job.expect(CUT)


def test_every_hang_of_the_examples_is_tested() -> None:
    """sleep.py by its page, docs/operate/hangs.md."""
    assert {path.stem for path in SCRIPTS.glob("*.py")} == {*HANGS, "link_cut", "sleep"}
