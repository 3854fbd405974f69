"""Starting workers: what they inherit, what they do not, and what is reported of them."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.tree import (
    TOKEN_VARIABLE,
    Agent,
    children,
    descriptors,
    family,
    is_alive,
    parent,
    program_name,
)
from tests.support.processes.warm_agent import SLEEP, WarmAgent, is_cold
from tests.support.waiting import wait_until


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


@pytest.fixture(params=["by exec", "forked"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Agent]:
    """An agent whose workers are started by an exec, and one whose workers are forked."""
    environment = {"KEPT": "k", "CHANGED": "old", "REMOVED": "r", "REPLACED": "old"}
    if request.param == "forked":
        with WarmAgent(tmp_path, env=environment) as warm:
            warm.is_preloaded()
            yield warm
    else:
        with Agent(env=environment) as agent:
            yield agent


def test_each_worker_is_reported_running_and_then_how_it_ended(either: Agent) -> None:
    programs = [["sh", "-c", f"exit {code}"] for code in range(15)] + [["sh", "-c", "kill -SEGV $$"]]
    either.spawn(1, *programs)
    assert [either.wait_for("Exited", 1, rank)[4] for rank in range(16)] == [*range(15), -signal.SIGSEGV]
    kinds = [report[0] for rank in range(16) for report in either.heard if report[1:3] == [1, rank]]
    assert kinds == ["Spawned", "Exited"] * 16


def test_workers_are_the_supervisors_own_children_and_lead_sessions(either: Agent) -> None:
    workers = either.start(1, *[SLEEP] * 20)
    assert len(set(workers)) == 20
    assert [os.getsid(pid) for pid in workers] == workers
    assert {parent(pid) for pid in workers} == {either.supervisor_pid}
    assert not (isinstance(either, WarmAgent) and any(map(is_cold, workers)))


def test_the_environment_is_the_agents_with_the_workers_changes(either: Agent, tmp_path: Path) -> None:
    out = tmp_path / "out"
    environment = {"CHANGED": "\udcfe", "REPLACED": "new", "RANK": "3"}
    either.spawn(1, ["env", "-0"], env=environment, unset=["REMOVED", "REPLACED", "NEVER_SET"], stdout=str(out))
    assert either.wait_for("Exited", 1, 0)[4] == 0
    seen = dict(entry.split(b"=", 1) for entry in out.read_bytes().split(b"\0") if entry)
    names = ("KEPT", "CHANGED", "REMOVED", "REPLACED", "RANK", TOKEN_VARIABLE, "LAUNCHER_FORK_SERVER")
    values = [b"k", b"\xfe", None, b"new", b"3", either.token.encode(), None]
    assert [seen.get(name.encode()) for name in names] == values


def test_a_worker_has_only_its_three_streams_open() -> None:
    with Agent(setup="import os; os.dup2(0, 7); os.dup2(1, 200)") as agent:  # inheritable ones of whoever called us
        workers = agent.start(1, SLEEP, SLEEP, stdout=os.devnull, stderr=os.devnull)
        assert len(descriptors(agent.pid)) > 5
        for worker in workers:  # the dynamic loader may still have a library open
            wait_until(lambda pid=worker: descriptors(pid) == [os.devnull] * 3)  # type: ignore[misc]


def test_a_worker_before_its_exec_holds_only_its_own_descriptors(tmp_path: Path) -> None:
    slow_exec = "import os, time; os.execvpe = lambda *_: time.sleep(1000)"
    with Agent(setup=slow_exec) as agent:
        agent.spawn(
            1, *[SLEEP] * 3, stdout=str(tmp_path / "{local_rank}.out"), stderr=str(tmp_path / "{local_rank}.err")
        )
        workers = wait_until(lambda: len(found := children(agent.supervisor_pid)) == 3 and found)

        def settled() -> bool:
            return all(len(descriptors(worker)) == 4 for worker in workers)

        wait_until(settled, what="nothing but three streams and the pipe of the exec's result")
        streams = sorted(tuple(descriptors(worker)[1:3]) for worker in workers)
        assert streams == [(str(tmp_path / f"{rank}.out"), str(tmp_path / f"{rank}.err")) for rank in range(3)]
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait_until_nobody_is_left()


def test_redirected_streams_reach_their_files_and_others_are_the_agents(agent: Agent, tmp_path: Path) -> None:
    out = tmp_path / "0.out"
    (worker,) = agent.start(1, ["sh", "-c", "echo to stdout; exec sleep 1000"], stdout=str(out))
    assert wait_until(out.read_text) == "to stdout\n"
    assert descriptors(worker)[2] == descriptors(agent.pid)[2]
    assert descriptors(worker)[0] == descriptors(agent.pid)[0]


def test_a_stream_the_agent_was_started_without_is_dev_null_for_workers() -> None:
    with Agent(setup="import os; os.close(2)") as agent:
        (worker,) = agent.start(1, SLEEP)
        wait_until(lambda: descriptors(worker) == [os.devnull] * 3)


def test_signals_are_at_their_defaults_and_none_is_blocked() -> None:
    everything = "import signal; [signal.signal(s, signal.SIG_IGN) for s in signal.valid_signals() if s not in (9, 19)]"
    with Agent(setup=everything + "; signal.pthread_sigmask(signal.SIG_BLOCK, [1, 15])") as agent:
        (worker,) = agent.start(1, SLEEP)
        lines = Path(f"/proc/{worker}/status").read_text().splitlines()
        masks = dict(line.split(":\t") for line in lines if line.startswith(("SigIgn", "SigBlk", "SigCgt")))
        # 32 and 33 are the C library's own: no program can set them, and some (GNU make) hand them down ignored.
        ours = ~(3 << 31)
        assert {name: int(mask, 16) & ours for name, mask in masks.items()} == {"SigIgn": 0, "SigBlk": 0, "SigCgt": 0}


def test_a_signal_sent_before_the_exec_is_not_lost(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait_at_the_gate = f"""
import os, time
count, real = 0, os.setsid
def setsid():
    global count
    count += 1  # keeper and supervisor come first
    while count > 2 and not os.path.exists({str(gate)!r}): time.sleep(0.01)
    real()
os.setsid = setsid
"""
    with Agent(setup=wait_at_the_gate) as agent:
        agent.spawn(1, SLEEP)
        agent.do("signal", 1, signal.SIGTERM)
        agent.sweep(2)  # orders are obeyed in their order, so the signal has been sent
        gate.touch()
        assert agent.wait_for("Exited", 1, 0)[4] == -signal.SIGTERM


def test_arguments_and_variables_arrive_byte_by_byte(agent: Agent, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tricky = ["", "\udcff\udc80", "ä\n\t\x01", "x" * 100_000]
    code = "import json, os, sys; json.dump([*map(ascii, sys.argv[1:]), ascii(os.environ['V'])], sys.stdout)"
    agent.spawn(1, python(code, *tricky), env={"V": "\udcfe\udced\udca0\udc80"}, stdout=str(out))
    assert agent.wait_for("Exited", 1, 0)[4] == 0
    assert json.loads(out.read_text()) == [ascii(word) for word in [*tricky, "\udcfe\udced\udca0\udc80"]]


def test_a_megabyte_of_arguments_arrives(agent: Agent, tmp_path: Path) -> None:
    out = tmp_path / "out"
    agent.spawn(1, ["sh", "-c", "echo $#", *["x" * 100_000] * 11], stdout=str(out))
    assert agent.wait_for("Exited", 1, 0)[4] == 0
    assert out.read_text() == "10\n"


def test_a_program_that_cannot_be_run_is_told_in_a_sentence(agent: Agent, tmp_path: Path) -> None:
    plain, broken = tmp_path / "plain", tmp_path / "broken"
    plain.write_text("")
    broken.write_text("no program")
    broken.chmod(broken.stat().st_mode | stat.S_IXUSR)
    programs = [["nowhere-to-be-found"], [str(plain)], [str(broken)], ["echo", "x" * 200_000], ["echo", "\0"]]
    agent.spawn(1, *programs)
    failures = [agent.wait_for("SpawnFailed", 1, rank)[3:] for rank in range(len(programs))]
    assert failures == [
        ["cannot run 'nowhere-to-be-found': No such file or directory", 2],
        [f"cannot run '{plain}': Permission denied", 13],
        [f"cannot run '{broken}': Exec format error", 8],
        ["cannot run 'echo': Argument list too long", 7],
        ["cannot run 'echo': embedded null byte", 22],
    ]
    agent.sweep(1)
    assert not [report for report in agent.heard if report[0] in ("Spawned", "Exited")]
    assert children(agent.supervisor_pid) == []


def test_the_program_is_searched_on_the_path_of_the_workers_environment(agent: Agent, tmp_path: Path) -> None:
    for folder, mode in (("forbidden", 0o600), ("right", 0o700)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tool").write_text("#!/bin/sh\nexit 7\n")
        (tmp_path / folder / "tool").chmod(mode)
    path = f"{tmp_path}/missing:{tmp_path}/forbidden:{tmp_path}/right"
    agent.spawn(1, ["tool"], env={"PATH": path})
    assert agent.wait_for("Exited", 1, 0)[4] == 7
    agent.spawn(2, ["tool"], env={"PATH": f"{tmp_path}/forbidden:{tmp_path}/missing"})
    assert agent.wait_for("SpawnFailed", 2, 0)[3] == "cannot run 'tool': Permission denied"


def test_a_worker_keeps_to_its_cpus_and_impossible_ones_are_told(agent: Agent) -> None:
    cpu = max(os.sched_getaffinity(0))
    (worker,) = agent.start(1, SLEEP, affinity=[cpu])
    assert os.sched_getaffinity(worker) == {cpu}
    agent.spawn(2, SLEEP, affinity=[100_000])
    sentence = "cannot bind the worker of local rank 0 to its CPUs: Invalid argument"
    assert agent.wait_for("SpawnFailed", 2, 0)[3:] == [sentence, 22]


NO_FORK = """
import os
real, calls = os.fork, []
def fork():
    calls.append(1)
    if len(calls) > {}: raise BlockingIOError(11, "Resource temporarily unavailable")
    return real()
os.fork = fork
"""


def test_a_fork_that_fails_is_told(tmp_path: Path) -> None:
    with Agent(setup=NO_FORK.format(2)) as agent:
        count = len(descriptors(agent.supervisor_pid))
        agent.spawn(1, SLEEP, stdout=str(tmp_path / "out"))
        sentence = "cannot start the worker of local rank 0: Resource temporarily unavailable"
        assert agent.wait_for("SpawnFailed")[1:] == [1, 0, sentence, 11]
        agent.sweep(1)
        assert len(descriptors(agent.supervisor_pid)) == count


def test_a_signal_goes_to_the_worker_groups_of_its_own_round_only(agent: Agent) -> None:
    trap = ["sh", "-c", "trap 'exit 5' USR1; sleep 1000 & wait"]
    (kept,) = agent.start(1, SLEEP)
    agent.start(2, trap, trap)

    def three_sleep() -> bool:
        return [program_name(pid) for pid in family(agent.token)].count("sleep") == 3

    wait_until(three_sleep)
    agent.do("signal", 2, signal.SIGUSR1)
    assert [agent.wait_for("Exited", 2, rank)[4] for rank in range(2)] == [5, 5]
    agent.wait_until_nobody_is_left(agent.pid, agent.keeper_pid, agent.supervisor_pid, kept)
    assert is_alive(kept)


def test_agent_and_supervisor_do_not_deadlock_when_both_send_much() -> None:
    tiny_buffers = """
import socket
real = socket.socketpair
def socketpair():
    pair = real()
    for end in pair: end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    return pair
socket.socketpair = socketpair
"""
    with Agent(setup=tiny_buffers) as agent:
        agent.spawn(1, *[["/" + "x" * 250, "y" * 50_000]] * 100)
        for rank in range(100):
            assert agent.wait_for("SpawnFailed", 1, rank)[4] in (2, 36)


def test_fifty_rounds_leave_no_descriptor_and_no_process_behind(agent: Agent, tmp_path: Path) -> None:
    def one_round(number: int) -> None:
        files = {"stdout": str(tmp_path / "out"), "stderr": str(tmp_path / "err")}
        agent.spawn(number, SLEEP, ["nowhere-to-be-found"], ["true"], **files)
        agent.wait_for("Spawned", number, 0)
        agent.sweep(number)

    one_round(1)
    before = descriptors(agent.pid), descriptors(agent.supervisor_pid)
    for number in range(2, 52):
        one_round(number)
    assert (descriptors(agent.pid), descriptors(agent.supervisor_pid)) == before
    assert children(agent.supervisor_pid) == []


def test_buffered_output_and_exit_handlers_of_the_agent_run_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    setup = f"import atexit, sys; sys.stdout = open({str(out)!r}, 'w'); sys.stdout.write('buffered ')"
    with Agent(setup=setup + "; atexit.register(sys.stdout.write, 'at exit')") as agent:
        agent.spawn(1, ["true"], ["nowhere-to-be-found"])
        agent.wait_for("Exited", 1, 0)
        agent.ask("close", 10)
        agent.do("exit")
        assert agent.wait_for_exit() == 0
    assert out.read_text() == "buffered at exit"


# --- the limit of open files: the agent raises its own, the supervisor and the workers keep the user's ---

RAISE = "__import__('launcher.hardware.linux.limits', fromlist=['x']).raise_descriptor_limit({})"
LOW = "import resource; h = resource.getrlimit(7)[1]; resource.setrlimit(7, (256, h))"


def test_workers_have_the_limit_that_the_user_had_set() -> None:
    with Agent(setup=LOW) as agent:
        raised = agent.ask("evaluate", RAISE.format(512))
        (worker,) = agent.start(1, ["sleep", "1000"])
        assert raised == 512
        assert [soft_limit(pid) for pid in (agent.pid, agent.supervisor_pid, worker)] == [512, 256, 256]


def test_a_hard_limit_is_as_far_as_it_goes() -> None:
    with Agent(setup="import resource; resource.setrlimit(7, (200, 300))") as agent:
        assert agent.ask("evaluate", RAISE.format("")) == 300


def soft_limit(pid: int) -> int:
    """Of open files (proc(5), /proc/<pid>/limits)."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(int(line.split()[3]) for line in lines if line.startswith("Max open files"))
