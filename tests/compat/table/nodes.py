"""Several nodes: who waits for whom, who gets which rank, and how the agents of one job end."""

from __future__ import annotations

import json
import signal
import socket
from contextlib import suppress
from typing import Any

from tests.compat.looks import exit_code, holds, port, succeeds, variable, yes
from tests.compat.runs import LIMIT_S, Case, Running, Seen, case, tools
from tests.support.processes.tree import is_alive
from tests.support.waiting import wait_until

# Every agent has an address of its own on this machine; a name too, which torchrun knows nothing of.
_NAMES = {"LAUNCHER_NODE_NAME": "node{agent}"}
_FIRST, _SECOND = "--local-addr 127.0.0.21", "--local-addr 127.0.0.22"
_TWO: Any = {"environ": _NAMES, "agents": (_FIRST, _SECOND)}
_C10D = "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id night"
_STATIC = "--master-addr 127.0.0.1 --master-port {port}"

_MEET = tools("""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([RANK + 1])
dist.all_reduce(total)
mark(f"sum-{RANK}", int(total))
dist.destroy_process_group()
""")
_HOLD = tools("""
if RANK == 0:
    mark("pid", os.getpid())
    sys.exit(0)
wait_for("pid")
pid = open("pid").read()
while True:
    try:
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "Z":
                break
    except (FileNotFoundError, ProcessLookupError):
        break
    time.sleep(0.01)
time.sleep(1.5)
mark("late")
""")


def _rows(seen: Seen, *names: str) -> str:
    """These variables of every worker, in the order of ranks."""
    return "; ".join(" ".join(worker["environ"][name] for name in names) for worker in seen.workers)


def _one(seen: Seen, *names: str) -> bool:
    return all(len({worker["environ"][name] for worker in seen.workers}) == 1 for name in names)


def can_bind(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _grow(running: Running) -> None:
    """A second node comes when the first has begun; then all workers end."""
    running.wait_for("worker-0-*")
    running.start(_SECOND)
    wait_until(lambda: running.has("worker-1-*") or running.is_over, LIMIT_S, "the second node's worker, or the end")
    running.mark("over")


def _grown(seen: Seen) -> str:
    if any(seen.codes):
        return f"the job fails, exit codes {' '.join(map(str, seen.codes))}"
    return "all restart with " + " ".join(
        f"{name}={seen.environ(name)}" for name in ("WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
    )


def _one_too_many(running: Running) -> None:
    running.wait_for("worker-*", 2)
    running.start("--local-addr 127.0.0.23")
    with suppress(AssertionError):
        wait_until(lambda: running.has("worker-2-*") or running.has("worker-*-1-*"), 8.0)
    running.mark("over")


def _other_fails(running: Running) -> None:
    """The first node serves the store; what it does when the other one has failed is seen soon, or never."""
    wait_until(lambda: not can_bind(running.port), LIMIT_S, "the store")
    running.start(_SECOND)
    running.end(1)
    (pid,) = (json.loads(path.read_text())["pid"] for path in running.wait_for("worker-0-*"))
    with suppress(AssertionError):
        wait_until(lambda: not is_alive(pid), 10.0)
    running.mark("continues" if is_alive(pid) else "is stopped")
    running.signal(0, signal.SIGTERM)


def _first_of_two(running: Running) -> None:
    running.end(0)
    running.mark("held" if running.has("late") else "not held")


_UNTIL_OVER = tools('wait_for("over")\n')

CASES: tuple[Case, ...] = (
    case(
        "two nodes of unequal size",
        f"--nnodes 2 {_C10D}",
        ("two nodes of unequal size: they run", succeeds, "runs"),
        (
            "two nodes of unequal size: RANK, LOCAL_RANK, GROUP_RANK",
            lambda seen: _rows(seen, "RANK", "LOCAL_RANK", "GROUP_RANK"),
            "0 0 0; 1 1 0; 2 0 1",
        ),
        (
            "two nodes of unequal size: ROLE_RANK, ROLE_WORLD_SIZE",
            lambda seen: _rows(seen, "ROLE_RANK", "ROLE_WORLD_SIZE"),
            "0 3; 1 3; 2 3",
        ),
        (
            "two nodes of unequal size: WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_WORLD_SIZE",
            lambda seen: _rows(seen, "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
            "3 2 2; 3 2 2; 3 1 2",
        ),
        holds(
            "two nodes: all workers have one MASTER_ADDR and MASTER_PORT",
            lambda seen: _one(seen, "MASTER_ADDR", "MASTER_PORT"),
        ),
        ("--local-addr of the first node: MASTER_ADDR", variable("MASTER_ADDR", 2), "127.0.0.21"),
        ("c10d: MASTER_PORT", port(), "a free port"),
        environ=_NAMES,
        agents=(f"--nproc-per-node 2 {_FIRST}", f"--nproc-per-node 1 {_SECOND}"),
    ),
    case(
        "two roles",
        f"--nnodes 2 {_C10D}",
        (
            "two roles: ROLE_NAME, ROLE_RANK, ROLE_WORLD_SIZE",
            lambda seen: _rows(seen, "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
            "trainer 0 2; trainer 1 2; reader 0 2; reader 1 2",
        ),
        environ=_NAMES,
        agents=(f"--nproc-per-node 2 --role trainer {_FIRST}", f"--nproc-per-node 2 --role reader {_SECOND}"),
    ),
    case(
        "static, the second node first",
        f"--nnodes 2 --nproc-per-node 2 {_STATIC}",
        ("static: workers meet", lambda seen: " ".join(seen.file(f"sum-{rank}") for rank in range(4)), "10 10 10 10"),
        ("static: GROUP_RANK is --node-rank", lambda seen: _rows(seen, "RANK", "GROUP_RANK"), "0 0; 1 0; 2 1; 3 1"),
        (
            "static: the rank of the node that started first",
            lambda seen: ", ".join(
                sorted({worker["environ"]["RANK"] for worker in seen.workers if worker["environ"]["LOCAL_RANK"] == "0"})
            ),
            "0, 2",
        ),
        ("static: MASTER_ADDR on the other node", variable("MASTER_ADDR", 3), "127.0.0.1"),
        ("static: MASTER_PORT on the other node", port(rank=3), "the given port"),
        environ=_NAMES,
        agents=("--node-rank 1", "--node-rank 0"),
        script=_MEET,
    ),
    case(
        "c10d and torch",
        f"--nnodes 2 --nproc-per-node 1 {_C10D}",
        ("c10d: workers meet", lambda seen: " ".join(seen.file(f"sum-{rank}") for rank in range(2)), "3 3"),
        **_TWO,
        script=_MEET,
    ),
    case(
        "two agents of one machine without names",
        f"--nnodes 2 --nproc-per-node 1 {_C10D}",
        (
            "two agents of one machine without names: workers meet",
            lambda seen: " ".join(seen.file(f"sum-{rank}") for rank in range(2)),
            "3 3",
        ),
        agents=("", ""),
        script=_MEET,
    ),
    case(
        "other arguments on the other node",
        f"--nnodes 2 --nproc-per-node 1 {_C10D}",
        ("other arguments on the other node: both run", succeeds, "runs"),
        (
            "other arguments on the other node: sys.argv",
            lambda seen: "; ".join(sorted(" ".join(worker["argv"][1:]) for worker in seen.workers)),
            "--part 1; --part 2",
        ),
        agents=("train.py --part 1", "train.py --part 2"),
        target="",
    ),
    case(
        "an IPv6 endpoint",
        "--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint [::1]:{port}",
        ("an IPv6 endpoint: two nodes meet", lambda seen: seen.environ("WORLD_SIZE"), "2"),
        ("an IPv6 endpoint: MASTER_ADDR", variable("MASTER_ADDR", 1), "::1"),
        environ=_NAMES,
        agents=("--local-addr ::1", "--local-addr ::1"),
    ),
    case(
        "fewer than the most",
        f"--nnodes 2:3 --nproc-per-node 1 {_C10D} --rdzv-conf last_call_timeout=2",
        ("--nnodes 2:3, two nodes come: they start after the last call with", variable("WORLD_SIZE"), "2"),
        **_TWO,
    ),
    case(
        "as many as the most",
        f"--nnodes 1:2 --nproc-per-node 1 {_C10D} --rdzv-conf last_call_timeout=100000,join_timeout=200000",
        ("--nnodes 1:2, two nodes come: they start at once with", variable("WORLD_SIZE"), "2"),
        **_TWO,
    ),
    case(
        "more than the most",
        f"--nnodes 2 --nproc-per-node 1 {_C10D} --rdzv-conf read_timeout=10,join_timeout=40",
        (
            "--nnodes 2, a third node comes: workers that are started for it",
            lambda seen: str(len(seen.workers) - 2),
            "0",
        ),
        ("--nnodes 2, a third node joins: its exit code when the job ends", exit_code(2), "1"),
        ("--nnodes 2, a third node comes: exit code of the others", exit_code(0), "0"),
        **_TWO,
        script=_UNTIL_OVER,
        act=_one_too_many,
    ),
    case(
        "an endpoint that is nobody's",
        "--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint nobody.invalid:29400 "
        "--rdzv-conf join_timeout=3,read_timeout=3",
        ("an endpoint whose name does not resolve in time: exit code", exit_code(), "1"),
    ),
    case(
        "nobody else comes",
        f"--nnodes 2 --nproc-per-node 1 {_C10D} --rdzv-conf join_timeout=3",
        ("--rdzv-conf join_timeout=3 and no node joins: exit code", exit_code(), "1"),
        ("--rdzv-conf join_timeout=3 and no node joins: a worker was started", yes(lambda seen: seen.workers), "no"),
        environ=_NAMES,
        agents=(_FIRST,),
    ),
    case(
        "a node comes later",
        f"--nnodes 1:2 --nproc-per-node 1 {_C10D} --rdzv-conf last_call_timeout=1,read_timeout=10",
        ("--nnodes 1:2, a node joins later", _grown, "the job fails, exit codes 1 1"),
        environ={**_NAMES, "LAUNCHER_GROW": "delay=1"},
        agents=(_FIRST,),
        script=_UNTIL_OVER,
        act=_grow,
    ),
    case(
        "another node fails",
        f"--nnodes 2 --nproc-per-node 1 {_C10D}",
        ("a worker on the other node fails: exit code on that node", exit_code(1), "1"),
        (
            "a worker on the other node fails: a healthy worker on this node",
            lambda seen: " ".join(name for name in ("continues", "is stopped") if (seen.directory / name).exists()),
            "continues",
        ),
        environ=_NAMES,
        agents=(_FIRST,),
        script=tools("if RANK == 1:\n    wait_for('begun')\n    sys.exit(3)\nmark('begun')\nwait_for('over')\n"),
        act=_other_fails,
    ),
    case(
        "another node restarts",
        f"--nnodes 2 --nproc-per-node 1 --max-restarts 1 {_C10D}",
        ("a worker on the other node fails once: both nodes restart", succeeds, "runs"),
        (
            "a worker on the other node fails once: TORCHELASTIC_RESTART_COUNT on this node",
            variable("TORCHELASTIC_RESTART_COUNT", 0),
            "0",
        ),
        (
            "a worker on the other node fails once: TORCHELASTIC_RESTART_COUNT on that node",
            variable("TORCHELASTIC_RESTART_COUNT", 1),
            "1",
        ),
        **_TWO,
        script=tools("""
if not os.path.exists("failed"):
    if RANK == 1:
        wait_for("begun")
        mark("failed")
        sys.exit(3)
    mark("begun")
    time.sleep(600)
"""),
    ),
    case(
        "an early finisher",
        f"--nnodes 2 --nproc-per-node 1 {_C10D}",
        (
            "a node whose workers are done waits for the others",
            lambda seen: "held" if seen.file("held") == "" else "not held",
            "held",
        ),
        ("a node whose workers are done: exit codes", succeeds, "runs"),
        **_TWO,
        script=_HOLD,
        act=_first_of_two,
    ),
)
